/* SPDX-License-Identifier: GPL-2.0-or-later */
/* flatten.c: a job record of slurmctld as a struct gpub_job. */
#include <string.h>

#include "shim.h"

static const uint32_t states[] = {
	[JOB_PENDING] = GPUB_PENDING,     [JOB_RUNNING] = GPUB_RUNNING,
	[JOB_SUSPENDED] = GPUB_SUSPENDED, [JOB_COMPLETE] = GPUB_COMPLETE,
	[JOB_CANCELLED] = GPUB_CANCELLED, [JOB_FAILED] = GPUB_FAILED,
	[JOB_TIMEOUT] = GPUB_TIMEOUT,     [JOB_NODE_FAIL] = GPUB_NODE_FAIL,
	[JOB_PREEMPTED] = GPUB_PREEMPTED, [JOB_BOOT_FAIL] = GPUB_BOOT_FAIL,
	[JOB_DEADLINE] = GPUB_DEADLINE,   [JOB_OOM] = GPUB_OUT_OF_MEMORY,
};

static uint32_t base_state(const job_record_t *job)
{
	uint32_t base = job->job_state & JOB_STATE_BASE;

	return base < JOB_END ? states[base] : GPUB_FAILED;
}

/*
 * A requeue ends a run and makes the record pend again, in two steps. First
 * its state is PENDING with COMPLETING (and for an instant JOB_REQUEUE alone)
 * while start_time, end_time and the allocation are still the run's. When the
 * last epilog is done these are wiped.
 */
static bool requeue_in_progress(const job_record_t *job)
{
	return IS_JOB_PENDING(job) && (job->job_state & (JOB_COMPLETING | JOB_REQUEUE)) && job->start_time && job->nodes;
}

/* Did this record ever hold nodes? One that is cancelled while it pends gets
 * a start time too. */
static bool ran(const job_record_t *job)
{
	return job->nodes || (job->tres_alloc_cnt && job->start_time < job->end_time);
}

static bool demands(const job_record_t *job, time_t now)
{
	const struct job_details *details = job->details;

	if (!IS_JOB_PENDING(job) || IS_JOB_COMPLETING(job) || !job->priority || !details)
		return false;
	return details->begin_time && details->begin_time <= now && !(job->bit_flags & JOB_DEPENDENT);
}

static uint32_t job_flags(const job_record_t *job, time_t now)
{
	uint32_t flags = 0;

	if (!job->priority)
		flags |= GPUB_JOB_HELD;
	if (job->direct_set_prio)
		flags |= GPUB_JOB_DIRECT_PRIO;
	if (IS_JOB_COMPLETING(job))
		flags |= GPUB_JOB_COMPLETING;
	if (IS_JOB_CONFIGURING(job) || IS_JOB_POWER_UP_NODE(job))
		flags |= GPUB_JOB_CONFIGURING;
	if (IS_JOB_RESIZING(job))
		flags |= GPUB_JOB_RESIZING;
	if (requeue_in_progress(job))
		flags |= GPUB_JOB_REQUEUED;
	if (demands(job, now))
		flags |= GPUB_JOB_DEMANDS;
	return flags;
}

/*
 * Seconds suspended since the run began. pre_sus_time counts the time run up
 * to suspend_time, the moment of the last suspend or resume, so the rest was
 * suspended. tot_sus_time isn't used: a job that is killed while suspended
 * ends at suspend_time, and it counts what comes after as well.
 */
static int64_t suspended(const job_record_t *job, time_t now)
{
	int64_t seconds;

	if (!job->suspend_time || job->suspend_time < job->start_time)
		return 0;
	seconds = job->suspend_time - job->start_time - job->pre_sus_time;
	if (IS_JOB_SUSPENDED(job) && now > job->suspend_time)
		seconds += now - job->suspend_time;
	return seconds > 0 ? seconds : 0;
}

/* The restart counter goes up before the run that ends here is cleared. */
static uint32_t run_number(const job_record_t *job)
{
	return job->restart_cnt && requeue_in_progress(job) ? job->restart_cnt - 1 : job->restart_cnt;
}

/* start_time of a job that pends is a guess of the backfill scheduler's. A
 * requeue stamps time_last_active with the end of the run. */
static int64_t end_of_last_run(const job_record_t *job)
{
	return job->restart_cnt ? job->time_last_active : 0;
}

static void flatten_run(const job_record_t *job, time_t now, struct gpub_job *out)
{
	out->array_job_id = job->array_job_id;
	out->array_task_id = job->array_task_id == NO_VAL ? UINT32_MAX : job->array_task_id;
	out->het_job_id = job->het_job_id;
	out->resize = job->resize_time;
	if (IS_JOB_FINISHED(job) && !ran(job))
		return;
	out->start = job->start_time;
	out->end = job->end_time;
	out->suspend = job->suspend_time;
	out->suspended = suspended(job, now);
}

