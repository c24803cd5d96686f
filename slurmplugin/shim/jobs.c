/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * jobs.c: a walk over slurmctld's jobs that waits for memory as little as can be.
 *
 * 100,000 records of a kilobyte lie all over the heap, in no cache. A walk
 * that takes one after the other waits for each, several times over: for the
 * record, then for what it points to. Here the processor is told of a record a
 * while before its turn: to fetch the record itself and, when that has come,
 * what it points to. Meanwhile it is busy with the jobs before, and with
 * finding the way along the list, which nothing can hasten.
 */
#include "shim.h"

#define AHEAD 6 /* jobs between two steps; a dozen lines of each are on their way */
#define RING 16 /* a power of two that holds those of both steps */

struct walk {
	const struct jobs_walk *how;
	void *arg;
	job_record_t *ring[RING];
	uint32_t met; /* jobs of the list */
};

/* Looks at the job whose turn it is when so many have been met. */
static int look_back(struct walk *walk, uint32_t met)
{
	if (walk->how->fetch_more && met >= AHEAD && met - AHEAD < walk->met)
		walk->how->fetch_more(walk->ring[(met - AHEAD) % RING]);
	return met >= 2 * AHEAD ? walk->how->see(walk->ring[(met - 2 * AHEAD) % RING], walk->arg) : SLURM_SUCCESS;
}

static int meet(void *x, void *arg)
{
	struct walk *walk = arg;
	uint32_t i = walk->met++;

	walk->ring[i % RING] = x;
	walk->how->fetch(x);
	return look_back(walk, i);
}

bool jobs_for_each(const struct jobs_walk *how, void *arg)
{
	struct walk walk = { .how = how, .arg = arg };
	uint32_t first;

	if (list_for_each_ro(job_list, meet, &walk) < 0)
		return false;
	/* Those that have not had their turn; of a short list that is all. */
	first = walk.met;
	for (uint32_t i = first; i < first + 2 * AHEAD; i++)
		if (look_back(&walk, i) < 0)
			return false;
	return true;
}
