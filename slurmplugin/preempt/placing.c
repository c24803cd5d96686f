/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * placing.c: what a job needs, which nodes it may use, and what others hold of
 * these.
 *
 * It need not be exact: Slurm places the job, we only choose among whom it may
 * look for room. What we take for possible and isn't costs an attempt; what we
 * take for impossible is not preempted for.
 */
#include <stdlib.h>
#include <string.h>

#include "preempt.h"

/* ---- memory: kept from one attempt to the next ---- */

static bool grow(void *array, uint32_t *room, uint32_t need, size_t size)
{
	void **at = array, *more;
	size_t wanted;

	if (need <= *room)
		return true;
	wanted = (size_t)need + need / 2 + 64;
	if (!(more = realloc(*at, wanted * size)))
		return false;
	*at = more;
	*room = wanted;
	return true;
}

void placing_free(struct placing *placing)
{
	free(placing->free);
	free(placing->pieces);
	free(placing->occupants);
	free(placing->node_of);
	memset(placing, 0, sizeof(*placing));
}

/* ---- GPUs ---- */

/* By Slurm's number of the name, once it is known: the name of each is a string of
 * its own, which would have to be fetched from memory. */
static bool is_gpu(const gres_state_t *gres)
{
	static uint32_t gpu_id;
	uint32_t known = __atomic_load_n(&gpu_id, __ATOMIC_RELAXED);

	if (known)
		return gres->plugin_id == known;
	if (strcmp(gres->gres_name, "gpu"))
		return false;
	__atomic_store_n(&gpu_id, gres->plugin_id, __ATOMIC_RELAXED);
	return true;
}

/* ---- what is asked for ---- */

struct asked {
	uint64_t per_node;     /* GPUs */
	const char *type;      /* of which; NULL if any */
	bool counted;          /* per_node says all */
	uint64_t tasks_a_node; /* 0 if unknown */
};

static int asked_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *gpus = gres->gres_data;
	struct asked *asked = arg;

	if (!is_gpu(gres))
		return 0;
	asked->type = asked->type ? "" : gpus->type_name; /* two types: any */
	if (gpus->gres_per_node)
		asked->per_node += gpus->gres_per_node;
	else if (gpus->gres_per_task && asked->tasks_a_node)
		asked->per_node += gpus->gres_per_task * asked->tasks_a_node;
	else
		asked->counted = false;
	return 0;
}

static struct asked read_asked(const job_record_t *job)
{
	const struct job_details *details = job->details;
	struct asked asked = { .counted = true };

	if (details->ntasks_per_node && details->ntasks_per_node != NO_VAL16)
		asked.tasks_a_node = details->ntasks_per_node;
	else if (details->num_tasks == 1)
		asked.tasks_a_node = 1;
	if (job->gres_list_req)
		list_for_each_ro(job->gres_list_req, asked_gpus, &asked);
	if (!asked.counted)
		asked.per_node = 0;
	if (asked.type && !*asked.type)
		asked.type = NULL;
	return asked;
}

static uint32_t cpus_a_node(const struct job_details *details, uint32_t nodes)
{
	uint64_t each = details->cpus_per_task && details->cpus_per_task != NO_VAL16 ? details->cpus_per_task : 1;
	uint64_t tasks = details->num_tasks && details->num_tasks != NO_VAL ? details->num_tasks : nodes, cpus;

	if (details->ntasks_per_node && details->ntasks_per_node != NO_VAL16)
		cpus = each * details->ntasks_per_node;
	else
		cpus = (each * tasks + nodes - 1) / nodes;
	if (details->pn_min_cpus != NO_VAL16 && cpus < details->pn_min_cpus)
		cpus = details->pn_min_cpus;
	return cpus < UINT16_MAX ? cpus : UINT16_MAX;
}

static bool accounts_for_memory(const job_record_t *job)
{
	uint16_t type = slurm_conf.select_type_param;

	if (job->part_ptr->cr_type)
		type = job->part_ptr->cr_type;
	return type & CR_MEMORY;
}

