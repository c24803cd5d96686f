/* SPDX-License-Identifier: GPL-2.0-or-later */
/* set.c: the priority of one job, at once. */
#include "shim.h"

/* Every caller holds the job write lock, so one is enough. */
static struct arena arena;

/* What a job gets when the library has no answer: what it has, or the least
 * that isn't held. */
static uint32_t fallback(const job_record_t *job)
{
	return job->priority ? job->priority : 1;
}

static uint32_t ask(job_record_t *job, const struct gpub_engine *e)
{
	assoc_mgr_lock_t locks = { .assoc = READ_LOCK, .qos = READ_LOCK };
	struct timespec now;
	struct flattening how = { .settings = settings_now(), .arena = &arena };
	struct gpub_factors out;
	struct gpub_job in;
	int rc = GPUB_ERROR;

	clock_gettime(CLOCK_REALTIME, &now);
	how.now = now.tv_sec;
	assoc_mgr_lock(&locks);
	if (flatten_inputs(&how, job, &in) && prepare_factors(&how, &out))
		rc = e->set(&in, now.tv_sec * 1000 + now.tv_nsec / 1000000, &out);
	assoc_mgr_unlock(&locks);
	if (rc != GPUB_OK || !out.priority)
		return fallback(job);
	store_factors(job, &in, &out, how.settings);
	return out.priority;
}

uint32_t set_priority(job_record_t *job)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	uint32_t priority;

	if (!e || !layout_job_ok(job))
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
	priority = ask(job, e);
	arena_reset(&arena);
	return priority;
}

void set_free(void)
{
	arena_free(&arena);
}
