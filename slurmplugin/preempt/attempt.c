/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * attempt.c: who may be evicted for the job that slurmctld is trying to place.
 *
 * It asks about every job of its list, one after the other, and then sorts those
 * that may be by what it asks about two at a time. The first question has the
 * Go library decide about all; the others are looked up. An answer is used again
 * for as long as nothing that we see has changed, at most within the second.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preempt.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct answer {
	uint32_t job_id, order;
};

static struct {
	uint32_t request; /* job id; 0 if there is no answer */
	const part_record_t *part;
	time_t at, jobs_changed;
	int nodes; /* that could be used */
	struct placing placing;
	uint32_t count;
	uint64_t serial; /* of the answers, from 1 */
	struct answer *table; /* hashed by job id; job id 0: nobody */
	int64_t *starts;      /* of the runs that were asked about, in the same places */
	uint32_t bits, room;  /* their size is 1 << bits */
} attempt;

/* Whom this thread asked for last. slurmctld then sorts the candidates and
 * evicts some without saying for whom. */
static __thread struct {
	uint32_t request;
	uint64_t serial; /* of the answers it goes by in this walk over the jobs; 0: not known yet */
} asking;

static uint32_t slot(uint32_t job_id)
{
	return job_id * 2654435769u >> (32 - attempt.bits); /* Fibonacci hashing: ids are consecutive */
}

/* At most half of the table is in use. */
static bool make_table(uint32_t answers)
{
	uint32_t size;

	for (attempt.bits = 8; 1u << attempt.bits < 2 * answers; attempt.bits++)
		;
	size = 1u << attempt.bits;
	if (attempt.room < size) {
		free(attempt.table);
		free(attempt.starts);
		attempt.room = 0;
		attempt.table = malloc(size * sizeof(*attempt.table));
		attempt.starts = malloc(size * sizeof(*attempt.starts));
		if (!attempt.table || !attempt.starts)
			return false;
		attempt.room = size;
	}
	memset(attempt.table, 0, size * sizeof(*attempt.table));
	return true;
}

static void put_answer(const struct gpub_occupant *o)
{
	uint32_t at = slot(o->job_id), mask = (1u << attempt.bits) - 1;

	while (attempt.table[at].job_id)
		at = (at + 1) & mask;
	attempt.table[at] = (struct answer){ o->job_id, o->order };
	attempt.starts[at] = o->start;
}

static bool keep_answers(void)
{
	const struct gpub_placing *placing = &attempt.placing.bridge;
	uint32_t count = 0;

	for (uint32_t i = 0; i < placing->occupant_count; i++)
		count += placing->occupants[i].order != 0;
	if (!make_table(count))
		return false;
	for (uint32_t i = 0; i < placing->occupant_count; i++)
		if (placing->occupants[i].order)
			put_answer(&placing->occupants[i]);
	attempt.count = count;
	return true;
}

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static int64_t clock_ms(void)
{
	return clock_ns(CLOCK_REALTIME) / 1000000;
}

static void decide(const struct gpub_peer *peer, const job_record_t *request, time_t now)
{
	assoc_mgr_lock_t locks = { .assoc = READ_LOCK, .qos = READ_LOCK };
	int64_t begin = clock_ns(CLOCK_MONOTONIC);

	attempt.count = 0;
	attempt.request = request->job_id;
	attempt.serial++;
	assoc_mgr_lock(&locks);
	if (placing_read(&attempt.placing, peer, request, now) &&
	    peer->candidates(&attempt.placing.bridge, clock_ms()) == GPUB_OK && !keep_answers())
		error("gpubudget: memory is short: nobody is evicted for JobId=%u", request->job_id);
	assoc_mgr_unlock(&locks);
	debug2("gpubudget: JobId=%u: %u of %u running jobs may be evicted, as was found in %.3f ms", request->job_id,
	       attempt.count, attempt.placing.bridge.occupant_count, (clock_ns(CLOCK_MONOTONIC) - begin) / 1e6);
}

static bool answered(const job_record_t *request, time_t now)
{
	return attempt.request == request->job_id && attempt.part == request->part_ptr && attempt.at == now &&
	       attempt.jobs_changed == last_job_update && attempt.nodes == bit_set_count(avail_node_bitmap);
}

/* Where a job's answer is; -1 if it may not be evicted. */
static int64_t find(const job_record_t *job)
{
	uint32_t mask = (1u << attempt.bits) - 1;

	if (!attempt.count)
		return -1;
	for (uint32_t at = slot(job->job_id); attempt.table[at].job_id; at = (at + 1) & mask)
		if (attempt.table[at].job_id == job->job_id)
			return at;
	return -1;
}

/* Nothing that an answer depends on changes within a walk. */
void attempt_prepare(void)
{
	asking.serial = 0;
	if (!job_list)
		return;
	pthread_mutex_lock(&lock);
	running_look(time(NULL));
	pthread_mutex_unlock(&lock);
}

/* Sees to it that there are answers for the request. */
static void answer(const struct gpub_peer *peer, const job_record_t *request)
{
	time_t now = time(NULL);

	if (!answered(request, now)) {
		attempt.part = request->part_ptr;
		attempt.at = now;
		attempt.jobs_changed = last_job_update;
		attempt.nodes = bit_set_count(avail_node_bitmap);
		decide(peer, request, now);
	}
	asking.request = request->job_id;
	asking.serial = attempt.serial;
}

uint32_t attempt_order(const job_record_t *job, const job_record_t *request)
{
	const struct gpub_peer *peer = library_peer();
	uint32_t order = 0;
	int64_t at;

	if (!peer || !avail_node_bitmap)
		return 0;
	pthread_mutex_lock(&lock);
	if (asking.request != request->job_id || asking.serial != attempt.serial)
		answer(peer, request);
	/* A run that began since was not asked about. */
	if ((at = find(job)) >= 0 && attempt.starts[at] == run_start(job))
		order = attempt.table[at].order;
	pthread_mutex_unlock(&lock);
	return order;
}

uint32_t attempt_order_last(const job_record_t *job)
{
	uint32_t order = 0;
	int64_t at;

	pthread_mutex_lock(&lock);
	if (asking.request && attempt.request == asking.request && (at = find(job)) >= 0)
		order = attempt.table[at].order;
	pthread_mutex_unlock(&lock);
	return order;
}

void attempt_evicts(const job_record_t *job)
{
	const struct gpub_peer *peer = library_peer();

	if (!peer || !asking.request)
		return;
	peer->preempted(job->job_id, asking.request, clock_ms());
	pthread_mutex_lock(&lock);
	attempt.request = 0;
	attempt.serial++;
	pthread_mutex_unlock(&lock);
}

void attempt_free(void)
{
	uint64_t serial;

	pthread_mutex_lock(&lock);
	running_free();
	placing_free(&attempt.placing);
	free(attempt.table);
	free(attempt.starts);
	serial = attempt.serial;
	memset(&attempt, 0, sizeof(attempt));
	attempt.serial = serial + 1; /* threads remember it */
	pthread_mutex_unlock(&lock);
}
