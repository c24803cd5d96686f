/* SPDX-License-Identifier: GPL-2.0-or-later */
/* peer.c: what our other plugins have from this one. */
#include "peer.h"
#include "shim.h"

static const struct gpub_engine *engine_now(void)
{
	return __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
}

static bool flatten(const job_record_t *job, time_t now, struct gpub_job *out)
{
	const struct settings *settings = settings_now();

	if (!engine_now() || !settings || !layout_job_ok(job))
		return false;
	flatten_sighting(settings, job, now, out);
	out->time_limit = time_limit_s(job);
	return true;
}

static int candidates(const struct gpub_placing *placing, int64_t now_ms)
{
	const struct gpub_engine *e = engine_now();

	return e ? e->candidates(placing, now_ms) : GPUB_ERROR;
}

/* For the owner of the job; slurmctld holds the job write lock. */
static void tell_owner(uint32_t victim, uint32_t request)
{
	job_record_t *job = find_job_record(victim);
	const job_record_t *by = find_job_record(request);

	if (job)
		job_remark(job, "preempted for JobId=%u of account %s; gpubudget explain %u tells why", request,
			   by && by->account ? by->account : "(none)", victim);
}

/* Who stands where has changed: the next pass counts the exchange. */
static int preempted(uint32_t victim, uint32_t request, uint32_t requeues, int64_t now_ms)
{
	const struct gpub_engine *e = engine_now();
	int rc;

	tell_owner(victim, request);
	rc = e ? e->preempted(victim, request, requeues, now_ms) : GPUB_ERROR;

	pass_want();
	return rc;
}

static int submit(struct gpub_submission *submission)
{
	const struct gpub_engine *e = engine_now();

	return e ? e->submit(submission) : GPUB_ERROR;
}

__attribute__((visibility("default"))) const struct gpub_peer *gpubudget_peer(void);

const struct gpub_peer *gpubudget_peer(void)
{
	static const struct gpub_peer peer = { GPUB_ABI, flatten, candidates, preempted, submit, username };

	return &peer;
}
