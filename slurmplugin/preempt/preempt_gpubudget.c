/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * preempt_gpubudget.c: what Slurm looks up in preempt_gpubudget.so.
 *
 * slurmctld calls all of these with the job lock held, but preempt_p_get_data
 * for PREEMPT_DATA_ENABLED and PREEMPT_DATA_MODE also without.
 */
#include "preempt.h"

#if GPUB_SINCE(25, 5, 0)
#error "preempt plugins have other calls from Slurm 25.05 on"
#endif

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const char plugin_name[];
EXPORT extern const char plugin_type[];
EXPORT extern const uint32_t plugin_version;

const char plugin_name[] = "GPU budget preemption plugin";
const char plugin_type[] = "preempt/gpubudget";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

static uint16_t plain_mode(uint16_t mode)
{
	return mode & ~(PREEMPT_MODE_GANG | PREEMPT_MODE_WITHIN);
}

/* What the job's QOS says counts, then what its partition says, then the
 * cluster's. Suspended jobs would keep their GPUs: they are requeued. */
static uint16_t mode_asked(const job_record_t *job)
{
	uint16_t mode = slurm_conf.preempt_mode;

	if (job->part_ptr && job->part_ptr->preempt_mode != NO_VAL16)
		mode = job->part_ptr->preempt_mode;
	if (job->qos_ptr && job->qos_ptr->preempt_mode)
		mode = job->qos_ptr->preempt_mode;
	return plain_mode(mode);
}

/* Only batch jobs that say so can be requeued. */
uint16_t preempt_mode(const job_record_t *job)
{
	uint16_t mode = mode_asked(job);

	if (mode == PREEMPT_MODE_OFF || mode == PREEMPT_MODE_CANCEL)
		return mode;
	return requeuable(job) ? PREEMPT_MODE_REQUEUE : PREEMPT_MODE_CANCEL;
}

/* What the log last told of; none yet: NO_VAL16. */
static uint16_t mode_told = NO_VAL16;

/* slurm.conf can be read again, and Slurm loads the plugin anew only if
 * PreemptType has changed: so the mode is looked at each time. */
static void warn_of_mode(uint16_t mode)
{
	if (__atomic_load_n(&mode_told, __ATOMIC_RELAXED) == mode ||
	    __atomic_exchange_n(&mode_told, mode, __ATOMIC_RELAXED) == mode)
		return;
	if (mode == PREEMPT_MODE_OFF)
		error("gpubudget: PreemptType=preempt/gpubudget with PreemptMode=OFF: nobody is ever preempted, not even unallocated jobs; set PreemptMode=REQUEUE (or CANCEL)");
	else if (mode == PREEMPT_MODE_SUSPEND)
		error("gpubudget: PreemptType=preempt/gpubudget with PreemptMode=SUSPEND: suspended jobs keep their GPUs, so jobs are requeued instead; set PreemptMode=REQUEUE");
}

static bool enabled(void)
{
	uint16_t mode = plain_mode(slurm_conf.preempt_mode);

	warn_of_mode(mode);
	return mode != PREEMPT_MODE_OFF;
}

static bool priority_is_ours(void)
{
	if (!xstrcmp(slurm_conf.priority_type, "priority/gpubudget"))
		return true;
	error("gpubudget: preempt/gpubudget goes by the accounts' standings, which priority/gpubudget works out, but slurm.conf has PriorityType=%s: set PriorityType=priority/gpubudget, or another PreemptType",
	      slurm_conf.priority_type);
	return false;
}

/* Long before the priority plugin is loaded, which is looked for when needed. */
EXPORT int init(void)
{
	if (!priority_is_ours() || !library_installed())
		return SLURM_ERROR;
	__atomic_store_n(&mode_told, NO_VAL16, __ATOMIC_RELAXED);
	warn_of_mode(plain_mode(slurm_conf.preempt_mode));
	verbose("gpubudget: preempt/gpubudget loaded for Slurm %s", SLURM_VERSION_STRING);
	return SLURM_SUCCESS;
}

EXPORT void fini(void)
{
	attempt_free();
}

/* As of when the queue is sorted: one instant for the whole of it. */
static time_t sorting;

bool makes_room(const job_record_t *job, time_t now)
{
	time_t since = job->details ? job->details->preempt_start_time : 0;

	return since && since > now - slurm_conf.kill_wait - slurm_conf.msg_timeout;
}

/* From the first in the queue to the last. */
enum standing { NEEDS_ROOM, MAKES_ROOM, HAS_ROOM, WAITS };

/* Of a het job a component that has yet to have others evicted is before those that have
 * had, and these before those that need nobody to go: see het.c. */
static enum standing standing(const job_record_t *job)
{
	bool makes = makes_room(job, __atomic_load_n(&sorting, __ATOMIC_RELAXED));

	if (!job->het_job_id)
		return makes ? MAKES_ROOM : WAITS;
	switch (het_place(job)) {
	case CLAIM_NEEDS_ROOM:
		return makes ? MAKES_ROOM : NEEDS_ROOM;
	case CLAIM_HAS_ROOM:
		return makes ? MAKES_ROOM : HAS_ROOM;
	default:
		return WAITS;
	}
}

/* The first thing that the pending queue is sorted by, before partition tiers
 * and priorities, and so to be true of few: who has had others evicted comes
 * first, or those would have made way for somebody else. Kinds of jobs are a
 * strict weak order. Allocated jobs are before unallocated ones by priority. */
EXPORT bool preempt_p_job_preempt_check(job_queue_rec_t *preemptor, job_queue_rec_t *preemptee)
{
	return standing(preemptor->job_ptr) < standing(preemptee->job_ptr);
}

static bool same_het_job(const job_record_t *a, const job_record_t *b)
{
	return a->het_job_id && a->het_job_id == b->het_job_id;
}

/* Asked of every job of the list, pending ones and the request itself too. Of a het job that
 * runs slurmctld asks about all components, with their list locked: if they are the
 * request's own, that is not to be looked through again. */
EXPORT bool preempt_p_preemptable(job_record_t *preemptee, job_record_t *preemptor)
{
	attempt_walks();
	if (preemptee == preemptor || same_het_job(preemptee, preemptor) || (!IS_JOB_RUNNING(preemptee) && !IS_JOB_SUSPENDED(preemptee)) ||
	    !IS_JOB_PENDING(preemptor))
		return false;
	return attempt_order(preemptee, preemptor) != 0;
}

/* Whether there is preemption at all slurmctld asks before each walk over its
 * jobs, when it holds no list; a job's grace time once, as it evicts the job. */
EXPORT int preempt_p_get_data(job_record_t *job, slurm_preempt_data_type_t type, void *data)
{
	switch (type) {
	case PREEMPT_DATA_ENABLED:
		if ((*(bool *)data = enabled())) {
			__atomic_store_n(&sorting, time(NULL), __ATOMIC_RELAXED);
			attempt_prepare();
		}
		return SLURM_SUCCESS;
	case PREEMPT_DATA_MODE:
		*(uint16_t *)data = preempt_mode(job);
		return SLURM_SUCCESS;
	case PREEMPT_DATA_PRIO:
		*(uint32_t *)data = attempt_order_last(job);
		return SLURM_SUCCESS;
	case PREEMPT_DATA_GRACE_TIME:
		*(uint32_t *)data = grace_time(job);
		attempt_evicts(job, *(uint32_t *)data);
		return SLURM_SUCCESS;
	}
	error("gpubudget: slurmctld asks for what no preempt plugin of Slurm %s has (%d)", SLURM_VERSION_STRING, type);
	return SLURM_ERROR;
}
