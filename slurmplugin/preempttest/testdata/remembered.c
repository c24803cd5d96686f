/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * remembered.c: is what the plugin remembers of runs what it would read anew?
 *
 * usage: remembered SEED STEPS
 *
 * Jobs on a few nodes start, end, are requeued, resized, altered and forgotten at
 * random, and nodes are numbered anew. After each step a request is read twice: by the
 * plugin as it is, and by a copy that begins without any memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preempt.h"

#define NODES 12
#define JOBS 40
#define MOST_NODES 4 /* of a job */
#define TYPES 3      /* of GPUs; the first has no name */

extern bool fresh_placing_read(struct placing *placing, const struct gpub_peer *peer, const job_record_t *request, time_t now);
extern void fresh_running_look(time_t now);
extern void fresh_running_free(void);
extern void fresh_placing_free(struct placing *placing);

bitstr_t *avail_node_bitmap;
List job_list;
time_t last_job_update;

static job_record_t *records[JOBS + 1]; /* by id; NULL: Slurm has forgotten it */
static time_t now = 1000000;
static part_record_t partitions[2];
static slurmctld_resv_t reservation;
static slurmdb_qos_rec_t qos[2] = { { .priority = 1 }, { .priority = 7, .preempt_mode = PREEMPT_MODE_CANCEL } };
static char *types[TYPES] = { NULL, "big", "small" };

job_record_t *find_job_record(uint32_t id)
{
	return id <= JOBS ? records[id] : NULL;
}

/* As preempt_gpubudget.c has it, but for what depends on slurm.conf. */
uint16_t preempt_mode(const job_record_t *job)
{
	if (job->part_ptr->preempt_mode != NO_VAL16)
		return job->part_ptr->preempt_mode;
	return job->details->requeue ? PREEMPT_MODE_REQUEUE : PREEMPT_MODE_CANCEL;
}

/* No het job asks here. */
void het_limit_nodes(bitstr_t *nodes, const job_record_t *job)
{
	(void)nodes, (void)job;
}

static bool flatten(const job_record_t *job, time_t at, struct gpub_job *out)
{
	(void)at;
	*out = (struct gpub_job){ .job_id = job->job_id, .gpus = 1 };
	return true;
}

static const struct gpub_peer peer = { .abi = GPUB_ABI, .flatten = flatten };

