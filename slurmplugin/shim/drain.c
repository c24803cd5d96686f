/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * drain.c: jobs make room for the repair of a node.
 *
 * A node that is being drained takes no new jobs, but those that run on it may
 * do so for days. Where the policy says so (drain=requeue), such a job is
 * requeued as soon as the library says that nothing protects it any more. Only
 * jobs that can be requeued are: Slurm itself says which (--requeue, batch).
 *
 * A het job is requeued by its leader's id, wherever that component runs, and
 * all components with it. So it goes only if each of them can.
 *
 * Where Slurm would give it a grace time, a job is told first, and goes when that
 * is over.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

struct leaving {
	uint32_t job_id;     /* of a het job its leader's */
	uint32_t het_job_id; /* 0 if no het job */
	time_t start;        /* of the run */
	time_t told;         /* that it is to go; 0: not yet */
	bool failed;         /* it could not be requeued, and the log has told so */
};

struct list {
	bitstr_t *draining;
	struct leaving *jobs;
	uint32_t count, room;
};

/* Those of the last pass that are still there: in their grace time, or because
 * they could not be requeued. */
static struct list remaining;

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

/* A job that is preempted has its grace time, and then Slurm ends it itself. One
 * that gang scheduling has suspended counts as preempted too, but goes on. */
static bool is_preempted(const job_record_t *job)
{
	return job->preempt_time && job->end_time <= job->preempt_time + (time_t)grace_time(job);
}

static bool can_leave(const job_record_t *job)
{
	return (IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job)) && !IS_JOB_COMPLETING(job) && !is_preempted(job);
}

/* A component that has ended, by scancel, keeps none of the others. */
static int stays(void *x, void *key)
{
	const job_record_t *job = x;

	(void)key;
	return !requeuable(job) || !(can_leave(job) || IS_JOB_COMPLETED(job));
}

static int stands_on_drained(void *x, void *key)
{
	const job_record_t *job = x;

	(void)key;
	return !IS_JOB_COMPLETED(job) && drained_node(job);
}

/* Whether all of a job can leave; it is no component of a het job but the leader. */
static bool whole_can_leave(const job_record_t *job)
{
	if (!can_leave(job) || !requeuable(job))
		return false;
	return !job->het_job_list || !list_find_first(job->het_job_list, stays, NULL);
}

/* The node that it has to leave, or NULL. */
static const node_record_t *node_to_leave(const job_record_t *job)
{
	if (job->het_job_list)
		job = list_find_first(job->het_job_list, stands_on_drained, NULL);
	return job ? drained_node(job) : NULL;
}

static const struct leaving *listed(const struct list *list, const job_record_t *job)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->jobs[i].job_id == job->job_id && list->jobs[i].start == job->start_time)
			return &list->jobs[i];
	return NULL;
}

static int note(void *x, void *arg)
{
	const job_record_t *job = x;
	struct list *list = arg;

	if (!can_leave(job) || !job->node_bitmap || !bit_overlap_any(job->node_bitmap, list->draining))
		return SLURM_SUCCESS;
	if (job->het_job_id && (!(job = find_job_record(job->het_job_id)) || listed(list, job)))
		return SLURM_SUCCESS;
	if (!whole_can_leave(job))
		return SLURM_SUCCESS;
	if (list->count == list->room) {
		struct leaving *more = realloc(list->jobs, (list->room + 64) * sizeof(*more));

		if (!more)
			return -1; /* these first */
		list->jobs = more;
		list->room += 64;
	}
	list->jobs[list->count++] = (struct leaving){
		.job_id = job->job_id,
		.het_job_id = job->het_job_id,
		.start = job->start_time,
	};
	return SLURM_SUCCESS;
}

static void look(struct list *list)
{
	assoc_mgr_lock_t qos_lock = { .qos = READ_LOCK };
	const slurmctld_lock_t locks = { .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK };

	lock_slurmctld(locks);
	if ((list->draining = draining())) {
		assoc_mgr_lock(&qos_lock);
		list_for_each_ro(job_list, note, list);
		assoc_mgr_unlock(&qos_lock);
		FREE_NULL_BITMAP(list->draining);
	}
	unlock_slurmctld(locks);
}

/* Of the jobs that were noted, those that nothing protects stay in the list. */
static void ask(struct list *list, int64_t now_ms)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < list->count; i++)
		if (engine->may_leave(list->jobs[i].job_id, list->jobs[i].het_job_id, now_ms) == 1)
			list->jobs[kept++] = list->jobs[i];
	list->count = kept;
}

