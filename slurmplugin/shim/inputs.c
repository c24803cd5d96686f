/* SPDX-License-Identifier: GPL-2.0-or-later */
/* inputs.c: what the priority of a job depends on, from its record. */
#include "shim.h"

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

static bool new_tres_factors(const struct settings *settings, struct arena *arena, const job_record_t *job,
			     const part_record_t *part, const double **out)
{
	double *factors;

	*out = NULL;
	if (!settings->tres)
		return true;
	if (!(factors = arena_alloc(arena, settings->weights.tres_count * sizeof(double))))
		return false;
	tres_factors(job, part, settings, factors);
	*out = factors;
	return true;
}

static bool read_parts(const struct settings *settings, struct arena *arena, const job_record_t *job,
		       struct score_job *out)
{
	const part_record_t *part;
	ListIterator parts;
	uint32_t count = list_count(job->part_ptr_list);
	bool ok = true;

	if (!(out->parts = arena_alloc(arena, count * sizeof(*out->parts))))
		return false;
	parts = list_iterator_create(job->part_ptr_list);
	while (ok && (part = list_next(parts)) && out->parts_count < count) {
		struct score_part *to = &out->parts[out->parts_count++];

		to->factor = part_factor(part, settings->weights.flags);
		ok = new_tres_factors(settings, arena, job, part, &to->tres);
	}
	list_iterator_destroy(parts);
	return ok;
}

/*
 * An age that lies in the future hasn't begun to count, but it is none either.
 * With ACCRUE_ALWAYS it counts from the submission on. The scheduler notes that
 * when it has seen the job, and a reconfigure takes the note away: a pass that
 * follows at once must not take the age away.
 */
static int64_t age(const struct job_details *details, uint32_t flags, time_t now)
{
	time_t since = details ? details->accrue_time : 0;

	if (details && !since && flags & GPUB_FLAG_ACCRUE_ALWAYS && details->submit_time < now)
		since = details->submit_time;
	if (since <= 0)
		return -1;
	return now > since ? now - since : 0;
}

static void read_size(const job_record_t *job, struct score_job *out)
{
	const struct job_details *details = job->details;

	out->cpus = job->total_cpus;
	out->min_nodes = details ? details->min_nodes : 1;
	if (!out->cpus && details)
		out->cpus = details->max_cpus != NO_VAL ? details->max_cpus : details->min_cpus;
	out->time_limit = job->time_limit;
	if (out->time_limit == NO_VAL)
		out->time_limit = job->part_ptr ? job->part_ptr->max_time : UINT32_MAX;
}

/* What has no weight isn't looked at: it costs a look at memory. */
bool read_inputs(const struct settings *settings, struct arena *arena, const job_record_t *job, int64_t min_runtime,
		 time_t now, struct score_job *out)
{
	const struct gpub_weights *weights = &settings->weights;
	const slurmdb_assoc_rec_t *assoc = job->assoc_ptr;
	const slurmdb_qos_rec_t *qos = job->qos_ptr;

	*out = (struct score_job){
		.age = age(job->details, weights->flags, now),
		.nice = (int64_t)(job->details ? job->details->nice : NICE_OFFSET) - NICE_OFFSET,
		.site = (int64_t)job->site_factor - NICE_OFFSET,
		.min_runtime = min_runtime,
		.partition = weights->partition ? part_factor(job->part_ptr, weights->flags) : 0,
	};
	if (weights->job_size)
		read_size(job, out);
	if (assoc && weights->assoc)
		out->assoc = weights->flags & GPUB_FLAG_NO_NORMAL_ASSOC ? assoc->priority : assoc->usage->priority_norm;
	if (qos) {
		out->qos_priority = qos->priority;
		out->qos = weights->flags & GPUB_FLAG_NO_NORMAL_QOS ? qos->priority : qos->usage->norm_priority;
	}
	if (!new_tres_factors(settings, arena, job, job->part_ptr, &out->tres))
		return false;
	return job->part_ptr_list ? read_parts(settings, arena, job, out) : true;
}

static uint64_t mix(uint64_t print, uint64_t with)
{
	print = (print ^ with) * 0x9e3779b97f4a7c15u;
	return print ^ print >> 32;
}

/* Records and strings are told apart by where they lie. */
static uint64_t mix_pointer(uint64_t print, const void *with)
{
	return mix(print, (uintptr_t)with);
}

/* While a job of several partitions pends, the scheduler moves part_ptr from
 * one to the next. */
static uint64_t mix_parts(uint64_t print, const job_record_t *job)
{
	ListIterator parts;
	const part_record_t *part;

	if (!job->part_ptr_list)
		return mix_pointer(print, job->part_ptr);
	parts = list_iterator_create(job->part_ptr_list);
	while ((part = list_next(parts)))
		print = mix_pointer(print, part);
	list_iterator_destroy(parts);
	return print;
}

uint64_t inputs_print(const job_record_t *job)
{
	uint64_t print = mix(1, job->details ? job->details->nice : 0);

	print = mix(print, job->site_factor);
	print = mix_pointer(print, job->qos_ptr);
	print = job->assoc_ptr ? mix(print, job->assoc_id) : mix_pointer(print, job->account);
	return mix_parts(print, job);
}

void fetch_inputs(const job_record_t *job)
{
	__builtin_prefetch(&job->part_ptr);
	__builtin_prefetch(&job->site_factor);
	__builtin_prefetch(&job->total_cpus);
	__builtin_prefetch(&job->tres_alloc_cnt);
}

void fetch_inputs_more(const job_record_t *job)
{
	const struct job_details *details = job->details;

	if (details)
		__builtin_prefetch(&details->accrue_time);
}

void fetch_factors(const job_record_t *job)
{
	const gpub_slurm_factors *factors = job->prio_factors;

	if (!factors)
		return;
	__builtin_prefetch(&factors->priority_age);
	__builtin_prefetch(&factors->priority_site);
	__builtin_prefetch(&factors->nice);
}
