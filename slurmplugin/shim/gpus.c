/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * gpus.c: what GPUs a job has or asks for, and the cluster has: whole ones, parts
 * of them as gres/shard and gres/mps, and of which types.
 *
 * Counted from slurmctld's GRES records, which exist whether or not
 * AccountingStorageTRES names gres/gpu (without slurmdbd it cannot).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "parts.h"
#include "shim.h"

/* What the nodes have, as the last pass saw it: how closely jobs are to be looked
 * at. Other threads read it too. */
enum { NO_TYPES, ONE_TYPE, SOME_TYPES };
static atomic_int types_of_nodes;
static _Atomic uint64_t part_of_shard, part_of_mps; /* on average; 0: there are none */

/* ---- GPUs by type ---- */

#define MOST_TYPES 16

struct holding {
	uint64_t gpus, parts;
	int count;
	struct {
		const char *name; /* NULL: without a type */
		uint64_t amount;  /* in millionths */
	} types[MOST_TYPES];
};

static bool same_type(const char *a, const char *b)
{
	return a == b || (a && b && !strcasecmp(a, b));
}

/* More types than there is room for count as the last one. */
static void hold(struct holding *h, const char *name, uint64_t amount)
{
	int i = 0;

	if (!amount)
		return;
	while (i < h->count && !same_type(h->types[i].name, name))
		i++;
	if (i == MOST_TYPES)
		i--;
	if (i == h->count) {
		h->types[i].name = name;
		h->types[i].amount = 0;
		h->count++;
	}
	h->types[i].amount += amount;
}

/* The types as "a100:2,h100:0.5". */
static void write_types(const struct holding *h, char *out, size_t size)
{
	size_t used = 0;

	out[0] = 0;
	for (int i = 0; i < h->count && used < size; i++) {
		unsigned long whole = h->types[i].amount / WHOLE, rest = h->types[i].amount % WHOLE;
		const char *name = h->types[i].name ? h->types[i].name : "";

		used += snprintf(out + used, size - used, rest ? "%s%s:%lu.%06lu" : "%s%s:%lu", i ? "," : "", name, whole, rest);
	}
	if (used >= size)
		out[0] = 0;
}

/* Lists are few, told again and again, and outlive a pass: each is kept once,
 * for ever. */
static const char *kept(const char *text)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct list {
		struct list *next;
		char text[];
	} *lists;
	static int count;
	struct list *found;

	pthread_mutex_lock(&lock);
	for (found = lists; found && strcmp(found->text, text); found = found->next)
		;
	if (!found && count < 4096 && (found = malloc(sizeof(*found) + strlen(text) + 1))) {
		strcpy(found->text, text);
		found->next = lists;
		lists = found;
		count++;
	}
	pthread_mutex_unlock(&lock);
	return found ? found->text : NULL;
}

/* The type of a holding, or a list of several. */
static const char *type_of(const struct holding *h)
{
	char text[1024];
	const char *list = NULL;

	if (h->count <= 1)
		return h->count ? h->types[0].name : NULL;
	write_types(h, text, sizeof(text));
	if (text[0])
		list = kept(text);
	return list ? list : h->types[0].name;
}

/* ---- what nodes have ---- */

struct wanted {
	const char *name;
	const gres_node_state_t *found;
};

static int find_gres(void *x, void *arg)
{
	const gres_state_t *gres = x;
	struct wanted *wanted = arg;

	if (strcmp(gres->gres_name, wanted->name))
		return SLURM_SUCCESS;
	wanted->found = gres->gres_data;
	return -1;
}

static const gres_node_state_t *gres_of(const node_record_t *node, const char *name)
{
	struct wanted wanted = { .name = name };

	if (node && node->gres_list)
		list_for_each_ro(node->gres_list, find_gres, &wanted);
	return wanted.found;
}

/* How many of the bits, or of all devices if there are none, lie in a topology
 * record. */
