/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * attempt.c: who may be evicted for the job that slurmctld is trying to place.
 *
 * It asks about every job of its list, one after the other. The first question
 * has the Go library decide about all; the others are looked up. An answer is
 * used again for as long as nothing that we see has changed, at most within
 * the second.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preempt.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct answer {
	uint32_t job_id, order;
	int64_t start;
};

static struct {
	uint32_t request; /* job id; 0 if there is no answer */
	const part_record_t *part;
	time_t at, jobs_changed;
	int nodes; /* that could be used */
	struct placing placing;
	struct answer *answers; /* by job id */
	uint32_t count, room;
} attempt;

/* Whom this thread asked for last. slurmctld then sorts the candidates and
 * evicts some without saying for whom. */
static __thread uint32_t asking;

static int by_job(const void *a, const void *b)
{
	uint32_t x = ((const struct answer *)a)->job_id, y = ((const struct answer *)b)->job_id;

	return x < y ? -1 : x > y;
}

static bool keep_answers(void)
{
	const struct gpub_placing *placing = &attempt.placing.bridge;

	if (attempt.room < placing->occupant_count) {
		uint32_t room = placing->occupant_count + 256;
		struct answer *more = realloc(attempt.answers, room * sizeof(*more));

		if (!more)
			return false;
		attempt.answers = more;
		attempt.room = room;
	}
	for (uint32_t i = 0; i < placing->occupant_count; i++) {
		const struct gpub_occupant *o = &placing->occupants[i];

		if (o->order)
			attempt.answers[attempt.count++] = (struct answer){ o->job_id, o->order, o->start };
	}
	qsort(attempt.answers, attempt.count, sizeof(*attempt.answers), by_job);
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
	assoc_mgr_lock(&locks);
	if (placing_read(&attempt.placing, peer, request, now) &&
	    peer->candidates(&attempt.placing.bridge, clock_ms()) == GPUB_OK && !keep_answers())
		attempt.count = 0;
	assoc_mgr_unlock(&locks);
	debug2("gpubudget: JobId=%u: %u of %u running jobs may be evicted, as was found in %.3f ms", request->job_id,
	       attempt.count, attempt.placing.bridge.occupant_count, (clock_ns(CLOCK_MONOTONIC) - begin) / 1e6);
}

static bool answered(const job_record_t *request, time_t now)
{
	return attempt.request == request->job_id && attempt.part == request->part_ptr && attempt.at == now &&
	       attempt.jobs_changed == last_job_update && attempt.nodes == bit_set_count(avail_node_bitmap);
}

static uint32_t find(const job_record_t *job)
{
	const struct answer key = { .job_id = job->job_id }, *found;

	if (!attempt.count)
		return 0;
	found = bsearch(&key, attempt.answers, attempt.count, sizeof(key), by_job);
	/* A run that began since was not asked about. */
	return found && found->start == run_start(job) ? found->order : 0;
}

void attempt_prepare(void)
{
	if (!job_list)
		return;
	pthread_mutex_lock(&lock);
	running_look(time(NULL));
	pthread_mutex_unlock(&lock);
}

uint32_t attempt_order(const job_record_t *job, const job_record_t *request)
{
	const struct gpub_peer *peer = library_peer();
	uint32_t order = 0;
	time_t now;

	if (!peer || !avail_node_bitmap)
		return 0;
	now = time(NULL);
	pthread_mutex_lock(&lock);
	asking = request->job_id;
	if (!answered(request, now)) {
		attempt.part = request->part_ptr;
		attempt.at = now;
		attempt.jobs_changed = last_job_update;
		attempt.nodes = bit_set_count(avail_node_bitmap);
		decide(peer, request, now);
	}
	order = find(job);
	pthread_mutex_unlock(&lock);
	return order;
}

uint32_t attempt_order_last(const job_record_t *job)
{
	uint32_t order = 0;

	pthread_mutex_lock(&lock);
	if (asking && attempt.request == asking)
		order = find(job);
	pthread_mutex_unlock(&lock);
	return order;
}

void attempt_evicts(const job_record_t *job)
{
	const struct gpub_peer *peer = library_peer();

	if (!peer || !asking)
		return;
	peer->preempted(job->job_id, asking, clock_ms());
	pthread_mutex_lock(&lock);
	attempt.request = 0;
	pthread_mutex_unlock(&lock);
}

void attempt_free(void)
{
	pthread_mutex_lock(&lock);
	running_free();
	placing_free(&attempt.placing);
	free(attempt.answers);
	memset(&attempt, 0, sizeof(attempt));
	pthread_mutex_unlock(&lock);
}