static void read_needs(struct gpub_request *request, const job_record_t *job, const struct asked *asked)
{
	const struct job_details *details = job->details;
	uint64_t memory = details->pn_min_memory;

	request->nodes = details->min_nodes && details->min_nodes != NO_VAL ? details->min_nodes : 1;
	request->max_nodes = details->max_nodes != NO_VAL ? details->max_nodes : 0;
	if (details->num_tasks == 1)
		request->max_nodes = 1;
	request->per_node = (struct gpub_room){
		.gpus = asked->per_node,
		.cpus = cpus_a_node(details, request->nodes),
	};
	if (!accounts_for_memory(job) || memory == NO_VAL64)
		return;
	if (memory & MEM_PER_CPU)
		memory = (memory & ~MEM_PER_CPU) * request->per_node.cpus;
	request->per_node.memory = memory;
}

/* ---- where ---- */

/* Features that are all needed. Other expressions only Slurm understands. */
static void need_features(bitstr_t *nodes, const struct job_details *details)
{
	ListIterator iterator;
	job_feature_t *feature;
	bool plain = true;

	if (!details->feature_list)
		return;
	iterator = list_iterator_create(details->feature_list);
	while ((feature = list_next(iterator)))
		plain = plain && !feature->count && !feature->paren && feature->node_bitmap_avail &&
			(feature->op_code == FEATURE_OP_AND || feature->op_code == FEATURE_OP_END);
	list_iterator_reset(iterator);
	while (plain && (feature = list_next(iterator)))
		bit_and(nodes, feature->node_bitmap_avail);
	list_iterator_destroy(iterator);
}

/* While slurmctld places a job, avail_node_bitmap lacks the nodes that are
 * reserved for others. */
static bitstr_t *usable_nodes(const job_record_t *job)
{
	const struct job_details *details = job->details;
	bitstr_t *nodes = bit_copy(job->part_ptr->node_bitmap);

	bit_and(nodes, avail_node_bitmap);
	if (details->exc_node_bitmap)
		bit_and_not(nodes, details->exc_node_bitmap);
	if (job->resv_ptr && job->resv_ptr->node_bitmap)
		bit_and(nodes, job->resv_ptr->node_bitmap);
	need_features(nodes, details);
	return nodes;
}

struct node_gpus {
	const char *type;
	int64_t free;
};

static bool same_type(const char *a, const char *b)
{
	return !a || !b || !strcasecmp(a, b);
}

static int free_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_node_state_t *node = gres->gres_data;
	struct node_gpus *gpus = arg;

	if (!is_gpu(gres) || node->no_consume)
		return 0;
	if (!gpus->type || !node->type_cnt) {
		gpus->free += (int64_t)node->gres_cnt_avail - (int64_t)node->gres_cnt_alloc;
		return 0;
	}
	for (uint16_t i = 0; i < node->type_cnt; i++)
		if (!xstrcasecmp(node->type_name[i], gpus->type))
			gpus->free += (int64_t)node->type_cnt_avail[i] - (int64_t)node->type_cnt_alloc[i];
	return 0;
}

static int match_type(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_node_state_t *node = gres->gres_data;
	const char *type = arg;

	if (!is_gpu(gres))
		return 0;
	for (uint16_t i = 0; i < node->type_cnt; i++)
		if (!xstrcasecmp(node->type_name[i], type))
			return 1;
	return !node->type_cnt;
}

static bool has_type(const node_record_t *node, const char *type)
{
	return !type || (node->gres_list && list_find_first_ro(node->gres_list, match_type, (void *)type));
}

static bool read_nodes(struct placing *placing, const bitstr_t *usable, const char *type)
{
	uint32_t count = 0;

	if (!grow(&placing->node_of, &placing->node_of_room, node_record_count, sizeof(*placing->node_of)) ||
	    !grow(&placing->free, &placing->node_room, bit_set_count((bitstr_t *)usable), sizeof(*placing->free)))
		return false;
	memset(placing->node_of, 0, node_record_count * sizeof(*placing->node_of));
	for (int i = 0; i < node_record_count; i++) {
		const node_record_t *node = node_record_table_ptr[i];
		struct node_gpus gpus = { .type = type };

		if (!node || !bit_test((bitstr_t *)usable, i) || !has_type(node, type))
			continue;
		if (node->gres_list)
			list_for_each_ro(node->gres_list, free_gpus, &gpus);
		placing->free[count++] = (struct gpub_room){
			.gpus = gpus.free,
			.cpus = node->cpus_efctv ? node->cpus_efctv : node->cpus,
			.memory = (int64_t)(node->config_ptr->real_memory - node->mem_spec_limit),
		};
		placing->node_of[i] = count;
	}
	placing->bridge.node_count = count;
	return count > 0;
}

