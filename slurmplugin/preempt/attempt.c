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

#include "byid.h"
#include "preempt.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	uint32_t request; /* job id; 0 if there is no answer */
	const part_record_t *part;
	time_t at, jobs_changed;
	int nodes; /* that could be used */
	struct placing placing;
	uint64_t serial;     /* of the answers, from 1 */
	struct by_id orders; /* of those that may be evicted */
	int64_t *starts;     /* of the runs that were asked about, in the same places */
	uint32_t starts_room;
} attempt;

/* Whom this thread asked for last. slurmctld then sorts the candidates and
 * evicts some without saying for whom. */
static __thread struct {
	uint32_t request;
	uint64_t serial; /* of the answers it goes by in this walk over the jobs; 0: not known yet */
	uint32_t place;  /* to which this walk has come */
} asking;

static void put_answer(const struct gpub_occupant *o)
{
	attempt.starts[by_id_put(&attempt.orders, o->job_id, o->order)] = o->start;
}

static bool keep_answers(void)
{
	const struct gpub_placing *placing = &attempt.placing.bridge;
	uint32_t count = 0;

	for (uint32_t i = 0; i < placing->occupant_count; i++)
		count += placing->occupants[i].order != 0;
	if (!by_id_make(&attempt.orders, count) ||
	    !array_grow(&attempt.starts, &attempt.starts_room, 1u << attempt.orders.bits, sizeof(*attempt.starts)))
		return false;
	for (uint32_t i = 0; i < placing->occupant_count; i++)
		if (placing->occupants[i].order)
			put_answer(&placing->occupants[i]);
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

	attempt.orders.count = 0;
	attempt.request = request->job_id;
	attempt.serial++;
	assoc_mgr_lock(&locks);
	if (placing_read(&attempt.placing, peer, request, now) &&
	    peer->candidates(&attempt.placing.bridge, clock_ms()) == GPUB_OK && !keep_answers())
		error("gpubudget: memory is short: nobody is evicted for JobId=%u", request->job_id);
	assoc_mgr_unlock(&locks);
	debug2("gpubudget: JobId=%u: %u of %u running jobs may be evicted, as was found in %.3f ms", request->job_id,
	       attempt.orders.count, attempt.placing.bridge.occupant_count, (clock_ns(CLOCK_MONOTONIC) - begin) / 1e6);
}

static bool answered(const job_record_t *request, time_t now)
{
	return attempt.request == request->job_id && attempt.part == request->part_ptr && attempt.at == now &&
	       attempt.jobs_changed == last_job_update && attempt.nodes == bit_set_count(avail_node_bitmap);
}

/* Nothing that an answer depends on changes within a walk. */
void attempt_prepare(void)
{
	asking.serial = 0;
	asking.place = 0;
	if (!job_list)
		return;
	pthread_mutex_lock(&lock);
	running_look(time(NULL));
	pthread_mutex_unlock(&lock);
}

void attempt_walks(void)
{
	running_fetch(asking.place++);
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
	if ((at = by_id_find(&attempt.orders, job->job_id)) >= 0 && attempt.starts[at] == run_start(job))
		order = attempt.orders.entries[at].value;
	pthread_mutex_unlock(&lock);
	return order;
}

uint32_t attempt_order_last(const job_record_t *job)
{
	uint32_t order = 0;
	int64_t at;

	pthread_mutex_lock(&lock);
	if (asking.request && attempt.request == asking.request && (at = by_id_find(&attempt.orders, job->job_id)) >= 0)
		order = attempt.orders.entries[at].value;
	pthread_mutex_unlock(&lock);
	return order;
}

void attempt_evicts(const job_record_t *job)
{
	const struct gpub_peer *peer = library_peer();

	if (!peer || !asking.request)
		return;
	peer->preempted(job->job_id, asking.request, preempt_mode(job) == PREEMPT_MODE_REQUEUE, clock_ms());
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
	by_id_free(&attempt.orders);
	free(attempt.starts);
	serial = attempt.serial;
	memset(&attempt, 0, sizeof(attempt));
	attempt.serial = serial + 1; /* threads remember it */
	pthread_mutex_unlock(&lock);
}
