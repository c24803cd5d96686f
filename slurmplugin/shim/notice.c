/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * notice.c: the notice that a job gets before it is requeued from a drained node.
 *
 * It is what Slurm gives to a job that it preempts, by the same calls: where
 * there is a grace time, SIGCONT and SIGTERM, or with preempt_send_user_signal
 * what the job asked for with --signal. Slurm's own call for it isn't used: it
 * goes on by PreemptMode, which may be to cancel, and counts as a preemption.
 */
#include <signal.h>

#include "shim.h"

static int most_grace(void *x, void *arg)
{
	uint32_t *most = arg, grace = grace_time(x);

	if (grace > *most)
		*most = grace;
	return SLURM_SUCCESS;
}

/* Who is suspended can't make use of it. */
uint32_t notice_due(job_record_t *job)
{
	uint32_t most = 0;

	/* Symbols that this slurmctld lacks. */
	if (!job_signal || !send_job_warn_signal || !IS_JOB_RUNNING(job))
		return 0;
	if (job->het_job_list)
		list_for_each(job->het_job_list, most_grace, &most);
	else
		most_grace(job, &most);
	return most;
}

static bool wants_own_signal(const job_record_t *job)
{
	return job->warn_signal && !(job->warn_flags & WARN_SENT) &&
	       xstrcasestr(slurm_conf.slurmctld_params, "preempt_send_user_signal");
}

static int give(void *x, void *arg)
{
	job_record_t *job = x;
	int rc;

	(void)arg;
	if (!IS_JOB_RUNNING(job))
		return SLURM_SUCCESS;
	if (wants_own_signal(job)) {
		send_job_warn_signal(job, true);
		return SLURM_SUCCESS;
	}
	job_signal(job, SIGCONT, 0, slurm_conf.slurm_user_id, false); /* refused if one is on its way */
	if ((rc = job_signal(job, SIGTERM, 0, slurm_conf.slurm_user_id, false)))
		error("gpubudget: JobId=%u can't be sent SIGTERM: %s", job->job_id, slurm_strerror(rc));
	return SLURM_SUCCESS;
}

void notice_give(job_record_t *job)
{
	if (job->het_job_list)
		list_for_each(job->het_job_list, give, NULL);
	else
		give(job, NULL);
}