/* Why and whence a job leaves. */
struct leave {
	const char *node;
	char *why;
	int64_t now_ms;
};

/* For the owner of the job, or of a component of it. */
static int has_left(void *x, void *arg)
{
	const struct leave *leave = arg;
	job_record_t *job = x;

	job_remark(job, "requeued from node %s, which is drained (%s)", leave->node, leave->why);
	engine->left(job->job_id, leave->node, leave->now_ms);
	return SLURM_SUCCESS;
}

static void all_have_left(job_record_t *job, struct leave *leave)
{
	info("gpubudget: JobId=%u is requeued from node %s, which is drained (%s): nothing protects it any more",
	     job->job_id, leave->node, leave->why);
	if (job->het_job_list)
		list_for_each(job->het_job_list, has_left, leave);
	else
		has_left(job, leave);
}

/* As was noted, under other locks: the node that the job has to leave, or NULL;
 * and its grace time. */
static const node_record_t *still_to_leave(job_record_t *job, uint32_t *grace)
{
	assoc_mgr_lock_t qos_lock = { .qos = READ_LOCK };
	bool can;

	if (!job)
		return NULL;
	assoc_mgr_lock(&qos_lock);
	if ((can = whole_can_leave(job)))
		*grace = notice_due(job);
	assoc_mgr_unlock(&qos_lock);
	return can ? node_to_leave(job) : NULL;
}

/* Whether it stays for its grace time, of which it is told now if it wasn't. */
static bool is_in_grace(struct leaving *leaving, job_record_t *job, uint32_t grace, const struct leave *leave)
{
	const time_t now = (time_t)(leave->now_ms / 1000);

	if (!grace)
		return false;
	if (leaving->told)
		return now < leaving->told + (time_t)grace;
	notice_give(job);
	leaving->told = now;
	info("gpubudget: JobId=%u on node %s, which is drained (%s), is told to go: it has %u seconds",
	     job->job_id, leave->node, leave->why, grace);
	return true;
}

/* Whether the job stays for now. */
static bool requeue(struct leaving *leaving, job_record_t *job, uint32_t grace, struct leave *leave)
{
	int rc;

	if (is_in_grace(leaving, job, grace, leave))
		return true;
	if (!(rc = job_requeue(slurm_conf.slurm_user_id, job->job_id, NULL, false, 0))) {
		all_have_left(job, leave);
		return false;
	}
	if (!leaving->failed)
		error("gpubudget: JobId=%u on node %s, which is drained (%s), can't be requeued: %s",
		      job->job_id, leave->node, leave->why, slurm_strerror(rc));
	leaving->failed = true;
	return true;
}

/* Needs the job and node write locks. */
static bool stays_for_now(struct leaving *leaving, int64_t now_ms)
{
	struct leave leave = { .now_ms = now_ms };
	job_record_t *job = find_job_record(leaving->job_id);
	const struct leaving *before;
	const node_record_t *node;
	uint32_t grace = 0;
	bool is;

	if (!(node = still_to_leave(job, &grace)))
		return false;
	if ((before = listed(&remaining, job)))
		*leaving = *before;
	leave.node = node->name;
	leave.why = xstrdup(node->reason ? node->reason : "no reason given");
	is = requeue(leaving, job, grace, &leave);
	xfree(leave.why);
	return is;
}

/* Who stays for now stays in the list. */
static void leave_all(struct list *list, int64_t now_ms)
{
	const slurmctld_lock_t locks = {
		.conf = READ_LOCK, .job = WRITE_LOCK, .node = WRITE_LOCK, .part = READ_LOCK, .fed = READ_LOCK
	};
	uint32_t kept = 0;

	if (!list->count)
		return;
	lock_slurmctld(locks);
	for (uint32_t i = 0; i < list->count; i++)
		if (stays_for_now(&list->jobs[i], now_ms))
			list->jobs[kept++] = list->jobs[i];
	unlock_slurmctld(locks);
	list->count = kept;
}

void drain_pass(int64_t now_ms)
{
	struct list list = { 0 };

	/* Not without the symbol, which another slurmctld may lack. */
	if (job_requeue && engine->drains() == 1) {
		look(&list);
		ask(&list, now_ms);
		leave_all(&list, now_ms);
	}
	free(remaining.jobs);
	remaining = list;
}
