/* SPDX-License-Identifier: GPL-2.0-or-later */
/* eviction.h: what Slurm grants a job that has to go, be it preempted or drained. */
#ifndef GPUBUDGET_EVICTION_H
#define GPUBUDGET_EVICTION_H

#include "slurm_compat.h"

/* Only batch jobs that say so can be requeued. */
static inline bool requeuable(const job_record_t *job)
{
	return job->batch_flag && job->details && job->details->requeue;
}

/* Seconds, of the job or component: its QOS's, or else its partition's. Needs the
 * association manager's lock of QOSs, to read. */
static inline uint32_t grace_time(const job_record_t *job)
{
	if (job->qos_ptr && job->qos_ptr->grace_time)
		return job->qos_ptr->grace_time;
	return job->part_ptr ? job->part_ptr->grace_time : 0;
}

#endif