static uint64_t overlap(const gres_node_state_t *gres, int topo, bitstr_t *bits)
{
	bitstr_t *of = gres->topo_gres_bitmap ? gres->topo_gres_bitmap[topo] : NULL;

	if (!of || !bits || bit_size(of) != bit_size(bits))
		return 0;
	return bit_overlap(of, bits);
}

/* The GPUs of a node by type. */
static void hold_node(struct holding *h, const gres_node_state_t *gpus)
{
	uint64_t typed = 0;

	for (int i = 0; i < gpus->type_cnt; i++) {
		hold(h, gpus->type_name[i], gpus->type_cnt_avail[i] * WHOLE);
		typed += gpus->type_cnt_avail[i];
	}
	if (gpus->gres_cnt_avail > typed)
		hold(h, NULL, (gpus->gres_cnt_avail - typed) * WHOLE);
	h->gpus += gpus->gres_cnt_avail;
}

/* Of the GPUs of a node, an amount that lies on some of them. */
static void hold_on(struct holding *h, const gres_node_state_t *gpus, bitstr_t *bits, uint64_t amount)
{
	uint64_t all = bits ? bit_set_count(bits) : 0, left = amount;

	if (!gpus || !gpus->type_cnt) {
		hold(h, NULL, amount);
		return;
	}
	if (gpus->type_cnt == 1 && gpus->type_cnt_avail[0] == gpus->gres_cnt_avail) {
		hold(h, gpus->type_name[0], amount);
		return;
	}
	for (int i = 0; all && i < gpus->topo_cnt; i++) {
		uint64_t part = amount * overlap(gpus, i, bits) / all;

		if (part > left)
			part = left;
		hold(h, gpus->topo_type_name ? gpus->topo_type_name[i] : NULL, part);
		left -= part;
	}
	hold(h, NULL, left);
}

/* ---- what a job holds ---- */

struct allocation {
	const job_record_t *job;
	struct holding *held;
};

/* The node that is the nth of a job's, from the one before it. */
static const node_record_t *node_after(const job_record_t *job, int *at)
{
	int last;

	if (!job->node_bitmap)
		return NULL;
	last = bit_size(job->node_bitmap);
	while (++*at < last && *at < node_record_count) {
		if (bit_test(job->node_bitmap, *at))
			return node_record_table_ptr[*at];
	}
	return NULL;
}

static int before_first(const job_record_t *job)
{
	return job->node_bitmap ? (int)bit_ffs(job->node_bitmap) - 1 : -1;
}

static bitstr_t *bits_on(const gres_job_state_t *gres, uint32_t node)
{
	return gres->gres_bit_alloc ? gres->gres_bit_alloc[node] : NULL;
}

static void hold_gpus(const struct allocation *to, const gres_job_state_t *gres)
{
	int types = atomic_load(&types_of_nodes), at = before_first(to->job);
	uint64_t left = gres->total_gres;

	to->held->gpus += gres->total_gres;
	if (gres->type_name || types == NO_TYPES) {
		hold(to->held, gres->type_name, left * WHOLE);
		return;
	}
	for (uint32_t i = 0; left && i < gres->node_cnt; i++) {
		const node_record_t *node = node_after(to->job, &at);
		uint64_t here = types == ONE_TYPE || !gres->gres_cnt_node_alloc ? left : gres->gres_cnt_node_alloc[i];

		if (!node)
			break;
		if (here > left)
			here = left;
		hold_on(to->held, gres_of(node, "gpu"), bits_on(gres, i), here * WHOLE);
		left -= here;
	}
	hold(to->held, NULL, left * WHOLE);
}

/* A job's shards, or its part of MPS, on a node: of each GPU never more than it.
 * Up to 22.05 they are always on one GPU, later they may be on several. Without
 * gres.conf's File nobody knows on which: on any of the node's. */
