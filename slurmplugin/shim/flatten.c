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
	return IS_JOB_PENDING(job) && job->start_time && job->nodes &&
	       (job->job_state & (JOB_COMPLETING | JOB_REQUEUE));
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

static void flatten_times(const job_record_t *job, time_t now, struct gpub_job *out)
{
	bool pending = IS_JOB_PENDING(job) && !requeue_in_progress(job);

	out->resize = job->resize_time;
	if (job->details) {
		out->submit = job->details->submit_time;
		out->begin = job->details->begin_time;
		out->accrue = job->details->accrue_time;
	}
	if (pending) {
		/* start_time is then a guess of the backfill scheduler's. A
		 * requeue stamps time_last_active with the end of the run. */
		out->end = job->restart_cnt ? job->time_last_active : 0;
		return;
	}
	if (IS_JOB_FINISHED(job) && !ran(job))
		return;
	out->start = job->start_time;
	out->end = job->end_time;
	out->suspend = job->suspend_time;
	out->suspended = suspended(job, now);
}

static void flatten_array(const job_record_t *job, struct gpub_job *out)
{
	const job_array_struct_t *array = job->array_recs;

	out->array_job_id = job->array_job_id;
	out->array_task_id = job->array_task_id == NO_VAL ? UINT32_MAX : job->array_task_id;
	out->array_tasks = array && array->task_cnt ? array->task_cnt : 1;
	out->demand_tasks = out->array_tasks;
	if (array && array->max_run_tasks) {
		uint32_t more = array->max_run_tasks > array->tot_run_tasks ?
					array->max_run_tasks - array->tot_run_tasks : 0;

		if (out->demand_tasks > more)
			out->demand_tasks = more;
	}
}

static void flatten_size(const struct flattening *how, const job_record_t *job, struct gpub_job *out)
{
	const struct job_details *details = job->details;
	bool pending = IS_JOB_PENDING(job) && !requeue_in_progress(job);

	out->gpus = pending ? gpus_requested(job, how->settings->gpu_tres) : gpus_allocated(job, &out->gpu_type);
	out->cpus = job->total_cpus;
	out->min_nodes = details ? details->min_nodes : 1;
	if (!out->cpus && details)
		out->cpus = details->max_cpus != NO_VAL ? details->max_cpus : details->min_cpus;

	out->time_limit = job->time_limit;
	if (out->time_limit == NO_VAL)
		out->time_limit = job->part_ptr ? job->part_ptr->max_time : UINT32_MAX;
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

void flatten_sighting(const struct flattening *how, const job_record_t *job, struct gpub_job *out)
{
	*out = (struct gpub_job){
		.job_id = job->job_id,
		.het_job_id = job->het_job_id,
		.restart = run_number(job),
		.user_id = job->user_id,
		.assoc_id = job->assoc_ptr ? job->assoc_ptr->id : 0,
		.state = base_state(job),
		.flags = job_flags(job, how->now),
		.user = user_name(job),
		.account = job->account,
		.partition = partition_name(job),
		.qos = job->qos_ptr ? job->qos_ptr->name : NULL,
		.nodes = IS_JOB_PENDING(job) && !requeue_in_progress(job) ? NULL : job->nodes,
		.current_priority = job->priority,
	};
	flatten_times(job, how->now, out);
	flatten_array(job, out);
	flatten_size(how, job, out);
}

/* With CALCULATE_RUNNING sprio lists jobs that have ended as well; like
 * priority/multifactor, keep what it shows of them up to date by Fair Tree only. */
bool job_wants_priority(const job_record_t *job, uint32_t flags)
{
	if (!job->priority || job->direct_set_prio || !job->details || IS_JOB_POWER_UP_NODE(job))
		return false;
	if (IS_JOB_PENDING(job))
		return true;
	if (!(flags & GPUB_FLAG_CALCULATE_RUNNING))
		return false;
	return flags & GPUB_FLAG_FAIR_TREE || !(IS_JOB_FINISHED(job) || IS_JOB_COMPLETING(job));
}

double part_factor(const part_record_t *part, uint32_t flags)
{
	if (!part)
		return 0;
	return flags & GPUB_FLAG_NO_NORMAL_PART ? part->priority_job_factor : part->norm_priority;
}

void tres_factors(const job_record_t *job, const part_record_t *part, const struct settings *settings,
		  double *factors)
{
	bool whole = settings->weights.flags & GPUB_FLAG_NO_NORMAL_TRES;

	for (uint32_t i = 0; i < settings->weights.tres_count; i++) {
		uint64_t count = 0, all = part && part->tres_cnt ? part->tres_cnt[i] : 0;

		if (job->tres_alloc_cnt && job->tres_alloc_cnt[i] != NO_CONSUME_VAL64)
			count = job->tres_alloc_cnt[i];
		else if (job->tres_req_cnt)
			count = job->tres_req_cnt[i];
		if (whole)
			factors[i] = count;
		else
			factors[i] = all ? count / (double)all : 0;
	}
}

static double *new_tres_factors(const struct flattening *how, const job_record_t *job, const part_record_t *part)
{
	double *factors = arena_alloc(how->arena, how->settings->weights.tres_count * sizeof(double));

	if (factors)
		tres_factors(job, part, how->settings, factors);
	return factors;
}

static bool flatten_parts(const struct flattening *how, const job_record_t *job, struct gpub_job *out)
{
	const part_record_t *part;
	ListIterator parts;
	uint32_t i = 0;
	bool ok = true;

	out->parts_count = list_count(job->part_ptr_list);
	if (!(out->parts = arena_alloc(how->arena, out->parts_count * sizeof(*out->parts))))
		return false;
	parts = list_iterator_create(job->part_ptr_list);
	while (ok && (part = list_next(parts)) && i < out->parts_count) {
		struct gpub_job_part *to = &out->parts[i++];

		to->factor = part_factor(part, how->settings->weights.flags);
		if (how->settings->tres)
			ok = (to->tres = new_tres_factors(how, job, part)) != NULL;
	}
	list_iterator_destroy(parts);
	return ok;
}

bool flatten_inputs(const struct flattening *how, const job_record_t *job, struct gpub_job *out)
{
	uint32_t flags = how->settings->weights.flags;
	const slurmdb_assoc_rec_t *assoc = job->assoc_ptr;
	const slurmdb_qos_rec_t *qos = job->qos_ptr;

	flatten_sighting(how, job, out);
	out->nice = (int64_t)(job->details ? job->details->nice : NICE_OFFSET) - NICE_OFFSET;
	out->site = (int64_t)job->site_factor - NICE_OFFSET;
	if (assoc)
		out->assoc_factor = flags & GPUB_FLAG_NO_NORMAL_ASSOC ? assoc->priority : assoc->usage->priority_norm;
	if (qos) {
		out->qos_priority = qos->priority;
		out->qos_factor = flags & GPUB_FLAG_NO_NORMAL_QOS ? qos->priority : qos->usage->norm_priority;
	}
	out->part_factor = part_factor(job->part_ptr, flags);
	if (how->settings->tres && !(out->tres = new_tres_factors(how, job, job->part_ptr)))
		return false;
	return job->part_ptr_list ? flatten_parts(how, job, out) : true;
}

bool prepare_factors(const struct flattening *how, struct gpub_factors *out)
{
	*out = (struct gpub_factors){ 0 };
	if (!how->settings->tres)
		return true;
	out->tres = arena_alloc(how->arena, how->settings->weights.tres_count * sizeof(double));
	return out->tres != NULL;
}
