/* SPDX-License-Identifier: GPL-2.0-or-later */
/* factors.c: what the Go library decided, into the job's record. */
#include <string.h>

#include "shim.h"

/* Slurm keeps nice and site as unsigned numbers around NICE_OFFSET. */
static uint32_t with_nice_offset(int64_t value)
{
	const int64_t most = (int64_t)UINT32_MAX - NICE_OFFSET;

	if (value > most)
		value = most;
	if (value < -(int64_t)NICE_OFFSET)
		value = -(int64_t)NICE_OFFSET;
	return value + NICE_OFFSET;
}

static void drop_tres(gpub_slurm_factors *factors)
{
	xfree(factors->priority_tres);
	xfree(factors->tres_weights);
	factors->tres_cnt = 0;
}

static void store_tres(gpub_slurm_factors *factors, const double *tres, const struct settings *settings)
{
	uint32_t count = settings->weights.tres_count;
	size_t size = count * sizeof(double);

	if (!tres || !settings->tres) {
		if (factors->tres_cnt)
			drop_tres(factors);
		return;
	}
	if (!factors->priority_tres || !factors->tres_weights || factors->tres_cnt != count) {
		drop_tres(factors);
		factors->priority_tres = xcalloc(count, sizeof(double));
		factors->tres_weights = xcalloc(count, sizeof(double));
		factors->tres_cnt = count;
	}
	memcpy(factors->priority_tres, tres, size);
	memcpy(factors->tres_weights, settings->tres, size);
}

/* The array lies beside part_ptr_list, index for index. A job that is held
 * has none, and an update of the partitions frees it. */
static void store_parts(job_record_t *job, const struct gpub_job *in, uint32_t flags)
{
	size_t size = (in->parts_count + 1) * sizeof(uint32_t);
	uint32_t **array;

	if (!in->parts || !job->part_ptr_list || (uint32_t)list_count(job->part_ptr_list) != in->parts_count)
		return;
	array = gpub_priority_array(job);
	if (*array && xsize(*array) < size)
		xfree(*array);
	if (!*array)
		*array = xcalloc(in->parts_count + 1, sizeof(uint32_t));
	for (uint32_t i = 0; i < in->parts_count; i++) {
		uint32_t priority = in->parts[i].priority ? in->parts[i].priority : 1;

		if (!(flags & GPUB_FLAG_INCR_ONLY) || (*array)[i] < priority)
			(*array)[i] = priority;
	}
}

void store_factors(job_record_t *job, const struct gpub_job *in, const struct gpub_factors *out,
		   const struct settings *settings)
{
	gpub_slurm_factors *factors = job->prio_factors;

	if (!factors)
		factors = job->prio_factors = xmalloc(sizeof(*factors));
	factors->priority_age = out->age;
	factors->priority_assoc = out->assoc;
	factors->priority_fs = out->fairshare;
	factors->priority_js = out->job_size;
	factors->priority_part = out->partition;
	factors->priority_qos = out->qos;
	factors->priority_site = with_nice_offset(out->site);
	factors->nice = with_nice_offset(out->nice);
	factors->direct_prio = 0;
	store_tres(factors, out->tres, settings);
	store_parts(job, in, settings->weights.flags);
}

static bool has_tres(const gpub_slurm_factors *factors, const double *tres, const struct settings *settings)
{
	uint32_t count = settings->weights.tres_count;
	size_t size = count * sizeof(double);

	if (!tres || !settings->tres)
		return !factors->tres_cnt;
	return factors->tres_cnt == count && factors->priority_tres && factors->tres_weights &&
	       !memcmp(factors->priority_tres, tres, size) && !memcmp(factors->tres_weights, settings->tres, size);
}

bool has_factors(const job_record_t *job, const struct gpub_job *in, const struct gpub_factors *out,
		 const struct settings *settings)
{
	const gpub_slurm_factors *factors = job->prio_factors;

	return factors && job->priority == out->priority && !in->parts && !job->part_ptr_list &&
	       factors->priority_fs == out->fairshare && factors->priority_age == out->age &&
	       factors->priority_js == out->job_size && factors->priority_qos == out->qos &&
	       factors->priority_part == out->partition && factors->priority_assoc == out->assoc &&
	       factors->priority_site == with_nice_offset(out->site) && factors->nice == with_nice_offset(out->nice) &&
	       !factors->direct_prio && has_tres(factors, out->tres, settings);
}

/* A priority that an operator set has no factors. */
void clear_factors(job_record_t *job)
{
	if (!job->prio_factors)
		return;
	drop_tres(job->prio_factors);
	memset(job->prio_factors, 0, sizeof(*job->prio_factors));
}

bool parts_sorted(const job_record_t *job)
{
	const part_record_t *part;
	ListIterator parts;
	uint32_t tier = UINT32_MAX;
	bool sorted = true;

	if (!job->part_ptr_list)
		return true;
	parts = list_iterator_create(job->part_ptr_list);
	while (sorted && (part = list_next(parts))) {
		sorted = part->priority_tier <= tier;
		tier = part->priority_tier;
	}
	list_iterator_destroy(parts);
	return sorted;
}