static uint64_t part_on(const gres_node_state_t *shared, const gres_node_state_t *gpus, bitstr_t *bits, uint64_t count)
{
	uint64_t on = 0, nth = 0, part = 0;

	for (int i = 0; bits && i < shared->topo_cnt; i++)
		on += overlap(shared, i, bits) > 0;
	if (!on)
		return parts_of(count, shared->gres_cnt_avail, gpus ? gpus->gres_cnt_avail : 0);
	for (int i = 0; i < shared->topo_cnt; i++) {
		if (overlap(shared, i, bits))
			part += parts_of(shares_on(count, on, nth++), shared->topo_gres_cnt_avail[i], 1);
	}
	return part;
}

static void hold_parts(const struct allocation *to, const gres_job_state_t *gres, const char *name)
{
	int at = before_first(to->job);

	for (uint32_t i = 0; i < gres->node_cnt; i++) {
		const node_record_t *node = node_after(to->job, &at);
		const gres_node_state_t *shared = gres_of(node, name), *gpus = gres_of(node, "gpu");
		uint64_t part;

		if (!node)
			break;
		if (!shared || !gres->gres_cnt_node_alloc || !gres->gres_cnt_node_alloc[i])
			continue;
		part = part_on(shared, gpus, bits_on(gres, i), gres->gres_cnt_node_alloc[i]);
		to->held->parts += part;
		hold_on(to->held, gpus, bits_on(gres, i), part);
	}
}

static bool is_shared(const char *name)
{
	return !strcmp(name, "shard") || !strcmp(name, "mps");
}

static int hold_allocated(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *allocated = gres->gres_data;

	if (!allocated || !allocated->total_gres || allocated->total_gres == NO_CONSUME_VAL64)
		return SLURM_SUCCESS;
	if (!strcmp(gres->gres_name, "gpu"))
		hold_gpus(arg, allocated);
	else if (is_shared(gres->gres_name))
		hold_parts(arg, allocated, gres->gres_name);
	return SLURM_SUCCESS;
}

/* total_gres of the records of an allocation follows every change of size and
 * stays until the record is cleared for a requeue. */
void gpus_allocated(const job_record_t *job, struct gpub_job *out)
{
	struct holding held = { 0 };
	struct allocation to = { job, &held };

	if (job->gres_list_alloc)
		list_for_each_ro(job->gres_list_alloc, hold_allocated, &to);
	out->gpus = held.gpus;
	out->gpu_parts = held.parts;
	out->gpu_type = type_of(&held);
}

/* ---- what a job asks for ---- */

struct request {
	struct holding asked;
	const struct job_details *details;
};

static uint64_t asked_nodes(const struct job_details *details)
{
	return details->min_nodes && details->min_nodes != NO_VAL ? details->min_nodes : 1;
}

static uint64_t asked_tasks(const struct job_details *details)
{
	if (details->num_tasks && details->num_tasks != NO_VAL)
		return details->num_tasks;
	if (details->ntasks_per_node && details->ntasks_per_node != NO_VAL16)
		return asked_nodes(details) * details->ntasks_per_node;
	return asked_nodes(details);
}

static uint64_t asked_sockets(const struct job_details *details)
{
	const multi_core_data_t *cores = details->mc_ptr;

	if (cores && cores->sockets_per_node && cores->sockets_per_node != NO_VAL16)
		return asked_nodes(details) * cores->sockets_per_node;
	if (cores && cores->ntasks_per_socket && cores->ntasks_per_socket != NO_VAL16 &&
	    cores->ntasks_per_socket != (uint16_t)INFINITE)
		return (asked_tasks(details) + cores->ntasks_per_socket - 1) / cores->ntasks_per_socket;
	return asked_nodes(details);
}

/* The least that the request can be granted with: each form that was given
 * sets a floor. total_gres isn't read, the node selection uses it as scratch. */
static uint64_t least(const gres_job_state_t *gres, const struct job_details *details)
{
	uint64_t least = gres->gres_per_job, floor;

	if ((floor = gres->gres_per_node * asked_nodes(details)) > least)
		least = floor;
	if ((floor = gres->gres_per_socket * asked_sockets(details)) > least)
		least = floor;
	if ((floor = gres->gres_per_task * asked_tasks(details)) > least)
		least = floor;
	return least;
}

