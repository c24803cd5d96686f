/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * gpus.c: how many GPUs a job has or asks for, and the cluster has.
 *
 * Counted from slurmctld's GRES records, which exist whether or not
 * AccountingStorageTRES names gres/gpu (without slurmdbd it cannot). Whole GPUs only: gres/shard and
 * gres/mps are GRES of their own and count none here.
 */
#include <string.h>

#include "shim.h"

struct count {
	uint64_t gpus;
	const char *type;                  /* of an allocation */
	const struct job_details *details; /* of a request */
};

static const gres_job_state_t *job_gpus(const gres_state_t *gres)
{
	return strcmp(gres->gres_name, "gpu") ? NULL : gres->gres_data;
}

static int count_allocated(void *x, void *arg)
{
	const gres_job_state_t *gpus = job_gpus(x);
	struct count *count = arg;

	if (!gpus || gpus->total_gres == NO_CONSUME_VAL64)
		return SLURM_SUCCESS;
	count->gpus += gpus->total_gres;
	if (gpus->total_gres && !count->type)
		count->type = gpus->type_name;
	return SLURM_SUCCESS;
}

/* total_gres of the records of an allocation follows every change of size and
 * stays until the record is cleared for a requeue. */
uint64_t gpus_allocated(const job_record_t *job, const char **type)
{
	struct count count = { 0 };

	if (job->gres_list_alloc)
		list_for_each_ro(job->gres_list_alloc, count_allocated, &count);
	*type = count.type;
	return count.gpus;
}

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
static int count_requested(void *x, void *arg)
{
	const gres_job_state_t *gpus = job_gpus(x);
	struct count *count = arg;
	uint64_t least, floor;

	if (!gpus || gpus->flags & GRES_NO_CONSUME)
		return SLURM_SUCCESS;
	least = gpus->gres_per_job;
	if ((floor = gpus->gres_per_node * asked_nodes(count->details)) > least)
		least = floor;
	if ((floor = gpus->gres_per_socket * asked_sockets(count->details)) > least)
		least = floor;
	if ((floor = gpus->gres_per_task * asked_tasks(count->details)) > least)
		least = floor;
	count->gpus += least;
	return SLURM_SUCCESS;
}

/* Where gres/gpu is accounted for, slurmctld has added this up itself. */
uint64_t gpus_requested(const job_record_t *job, int gpu_tres)
{
	struct count count = { .details = job->details };

	if (gpu_tres >= 0 && job->tres_req_cnt && job->tres_req_cnt[gpu_tres] < NO_CONSUME_VAL64)
		return job->tres_req_cnt[gpu_tres];
	if (job->gres_list_req && job->details)
		list_for_each_ro(job->gres_list_req, count_requested, &count);
	return count.gpus;
}

static int count_node(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_node_state_t *node;
	uint64_t *gpus = arg;

	if (strcmp(gres->gres_name, "gpu"))
		return SLURM_SUCCESS;
	node = gres->gres_data;
	if (!node->no_consume)
		*gpus += node->gres_cnt_avail;
	return SLURM_SUCCESS;
}

void gpus_of_cluster(struct gpub_cluster *cluster)
{
	const node_record_t *node;

	for (int i = 0; i < node_record_count; i++) {
		uint64_t gpus = 0;

		if (!(node = node_record_table_ptr[i]) || !node->gres_list)
			continue;
		list_for_each_ro(node->gres_list, count_node, &gpus);
		cluster->gpus_configured += gpus;
		if (gpub_node_can_run(node))
			cluster->gpus += gpus;
	}
}
