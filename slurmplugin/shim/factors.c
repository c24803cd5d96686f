/* SPDX-License-Identifier: GPL-2.0-or-later */
/* factors.c: what a priority is made of, into the job's record. */
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
static void store_parts(job_record_t *job, const struct score_job *in, uint32_t flags)
{
	uint32_t **array;
	size_t size;

	if (!in || !in->parts || !job->part_ptr_list || (uint32_t)list_count(job->part_ptr_list) != in->parts_count)
		return;
	size = (in->parts_count + 1) * sizeof(uint32_t);
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

bool prepare_score(const struct settings *settings, struct arena *arena, struct score *out)
{
	*out = (struct score){ 0 };
	if (!settings->tres)
		return true;
	out->tres = arena_alloc(arena, settings->weights.tres_count * sizeof(double));
	return out->tres != NULL;
}

void store_score(job_record_t *job, const struct score_job *in, const struct score *out,
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

/* Each column's bits are stirred, for round numbers have them all at one end,
 * and have a multiplier of their own, for columns that change places. */
static uint64_t stir(uint64_t x, uint64_t by)
{
	x *= 0x9e3779b97f4a7c15u;
	return (x ^ x >> 32) * by;
}

static uint64_t bits(double x)
{
	uint64_t as;

	memcpy(&as, &x, sizeof(as));
	return as;
}

struct columns {
	double age, assoc, fairshare, job_size, partition, qos;
	uint32_t site, nice;
};

static uint64_t print_columns(const struct columns *of)
{
	return stir(bits(of->age), 0xbf58476d1ce4e5b9u) + stir(bits(of->assoc), 0x94d049bb133111ebu) +
	       stir(bits(of->fairshare), 0xff51afd7ed558ccdu) + stir(bits(of->job_size), 0xc4ceb9fe1a85ec53u) +
	       stir(bits(of->partition), 0xd6e8feb86659fd93u) + stir(bits(of->qos), 0xa0761d6478bd642fu) +
	       stir((uint64_t)of->site << 32 | of->nice, 0xe7037ed1a0b428dbu);
}

static uint64_t print_tres(uint64_t print, const double *tres, const struct settings *settings)
{
	for (uint32_t i = 0; i < settings->weights.tres_count; i++)
		print = stir(print ^ bits(tres[i]), 0x8ebc6af09c88c6e3u) + stir(bits(settings->tres[i]), 0x589965cc75374cc3u);
	return print;
}

/* Jobs of several partitions are written anew each time. */
uint64_t stored_print(const job_record_t *job, const struct settings *settings)
{
	const gpub_slurm_factors *f = job->prio_factors;
	uint64_t print;

	if (!f || job->part_ptr_list || f->direct_prio)
		return 0;
	print = print_columns(&(struct columns){
		.age = f->priority_age, .assoc = f->priority_assoc, .fairshare = f->priority_fs,
		.job_size = f->priority_js, .partition = f->priority_part, .qos = f->priority_qos,
		.site = f->priority_site, .nice = f->nice });
	if (!settings->tres)
		return f->tres_cnt ? 0 : print | 1;
	if (f->tres_cnt != settings->weights.tres_count || !f->priority_tres || !f->tres_weights ||
	    memcmp(f->tres_weights, settings->tres, f->tres_cnt * sizeof(double)))
		return 0;
	return print_tres(print, f->priority_tres, settings) | 1;
}

uint64_t score_print(const struct score_job *in, const struct score *out, const struct settings *settings)
{
	uint64_t print;

	if (in->parts)
		return 0;
	print = print_columns(&(struct columns){
		.age = out->age, .assoc = out->assoc, .fairshare = out->fairshare, .job_size = out->job_size,
		.partition = out->partition, .qos = out->qos,
		.site = with_nice_offset(out->site), .nice = with_nice_offset(out->nice) });
	return (settings->tres ? print_tres(print, out->tres, settings) : print) | 1;
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
