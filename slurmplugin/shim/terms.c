/* SPDX-License-Identifier: GPL-2.0-or-later */
/* terms.c: what a job is promised once it runs, from its record. */
#include "shim.h"
#include "spankenv.h"

#define TELL_AGAIN_S 60

/* Only who goes round our option can send such a thing. Each job is told of
 * once at most, and the log is not flooded. Guarded by the job lock: whoever
 * has it for reading is the thread of the pass. */
static void tell_malformed(const job_record_t *job, const char *text, time_t now)
{
	static uint32_t told;
	static time_t told_at;

	if (job->job_id <= told || (now >= told_at && now - told_at < TELL_AGAIN_S))
		return;
	told = job->job_id;
	told_at = now;
	info("gpubudget: JobId=%u has " SPANKENV_VARIABLE "=%.40s, which is no number of seconds: it counts as if nothing was said",
	     job->job_id, text);
}

int64_t min_runtime_asked(const job_record_t *job, time_t now)
{
	uint32_t at;
	const char *text = spankenv_find(job->spank_job_env, job->spank_job_env_size, &at);
	int64_t seconds;

	if (!text)
		return -1;
	if (spankenv_seconds(text, &seconds))
		return seconds;
	tell_malformed(job, text, now);
	return -1;
}

/* One that names no limit gets its partition's when it starts. */
int64_t time_limit_s(const job_record_t *job)
{
	const part_record_t *part = job->part_ptr;
	uint32_t minutes = job->time_limit;

	if (minutes == NO_VAL && part)
		minutes = part->default_time != NO_VAL ? part->default_time : part->max_time;
	return minutes == NO_VAL || minutes == INFINITE ? 0 : minutes * INT64_C(60);
}