static uint32_t draw(uint32_t below)
{
	static uint64_t state;
	extern uint64_t seed;

	if (!state)
		state = seed * 2654435769u + 1;
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

uint64_t seed;

static void *zeroed(size_t size)
{
	void *x = calloc(1, size);

	if (!x)
		abort();
	return x;
}

static uint32_t type_id(uint32_t type)
{
	return types[type] ? gres_build_id(types[type]) : 0;
}

/* ---- nodes ---- */

static node_record_t *make_node(void)
{
	node_record_t *node = zeroed(sizeof(*node));
	gres_node_state_t *has = zeroed(sizeof(*has));
	gres_state_t *gres = zeroed(sizeof(*gres));

	has->gres_cnt_avail = 8;
	gres->gres_name = "gpu";
	gres->plugin_id = gres_build_id("gpu");
	gres->gres_data = has;
	node->cpus = 64;
	node->config_ptr = zeroed(sizeof(*node->config_ptr));
	node->config_ptr->real_memory = 100000;
	node->gres_list = list_create(NULL);
	list_append(node->gres_list, gres);
	return node;
}

static void make_nodes(void)
{
	node_record_count = NODES;
	node_record_table_ptr = zeroed(NODES * sizeof(*node_record_table_ptr));
	avail_node_bitmap = bit_alloc(NODES);
	for (int i = 0; i < NODES; i++)
		node_record_table_ptr[i] = make_node();
	bit_set_all(avail_node_bitmap);
	for (int p = 0; p < 2; p++) {
		partitions[p].node_bitmap = bit_copy(avail_node_bitmap);
		partitions[p].preempt_mode = NO_VAL16;
	}
	bit_nclear(partitions[1].node_bitmap, 0, NODES / 2);
}

/* ---- jobs ---- */

static void add_gpus(job_record_t *job, uint32_t type)
{
	gres_job_state_t *has = zeroed(sizeof(*has));
	gres_state_t *gres = zeroed(sizeof(*gres));

	has->type_name = types[type];
	has->type_id = type_id(type);
	has->node_cnt = job->job_resrcs->nhosts;
	has->gres_cnt_node_alloc = zeroed(has->node_cnt * sizeof(uint64_t));
	for (uint32_t i = 0; i < has->node_cnt; i++)
		has->total_gres += has->gres_cnt_node_alloc[i] = draw(4);
	gres->gres_name = "gpu";
	gres->plugin_id = gres_build_id("gpu");
	gres->gres_data = has;
	list_append(job->gres_list_alloc, gres);
}

static int free_gpus(void *x, void *arg)
{
	gres_state_t *gres = x;
	gres_job_state_t *has = gres->gres_data;

	(void)arg;
	free(has->gres_cnt_node_alloc);
	free(has);
	free(gres);
	return 0;
}

static void release(job_record_t *job)
{
	if (!job->job_resrcs)
		return;
	list_for_each(job->gres_list_alloc, free_gpus, NULL);
	list_destroy(job->gres_list_alloc);
	job->gres_list_alloc = NULL;
	bit_free(job->job_resrcs->node_bitmap);
	free(job->job_resrcs->cpus);
	free(job->job_resrcs->memory_allocated);
	free(job->job_resrcs);
	job->job_resrcs = NULL;
}

static void occupy(job_record_t *job)
{
	struct job_resources *resources = job->job_resrcs = zeroed(sizeof(*resources));
	uint32_t nodes = 1 + draw(MOST_NODES);

	resources->node_bitmap = bit_alloc(NODES);
	while (resources->nhosts < nodes) {
		uint32_t node = draw(NODES);

		resources->nhosts += !bit_test(resources->node_bitmap, node);
		bit_set(resources->node_bitmap, node);
	}
	resources->cpus = zeroed(nodes * sizeof(*resources->cpus));
	resources->memory_allocated = zeroed(nodes * sizeof(*resources->memory_allocated));
	for (uint32_t i = 0; i < nodes; i++) {
		resources->cpus[i] = draw(16);
		resources->memory_allocated[i] = draw(1000);
	}
	job->gres_list_alloc = list_create(NULL);
	add_gpus(job, draw(TYPES));
	if (!draw(3))
		add_gpus(job, draw(TYPES));
}

static void start(job_record_t *job)
{
	release(job);
	occupy(job);
	job->job_state = JOB_RUNNING;
	job->start_time = now;
	job->resize_time = 0;
}

static void make_job(uint32_t id)
{
	job_record_t *job = records[id] = zeroed(sizeof(*job));

	job->job_id = id;
	job->part_ptr = &partitions[draw(2)];
	job->qos_ptr = &qos[draw(2)];
	job->details = zeroed(sizeof(*job->details));
	job->details->nice = NICE_OFFSET;
	job->details->min_nodes = 1;
	job->details->max_nodes = NO_VAL;
	job->details->num_tasks = 1;
	job->job_state = JOB_PENDING;
	list_append(job_list, job);
}

static int is(void *x, void *key)
{
	return x == key;
}

static void forget(uint32_t id)
{
	job_record_t *job = records[id];

	release(job);
	list_delete_all(job_list, is, job);
	records[id] = NULL;
	free(job->details);
	memset(job, 0xa5, sizeof(*job)); /* what is read of it now will tell */
	free(job);
}

/* It keeps a part of its nodes, or gets others. */
static void resize(job_record_t *job)
{
	release(job);
	occupy(job);
	job->resize_time = now;
}

static void alter(job_record_t *job)
{
	job->details->nice = NICE_OFFSET + draw(5);
	job->details->requeue = draw(2);
	job->qos_ptr = &qos[draw(2)];
	job->part_ptr = &partitions[draw(2)];
	job->resv_ptr = draw(4) ? NULL : &reservation;
}

static void change(void)
{
	uint32_t id = 1 + draw(JOBS);
	job_record_t *job = records[id];

	if (!job) {
		make_job(id);
		return;
	}
	switch (draw(8)) {
	case 0:
	case 1:
	case 2:
		if (!job->job_resrcs)
			start(job);
		return;
	case 3:
		alter(job);
		return;
	case 4:
		if (job->job_resrcs)
			job->job_state = draw(2) ? JOB_SUSPENDED : JOB_COMPLETE | JOB_COMPLETING;
		return;
	case 5:
		if (job->job_resrcs && IS_JOB_RUNNING(job))
			resize(job);
		return;
	case 6: /* requeued */
		release(job);
		job->job_state = JOB_PENDING;
		return;
	case 7:
		if (!draw(3))
			forget(id);
		return;
	}
}

/* scontrol reconfigure: all that runs has other numbers. */
static void renumber(void)
{
	slurm_conf.last_update = now;
	for (uint32_t id = 1; id <= JOBS; id++) {
		bitstr_t *nodes = records[id] && records[id]->job_resrcs ? records[id]->job_resrcs->node_bitmap : NULL;
		bitstr_t *old;

		if (!nodes)
			continue;
		old = bit_copy(nodes);
		bit_clear_all(nodes);
		for (int i = 0; i < NODES; i++)
			if (bit_test(old, i))
				bit_set(nodes, (i + 1) % NODES);
		bit_free(old);
	}
}

/* ---- the request ---- */

static job_record_t *request(void)
{
	static job_record_t *job;
	static gres_job_state_t *wants;
	static gres_state_t gres = { .gres_name = "gpu" };
	uint32_t type = draw(TYPES);

	if (!job) {
		job = zeroed(sizeof(*job));
		wants = zeroed(sizeof(*wants));
		job->details = zeroed(sizeof(*job->details));
		job->details->min_nodes = 1;
		job->details->max_nodes = NO_VAL;
		job->details->num_tasks = 1;
		job->job_id = JOBS + 1;
		gres.plugin_id = gres_build_id("gpu");
		gres.gres_data = wants;
		job->gres_list_req = list_create(NULL);
		list_append(job->gres_list_req, &gres);
	}
	wants->gres_per_node = 1;
	wants->type_name = types[type];
	wants->type_id = type_id(type);
	job->part_ptr = &partitions[draw(2)];
	job->resv_ptr = draw(3) ? NULL : &reservation;
	return job;
}

static bool same(const char *what, const void *a, const void *b, size_t size)
{
	if (!size || !memcmp(a, b, size))
		return true;
	fprintf(stderr, "%s differ\n", what);
	return false;
}

static bool same_placing(const struct gpub_placing *a, const struct gpub_placing *b)
{
	if (a->node_count != b->node_count || a->occupant_count != b->occupant_count || a->piece_count != b->piece_count) {
		fprintf(stderr, "%u nodes, %u occupants, %u pieces; anew %u, %u, %u\n", a->node_count, a->occupant_count,
			a->piece_count, b->node_count, b->occupant_count, b->piece_count);
		return false;
	}
	return same("rooms", a->free, b->free, a->node_count * sizeof(*a->free)) &&
	       same("occupants", a->occupants, b->occupants, a->occupant_count * sizeof(*a->occupants)) &&
	       same("pieces", a->pieces, b->pieces, a->piece_count * sizeof(*a->pieces));
}

int main(int argc, char **argv)
{
	struct placing kept = { 0 }, anew = { 0 };
	uint64_t steps, occupants = 0, pieces = 0;

	if (argc != 3)
		return 2;
	seed = strtoull(argv[1], NULL, 10);
	steps = strtoull(argv[2], NULL, 10);
	slurm_conf.select_type_param = CR_MEMORY;
	job_list = list_create(NULL);
	make_nodes();
	for (uint64_t i = 0; i < steps; i++) {
		const job_record_t *by = request();
		bool found;

		for (uint32_t n = draw(6); n > 0; n--)
			change();
		if (!draw(50))
			renumber();
		now++;
		running_look(now);
		found = placing_read(&kept, &peer, by, now);
		fresh_running_free();
		fresh_running_look(now);
		if (found != fresh_placing_read(&anew, &peer, by, now) || !same_placing(&kept.bridge, &anew.bridge)) {
			fprintf(stderr, "after %lu steps\n", (unsigned long)i);
			return 1;
		}
		occupants += kept.bridge.occupant_count;
		pieces += kept.bridge.piece_count;
	}
	running_free();
	fresh_running_free();
	placing_free(&kept);
	fresh_placing_free(&anew);
	printf("%lu %lu\n", (unsigned long)occupants, (unsigned long)pieces);
	return 0;
}