/* ---- what others hold ---- */

int64_t run_start(const job_record_t *job)
{
	return job->resize_time > job->start_time ? job->resize_time : job->start_time;
}

/* The GPUs of a job. Nearly always they are one entry, and nothing has to be looked
 * for on each of its nodes. */
struct held {
	const char *type;	     /* that counts; NULL if any */
	const gres_job_state_t *only; /* entry of that type; NULL if there are several */
	uint32_t entries;
	uint32_t node; /* of the job's own */
	int64_t gpus;  /* there */
	uint64_t total;
};

static int64_t gpus_on(const gres_job_state_t *gpus, uint32_t node)
{
	return gpus->gres_cnt_node_alloc && node < gpus->node_cnt ? (int64_t)gpus->gres_cnt_node_alloc[node] : 0;
}

static int all_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *gpus = gres->gres_data;
	struct held *held = arg;

	if (!is_gpu(gres))
		return 0;
	if (gpus->total_gres != NO_CONSUME_VAL64)
		held->total += gpus->total_gres;
	if (same_type(gpus->type_name, held->type))
		held->only = held->entries++ ? NULL : gpus;
	return 0;
}

static int held_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *gpus = gres->gres_data;
	struct held *held = arg;

	if (is_gpu(gres) && same_type(gpus->type_name, held->type))
		held->gpus += gpus_on(gpus, held->node);
	return 0;
}

static struct gpub_room room_held(const job_record_t *job, struct held *held, uint32_t node, bool memory)
{
	const struct job_resources *resources = job->job_resrcs;
	struct gpub_room room = { 0 };

	held->node = node;
	held->gpus = held->only ? gpus_on(held->only, node) : 0;
	if (held->entries > 1)
		list_for_each_ro(job->gres_list_alloc, held_gpus, held);
	room.gpus = held->gpus;
	if (resources->cpus)
		room.cpus = resources->cpus[node];
	if (memory && resources->memory_allocated)
		room.memory = (int64_t)resources->memory_allocated[node];
	return room;
}

/* A job that Slurm suspends itself or that is ending makes no room; nor does one
 * within a reservation for a request from outside, since the nodes stay reserved. */
static bool may_be_evicted(const job_record_t *job, const job_record_t *request)
{
	return (IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job)) && !IS_JOB_COMPLETING(job) && job->details &&
	       preempt_mode(job) != PREEMPT_MODE_OFF && (!job->resv_ptr || job->resv_ptr == request->resv_ptr);
}

static bool add_occupant(struct placing *placing, const job_record_t *job, uint64_t gpus)
{
	struct gpub_placing *bridge = &placing->bridge;
	struct gpub_occupant *occupant;

	if (!grow(&placing->occupants, &placing->occupant_room, bridge->occupant_count + 1, sizeof(*placing->occupants)))
		return false;
	occupant = &placing->occupants[bridge->occupant_count++];
	*occupant = (struct gpub_occupant){
		.job_id = job->job_id,
		.gpus = gpus,
		.het_job_id = job->het_job_id,
		.start = run_start(job),
		.nice = (int64_t)job->details->nice - NICE_OFFSET,
		.qos_priority = job->qos_ptr ? job->qos_ptr->priority : 0,
	};
	return true;
}

static bool add_piece(struct placing *placing, uint32_t node, const struct gpub_room *held)
{
	struct gpub_placing *bridge = &placing->bridge;

	if (!grow(&placing->pieces, &placing->piece_room, bridge->piece_count + 1, sizeof(*placing->pieces)))
		return false;
	placing->pieces[bridge->piece_count++] =
		(struct gpub_piece){ .occupant = bridge->occupant_count - 1, .node = node, .held = *held };
	return true;
}

/* Has a job whose first node this is any in the partition? */
static bool stands_in(const job_record_t *job, int first, const part_record_t *part)
{
	return bit_test(part->node_bitmap, first) ||
	       (job->job_resrcs->nhosts > 1 && bit_overlap_any(job->job_resrcs->node_bitmap, part->node_bitmap));
}

