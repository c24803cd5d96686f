/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * running.c: which jobs run.
 *
 * slurmctld asks us in the midst of a walk over its list of jobs, which is
 * locked then. So the list is looked at before, when slurmctld asks whether
 * there is any preemption at all; the records are found by their numbers.
 */
#include <stdlib.h>

#include "preempt.h"

static struct {
	uint32_t *ids;
	uint32_t count, room;
	time_t at;
	bool failed;
} running;

static int note(void *x, void *arg)
{
	const job_record_t *job = x;
	uint32_t *ids;

	(void)arg;
	if (!IS_JOB_RUNNING(job) && !IS_JOB_SUSPENDED(job) && !IS_JOB_COMPLETING(job))
		return 0;
	if (running.count == running.room) {
		uint32_t room = 2 * running.room + 256;

		if (!(ids = realloc(running.ids, room * sizeof(*ids)))) {
			running.failed = true;
			return -1;
		}
		running.ids = ids;
		running.room = room;
	}
	running.ids[running.count++] = job->job_id;
	return 0;
}

void running_look(time_t now)
{
	if (running.at == now)
		return;
	running.at = now;
	running.count = 0;
	running.failed = false;
	list_for_each_ro(job_list, note, NULL);
	if (running.failed) /* what is missing would look like room */
		running.count = 0;
}

const uint32_t *running_ids(uint32_t *count)
{
	*count = running.count;
	return running.ids;
}

void running_free(void)
{
	free(running.ids);
	running.ids = NULL;
	running.count = running.room = 0;
	running.at = 0;
}