static int hold_requested(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *asked = gres->gres_data;
	struct request *request = arg;
	uint64_t part, count;

	if (!asked || asked->flags & GRES_NO_CONSUME)
		return SLURM_SUCCESS;
	if (!strcmp(gres->gres_name, "gpu")) {
		count = least(asked, request->details);
		request->asked.gpus += count;
		hold(&request->asked, asked->type_name, count * WHOLE);
	} else if (is_shared(gres->gres_name)) {
		part = atomic_load(strcmp(gres->gres_name, "mps") ? &part_of_shard : &part_of_mps);
		part *= least(asked, request->details);
		request->asked.parts += part;
		hold(&request->asked, NULL, part);
	}
	return SLURM_SUCCESS;
}

/* Where gres/gpu is accounted for, slurmctld has added up the GPUs itself, and a
 * job's record is looked into only if something else could be in it that counts. */
void gpus_requested(const job_record_t *job, int gpu_tres, struct gpub_job *out)
{
	struct request request = { .details = job->details };
	bool added_up = gpu_tres >= 0 && job->tres_req_cnt && job->tres_req_cnt[gpu_tres] < NO_CONSUME_VAL64;

	if (added_up)
		out->gpus = job->tres_req_cnt[gpu_tres];
	if (added_up && atomic_load(&types_of_nodes) != SOME_TYPES &&
	    (out->gpus || (!atomic_load(&part_of_shard) && !atomic_load(&part_of_mps))))
		return;
	if (job->gres_list_req && job->details)
		list_for_each_ro(job->gres_list_req, hold_requested, &request);
	if (!added_up)
		out->gpus = request.asked.gpus;
	out->gpu_parts = request.asked.parts;
	if (out->gpus == request.asked.gpus)
		out->gpu_type = type_of(&request.asked);
}

/* ---- what the cluster has ---- */

/* Shards, and the GPUs they are of. */
struct shares {
	uint64_t count, gpus;
};

static void add_shares(struct shares *to, const node_record_t *node, const gres_node_state_t *gpus, const char *name)
{
	const gres_node_state_t *shared = gres_of(node, name);

	if (!shared || !shared->gres_cnt_avail)
		return;
	to->count += shared->gres_cnt_avail;
	to->gpus += shared->topo_cnt ? shared->topo_cnt : gpus->gres_cnt_avail;
}

static uint64_t mean_part(const struct shares *of)
{
	return of->count ? of->gpus * WHOLE / of->count : 0;
}

static int how_many_types(const struct holding *all)
{
	if (all->count > 1)
		return SOME_TYPES;
	return all->count && all->types[0].name ? ONE_TYPE : NO_TYPES;
}

void gpus_of_cluster(struct gpub_cluster *cluster)
{
	static char text[1024]; /* one pass at a time, and the library copies it */
	struct holding all = { 0 }, ready = { 0 };
	struct shares shards = { 0 }, mps = { 0 };

	for (int i = 0; i < node_record_count; i++) {
		const node_record_t *node = node_record_table_ptr[i];
		const gres_node_state_t *gpus = gres_of(node, "gpu");

		if (!gpus || gpus->no_consume)
			continue;
		hold_node(&all, gpus);
		if (gpub_node_can_run(node))
			hold_node(&ready, gpus);
		add_shares(&shards, node, gpus, "shard");
		add_shares(&mps, node, gpus, "mps");
	}
	cluster->gpus_configured = all.gpus;
	cluster->gpus = ready.gpus;
	atomic_store(&types_of_nodes, how_many_types(&all));
	atomic_store(&part_of_shard, mean_part(&shards));
	atomic_store(&part_of_mps, mean_part(&mps));
	if (how_many_types(&all) == NO_TYPES)
		return;
	write_types(&ready, text, sizeof(text));
	if (text[0])
		cluster->gpu_types = text;
}