/* All jobs take room from their nodes; those that may be evicted are told of,
 * with what they hold of nodes that matter. */
static bool read_job(struct placing *placing, const job_record_t *job, const job_record_t *request, const char *type)
{
	const struct job_resources *resources = job->job_resrcs;
	bool candidate = may_be_evicted(job, request), memory = placing->request.per_node.memory;
	struct held gpus = { .type = type };
	uint32_t node = 0;
	int first;

	if (!resources || !resources->node_bitmap || (first = bit_ffs(resources->node_bitmap)) < 0)
		return true;
	candidate = candidate && (job->het_job_id || stands_in(job, first, request->part_ptr));
	if (job->gres_list_alloc)
		list_for_each_ro(job->gres_list_alloc, all_gpus, &gpus);
	if (candidate && !add_occupant(placing, job, gpus.total))
		return false;
	/* Most have one node: looking for the last one as well would take half of the time. */
	for (int i = first; node < resources->nhosts && i < node_record_count; i++) {
		struct gpub_room held, *room;

		if (!bit_test(resources->node_bitmap, i))
			continue;
		if (!placing->node_of[i]) {
			node++;
			continue;
		}
		held = room_held(job, &gpus, node++, memory);
		room = &placing->free[placing->node_of[i] - 1];
		room->cpus -= held.cpus; /* GPUs are counted on the node */
		room->memory -= held.memory;
		if (candidate && !add_piece(placing, placing->node_of[i] - 1, &held))
			return false;
	}
	return true;
}

/* The processor is told of the records before their turn: they lie all over memory,
 * and so does what they point to. */
#define AHEAD 8 /* jobs between the two steps */

static const job_record_t *fetch(uint32_t id)
{
	const job_record_t *job = find_job_record(id);

	if (!job)
		return NULL;
	__builtin_prefetch(&job->details);
	__builtin_prefetch(&job->gres_list_alloc);
	__builtin_prefetch(&job->job_resrcs);
	__builtin_prefetch(&job->job_state);
	__builtin_prefetch(&job->qos_ptr);
	__builtin_prefetch(&job->resize_time);
	__builtin_prefetch(&job->start_time);
	return job;
}

static void fetch_more(const job_record_t *job)
{
	if (!job)
		return;
	__builtin_prefetch(job->gres_list_alloc);
	if (job->details) {
		__builtin_prefetch(&job->details->nice);
		__builtin_prefetch(&job->details->requeue);
	}
	if (job->job_resrcs) {
		__builtin_prefetch(&job->job_resrcs->cpus);
		__builtin_prefetch(&job->job_resrcs->node_bitmap);
	}
}

static bool read_jobs(struct placing *placing, const job_record_t *request, const char *type)
{
	const job_record_t *coming[2 * AHEAD] = { NULL };
	uint32_t count;
	const uint32_t *ids = running_ids(&count);

	for (uint32_t i = 0; i < count + 2 * AHEAD; i++) {
		const job_record_t *job = coming[i % (2 * AHEAD)];

		coming[i % (2 * AHEAD)] = i < count ? fetch(ids[i]) : NULL;
		fetch_more(coming[(i + AHEAD) % (2 * AHEAD)]);
		if (job && job != request && !read_job(placing, job, request, type))
			return false;
	}
	return placing->bridge.occupant_count > 0;
}

bool placing_read(struct placing *placing, const struct gpub_peer *peer, const job_record_t *request, time_t now)
{
	struct gpub_placing *bridge = &placing->bridge;
	struct asked asked;
	bitstr_t *usable;
	bool found;

	memset(bridge, 0, sizeof(*bridge));
	memset(&placing->request, 0, sizeof(placing->request));
	if (!request->details || !request->part_ptr || !request->part_ptr->node_bitmap || !avail_node_bitmap ||
	    !peer->flatten(request, now, &placing->request.job) || !placing->request.job.gpus)
		return false;
	asked = read_asked(request);
	read_needs(&placing->request, request, &asked);
	usable = usable_nodes(request);
	found = read_nodes(placing, usable, asked.type) && read_jobs(placing, request, asked.type);
	FREE_NULL_BITMAP(usable);
	bridge->request = &placing->request;
	bridge->free = placing->free;
	bridge->pieces = placing->pieces;
	bridge->occupants = placing->occupants;
	return found;
}
