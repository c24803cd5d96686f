/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * jobs.c: a walk over slurmctld's jobs that doesn't wait for memory.
 *
 * 100,000 records of a kilobyte lie all over the heap, in no cache. A walk
 * that takes one after the other waits for each, several times over: for the
 * record, then for what it points to. Here the addresses are gathered first,
 * and the processor is told of records a while before their turn: to fetch the
 * record itself, and when that has come, what it points to.
 */
#include <stdlib.h>

#include "shim.h"

#define AHEAD 6 /* jobs between two steps; a dozen lines of each are on their way */

struct gathering {
	job_record_t **jobs;
	uint32_t count, room;
};

static int gather(void *x, void *arg)
{
	struct gathering *all = arg;

	if (all->count == all->room)
		return -1;
	all->jobs[all->count++] = x;
	return SLURM_SUCCESS;
}

static bool walk(const struct gathering *all, const struct jobs_walk *how, void *arg)
{
	for (uint32_t i = 0; i < all->count + 2 * AHEAD; i++) {
		if (i < all->count)
			how->fetch(all->jobs[i]);
		if (how->fetch_more && i >= AHEAD && i - AHEAD < all->count)
			how->fetch_more(all->jobs[i - AHEAD]);
		if (i >= 2 * AHEAD && how->see(all->jobs[i - 2 * AHEAD], arg) < 0)
			return false;
	}
	return true;
}

bool jobs_for_each(const struct jobs_walk *how, void *arg)
{
	struct gathering all = { .room = list_count(job_list) };
	bool whole;

	if (!all.room)
		return true;
	if (!(all.jobs = malloc(all.room * sizeof(*all.jobs)))) /* then without haste */
		return list_for_each_ro(job_list, how->see, arg) >= 0;
	list_for_each_ro(job_list, gather, &all);
	whole = walk(&all, how, arg);
	free(all.jobs);
	return whole;
}