static void flatten_tasks(const job_record_t *job, struct gpub_job *out)
{
	const job_array_struct_t *array = job->array_recs;

	out->array_tasks = array && array->task_cnt ? array->task_cnt : 1;
	out->demand_tasks = out->array_tasks;
	if (array && array->max_run_tasks) {
		uint32_t more = array->max_run_tasks > array->tot_run_tasks ?
					array->max_run_tasks - array->tot_run_tasks : 0;

		if (out->demand_tasks > more)
			out->demand_tasks = more;
	}
}

static const char *partition_name(const job_record_t *job)
{
	const part_record_t *part = job->part_ptr;

	/* While such a job pends, the scheduler moves part_ptr from one
	 * partition to the next. */
	if (IS_JOB_PENDING(job) && job->part_ptr_list)
		part = list_peek(job->part_ptr_list);
	return part ? part->name : job->partition;
}

static const char *user_name(const job_record_t *job)
{
	if (job->assoc_ptr && job->assoc_ptr->user)
		return job->assoc_ptr->user;
	return job->user_name ? job->user_name : username(job->user_id);
}

static void flatten_owner(const job_record_t *job, struct gpub_job *out)
{
	const slurmdb_assoc_rec_t *assoc = job->assoc_ptr;

	out->account = job->account;
	out->assoc_id = assoc ? assoc->id : 0;
	out->user = user_name(job);
	/* The same; slurmctld doesn't know that of all associations. */
	out->user_id = assoc && assoc->user && assoc->uid != NO_VAL ? assoc->uid : job->user_id;
}

/* Most jobs pend, and a pass is as long as the memory it has to look at: of
 * these only what counts is read. */
void flatten_sighting(const struct settings *settings, const job_record_t *job, time_t now, struct gpub_job *out)
{
	bool pending = IS_JOB_PENDING(job) && !requeue_in_progress(job);

	*out = (struct gpub_job){
		.job_id = job->job_id,
		.array_task_id = UINT32_MAX,
		.restart = run_number(job),
		.state = base_state(job),
		.flags = job_flags(job, now),
		.end = pending ? end_of_last_run(job) : 0,
		.nice = (int64_t)(job->details ? job->details->nice : NICE_OFFSET) - NICE_OFFSET,
		.qos_priority = job->qos_ptr ? job->qos_ptr->priority : 0,
		.min_runtime = min_runtime_asked(job, now),
		.time_limit = pending ? 0 : time_limit_s(job), /* of a run */
	};
	flatten_owner(job, out);
	flatten_tasks(job, out);
	if (job->details) {
		out->submit = job->details->submit_time;
		out->begin = job->details->begin_time;
	}
	if (pending) {
		gpus_requested(job, settings->gpu_tres, out);
		return;
	}
	if (requeuable(job))
		out->flags |= GPUB_JOB_REQUEUABLE;
	gpus_allocated(job, out);
	out->partition = partition_name(job);
	out->qos = job->qos_ptr ? job->qos_ptr->name : NULL;
	out->nodes = job->nodes;
	flatten_run(job, now, out);
}

void fetch_sighting(const job_record_t *job)
{
	__builtin_prefetch(&job->account);
	__builtin_prefetch(&job->array_recs);
	__builtin_prefetch(&job->bit_flags);
	__builtin_prefetch(&job->details);
	__builtin_prefetch(&job->job_id);
	__builtin_prefetch(&job->job_state);
	__builtin_prefetch(&job->priority);
	__builtin_prefetch(&job->restart_cnt);
	__builtin_prefetch(&job->spank_job_env);
	__builtin_prefetch(&job->tres_req_cnt);
}

void fetch_sighting_more(const job_record_t *job)
{
	const struct job_details *details = job->details;
	const slurmdb_assoc_rec_t *assoc = job->assoc_ptr;

	if (details) {
		__builtin_prefetch(&details->begin_time);
		__builtin_prefetch(&details->nice);
		__builtin_prefetch(&details->submit_time);
	}
	if (assoc) {
		__builtin_prefetch(&assoc->id);
		__builtin_prefetch(&assoc->user);
	}
	if (job->spank_job_env_size)
		__builtin_prefetch(job->spank_job_env);
	if (job->tres_req_cnt)
		__builtin_prefetch(job->tres_req_cnt + TRES_ARRAY_TOTAL_CNT); /* gres/gpu comes soon after these */
}
