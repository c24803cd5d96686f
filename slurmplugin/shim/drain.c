/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * drain.c: jobs make room for the repair of a node.
 *
 * A node that is being drained takes no new jobs, but those that run on it may
 * do so for days. Where the policy says so (drain=requeue), such a job is
 * requeued as soon as the library says that nothing protects it any more. Only
 * jobs that can be requeued are: Slurm itself says which (--requeue, batch).
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define NODE_NAME 128

struct leaving {
	uint32_t job_id;
	char node[NODE_NAME];
};

struct list {
	bitstr_t *draining;
	struct leaving *jobs;
	uint32_t count, room;
};

/* Down nodes have no jobs for long: Slurm ends them itself. */
static bool drains(const node_record_t *node)
{
	return node && (node->node_state & NODE_STATE_DRAIN) && (node->node_state & NODE_STATE_BASE) != NODE_STATE_DOWN;
}

/* The nodes that are being drained while something runs on them; NULL if none
 * are. */
static bitstr_t *draining(void)
{
	bitstr_t *nodes = NULL;

	for (int i = 0; i < node_record_count; i++) {
		const node_record_t *node = node_record_table_ptr[i];

		if (!drains(node) || !(node->run_job_cnt || node->sus_job_cnt))
			continue;
		if (!nodes)
			nodes = bit_alloc(node_record_count);
		bit_set(nodes, i);
	}
	return nodes;
}

/* The first of the job's nodes that is being drained, or NULL. */
static const node_record_t *drained_node(const job_record_t *job)
{
	for (int i = 0; job->node_bitmap && i < node_record_count; i++)
		if (drains(node_record_table_ptr[i]) && bit_test(job->node_bitmap, i))
			return node_record_table_ptr[i];
	return NULL;
}

static bool can_leave(const job_record_t *job)
{
	return (IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job)) && !IS_JOB_COMPLETING(job) && job->batch_flag &&
	       job->details && job->details->requeue;
}

static int note(void *x, void *arg)
{
	const job_record_t *job = x;
	struct list *list = arg;
	const node_record_t *node;

	if (!can_leave(job) || !job->node_bitmap || !bit_overlap_any(job->node_bitmap, list->draining) ||
	    !(node = drained_node(job)))
		return SLURM_SUCCESS;
	if (list->count == list->room) {
		struct leaving *more = realloc(list->jobs, (list->room + 64) * sizeof(*more));

		if (!more)
			return -1; /* these first */
		list->jobs = more;
		list->room += 64;
	}
	list->jobs[list->count].job_id = job->job_id;
	snprintf(list->jobs[list->count++].node, NODE_NAME, "%s", node->name);
	return SLURM_SUCCESS;
}

static void look(struct list *list)
{
	const slurmctld_lock_t locks = { .job = READ_LOCK, .node = READ_LOCK };

	lock_slurmctld(locks);
	if ((list->draining = draining())) {
		list_for_each_ro(job_list, note, list);
		FREE_NULL_BITMAP(list->draining);
	}
	unlock_slurmctld(locks);
}

/* Of the jobs that were noted, those that nothing protects stay in the list. */
static void ask(struct list *list, int64_t now_ms)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < list->count; i++)
		if (engine->may_leave(list->jobs[i].job_id, now_ms) == 1)
			list->jobs[kept++] = list->jobs[i];
	list->count = kept;
}

/* Needs the job and node write locks. */
static void leave(const struct leaving *leaving, int64_t now_ms)
{
	static uint32_t failed; /* the last that could not be; told of once */
	job_record_t *job = find_job_record(leaving->job_id);
	const node_record_t *node;
	char *why;
	int rc;

	if (!job || !can_leave(job) || !(node = drained_node(job)))
		return;
	why = xstrdup(node->reason ? node->reason : "no reason given");
	job_remark(job, "requeued from node %s, which is drained (%s)", leaving->node, why);
	rc = job_requeue(slurm_conf.slurm_user_id, leaving->job_id, NULL, false, JOB_RUNNING);
	if (rc) {
		if (failed != leaving->job_id)
			error("gpubudget: JobId=%u on node %s, which is drained (%s), can't be requeued: %s", leaving->job_id,
			      leaving->node, why, slurm_strerror(rc));
		failed = leaving->job_id;
	} else {
		info("gpubudget: JobId=%u is requeued from node %s, which is drained (%s): nothing protects it any more",
		     leaving->job_id, leaving->node, why);
		engine->left(leaving->job_id, leaving->node, now_ms);
	}
	xfree(why);
}

void drain_pass(int64_t now_ms)
{
	const slurmctld_lock_t locks = { .job = WRITE_LOCK, .node = WRITE_LOCK, .fed = READ_LOCK };
	struct list list = { 0 };

	/* A symbol that this slurmctld lacks; or nobody wants it. */
	if (!job_requeue || engine->drains() != 1)
		return;
	look(&list);
	ask(&list, now_ms);
	if (list.count) {
		lock_slurmctld(locks);
		for (uint32_t i = 0; i < list.count; i++)
			leave(&list.jobs[i], now_ms);
		unlock_slurmctld(locks);
	}
	free(list.jobs);
}
