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

void placing_free(struct placing *placing)
{
	free(placing->free);
	free(placing->pieces);
	free(placing->occupants);
	free(placing->node_of);
	memset(placing, 0, sizeof(*placing));
}

/* ---- what is asked for ---- */

struct asked {
	uint64_t per_node;     /* GPUs */
	const char *type;      /* of which; NULL if any */
	uint32_t type_id;      /* Slurm's number of it */
	bool counted;          /* per_node says all */
	uint64_t tasks_a_node; /* 0 if unknown */
};

static int asked_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *gpus = gres->gres_data;
	struct asked *asked = arg;

	if (!gres_is_gpu(gres))
		return 0;
	asked->type = asked->type ? "" : gpus->type_name; /* two types: any */
	asked->type_id = gpus->type_id;
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
	if (!asked.type || !*asked.type) {
		asked.type = NULL;
		asked.type_id = 0;
	}
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
	het_limit_nodes(nodes, job);
	return nodes;
}

/* A job that names as many nodes as it needs gets those. */
static void need_nodes(bitstr_t *nodes, const job_record_t *job, const struct gpub_request *request)
{
	bitstr_t *named = job->details->req_node_bitmap;

	if (named && request->per_node.gpus && (uint32_t)bit_set_count(named) >= request->nodes)
		bit_and(nodes, named);
}

struct node_gpus {
	const char *type;
	int64_t free;
};

static int free_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_node_state_t *node = gres->gres_data;
	struct node_gpus *gpus = arg;

	if (!gres_is_gpu(gres) || node->no_consume)
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

	if (!gres_is_gpu(gres))
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

	if (!array_grow(&placing->node_of, &placing->node_of_room, node_record_count, sizeof(*placing->node_of)) ||
	    !array_grow(&placing->free, &placing->node_room, bit_set_count((bitstr_t *)usable), sizeof(*placing->free)))
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

/* A job that Slurm suspends itself or that is ending makes no room; nor does one
 * within a reservation for a request from outside, since the nodes stay reserved. */
static bool may_be_evicted(const job_record_t *job, const struct run *run, const job_record_t *request)
{
	return !run->keeps && (IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job)) && !IS_JOB_COMPLETING(job) &&
	       (!run->resv || run->resv == request->resv_ptr);
}

static bool add_occupant(struct placing *placing, const struct run *run)
{
	struct gpub_placing *bridge = &placing->bridge;

	if (!array_grow(&placing->occupants, &placing->occupant_room, bridge->occupant_count + 1, sizeof(*placing->occupants)))
		return false;
	placing->occupants[bridge->occupant_count++] = (struct gpub_occupant){
		.job_id = run->job_id,
		.gpus = run->gpus,
		.het_job_id = run->het_job_id,
		.start = run->start,
		.nice = run->nice,
		.qos_priority = run->qos_priority,
	};
	return true;
}

static bool add_piece(struct placing *placing, uint32_t node, const struct gpub_room *held)
{
	struct gpub_placing *bridge = &placing->bridge;

	if (!array_grow(&placing->pieces, &placing->piece_room, bridge->piece_count + 1, sizeof(*placing->pieces)))
		return false;
	placing->pieces[bridge->piece_count++] =
		(struct gpub_piece){ .occupant = bridge->occupant_count - 1, .node = node, .held = *held };
	return true;
}

/* What a request can do with that: 0 for GPUs of another type than it asks for. */
static struct gpub_room room_held(const struct run_piece *piece, uint32_t type, bool memory)
{
	return (struct gpub_room){
		.gpus = !type || !piece->gpu_type || piece->gpu_type == type ? (int64_t)piece->gpus : 0,
		.cpus = piece->cpus,
		.memory = memory ? piece->memory : 0,
	};
}

static bool stands_in(const struct run *run, const struct run_piece *pieces, const bitstr_t *nodes)
{
	for (uint32_t i = 0; i < run->nodes; i++)
		if (bit_test((bitstr_t *)nodes, pieces[i].node))
			return true;
	return false;
}

/* All jobs take room from their nodes; those that may be evicted are told of,
 * with what they hold of nodes that matter. */
static bool read_run(struct placing *placing, const job_record_t *job, const struct run *run, const struct run_piece *pieces,
		     const job_record_t *request, uint32_t type)
{
	bool candidate = may_be_evicted(job, run, request), memory = placing->request.per_node.memory;

	if (!job->job_resrcs || !run->nodes)
		return true;
	candidate = candidate && (run->het_job_id || stands_in(run, pieces, request->part_ptr->node_bitmap));
	if (candidate && !add_occupant(placing, run))
		return false;
	for (uint32_t i = 0; i < run->pieces; i++) {
		uint32_t node = placing->node_of[pieces[i].node];
		struct gpub_room held, *room;

		if (!node)
			continue;
		held = room_held(&pieces[i], type, memory);
		room = &placing->free[node - 1];
		room->cpus -= held.cpus; /* GPUs are counted on the node */
		room->memory -= held.memory;
		if (candidate && !add_piece(placing, node - 1, &held))
			return false;
	}
	return true;
}

static bool read_runs(struct placing *placing, const job_record_t *request, uint32_t type)
{
	const struct run_piece *pieces;
	uint32_t count;
	const struct run *runs = running_runs(&count, &pieces);

	for (uint32_t i = 0; i < count; i++) {
		const job_record_t *job = find_job_record(runs[i].job_id);

		if (i + AHEAD < count)
			job_fetch(runs[i + AHEAD].job);
		if (job && job != request && !read_run(placing, job, &runs[i], pieces + runs[i].first, request, type))
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
	placing->request.job.het_job_id = request->het_job_id; /* which jobs that pend are not flattened with */
	asked = read_asked(request);
	read_needs(&placing->request, request, &asked);
	usable = usable_nodes(request);
	need_nodes(usable, request, &placing->request);
	found = read_nodes(placing, usable, asked.type) && read_runs(placing, request, asked.type_id);
	FREE_NULL_BITMAP(usable);
	bridge->request = &placing->request;
	bridge->free = placing->free;
	bridge->pieces = placing->pieces;
	bridge->occupants = placing->occupants;
	return found;
}
