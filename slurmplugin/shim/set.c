/* SPDX-License-Identifier: GPL-2.0-or-later */
/* set.c: the priority of one job, at once. */
#include <string.h>

#include "shim.h"

/* Every caller holds the job write lock, so one is enough. Never freed: the
 * plugin is unloaded without that lock. */
static struct arena arena;

/* What a job gets before the first pass: what it has, or the least that isn't
 * held. */
static uint32_t fallback(const job_record_t *job)
{
	return job->priority ? job->priority : 1;
}

/* If none of the account's jobs that pended was unallocated, there is no place for
 * them yet. */
static void want_place(const struct gpub_table *numbers, const struct score_owner *owner, int64_t min_runtime)
{
	if (score_elsewhere(numbers, owner, min_runtime) && !numbers->slots[owner->slot].unallocated)
		pass_want();
}

/* The settings that the table was made by, though there may be others by now.
 * The association manager's locks are not taken: it frees no record before
 * slurmctld has taken it from all jobs, under the job write lock. */
static uint32_t work_out(job_record_t *job, const struct table *table)
{
	const struct score_owner *owner;
	time_t now = time(NULL);
	struct score_job in;
	struct score out;
	static bool told; /* guarded as the arena */
	bool ok;

	ok = read_inputs(table->settings, &arena, job, min_runtime_asked(job, now), now, &in) &&
	     prepare_score(table->settings, &arena, &out);
	if (first_failure(&told, !ok))
		error("gpubudget: " OUT_OF_MEMORY ": JobId=%u and others get no new priority until the next pass",
		      job->job_id);
	if (!ok)
		return fallback(job);
	owner = table_owner_of(table, job);
	want_place(&table->numbers, owner, in.min_runtime);
	score_job(&table->numbers, owner, &in, &out);
	store_score(job, &in, &out, table->settings);
	return out.priority;
}

/* Bits for the jobs that were set since set_forget, several for one bit. Changed
 * under the job lock: to write for a job, to read by who forgets. */
#define BITS (1u << 20)
static uint64_t lately[BITS / 64];

bool set_lately(uint32_t job_id)
{
	return lately[job_id % BITS / 64] >> job_id % 64 & 1;
}

void set_forget(void)
{
	memset(lately, 0, sizeof(lately));
}

uint32_t set_priority(job_record_t *job)
{
	const struct table *table = table_now();
	uint32_t priority;

	lately[job->job_id % BITS / 64] |= UINT64_C(1) << job->job_id % 64;
	if (!layout_job_ok(job))
		return fallback(job);
	if (job->direct_set_prio && job->priority) {
		clear_factors(job);
		return job->priority;
	}
	if (!job->details) {
		error("gpubudget: JobId=%u has no details, it gets no priority", job->job_id);
		clear_factors(job);
		return 0;
	}
	if (!parts_sorted(job))
		list_sort(job->part_ptr_list, priority_sort_part_tier);
	priority = table ? work_out(job, table) : fallback(job);
	arena_reset(&arena);
	return priority;
}
