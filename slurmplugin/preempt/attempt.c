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

#include "src/slurmctld/acct_policy.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	uint32_t request; /* job id; 0 if there is no answer */
	const part_record_t *part;
	time_t at, jobs_changed;
	int nodes; /* that could be used */
	struct placing placing;
	uint64_t serial;     /* of the answers, from 1 */
	struct by_id orders; /* of those that may be evicted */
	struct by_id before; /* the same, of the component for which it began */
	int64_t *starts;     /* of the runs that were asked about, in the same places */
	uint32_t starts_room;
} attempt;

/* Whom this thread asked for last. slurmctld then sorts the candidates and
 * evicts some without saying for whom. */
static __thread struct {
	uint32_t request;
	uint64_t serial; /* of the answers it goes by in this walk over the jobs; 0: not known yet */
	uint32_t place;  /* to which this walk has come */
	bool whole;      /* all components of a het job have others evicted */
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
	if (request->het_job_id && !het_may_ask(request, now))
		return;
	assoc_mgr_lock(&locks);
	if (placing_read(&attempt.placing, peer, request, now) &&
	    peer->candidates(&attempt.placing.bridge, clock_ms()) == GPUB_OK && !keep_answers())
		error("gpubudget: memory is short: nobody is evicted for JobId=%u", request->job_id);
	assoc_mgr_unlock(&locks);
	if (request->het_job_id && !het_may_evict(request, attempt.orders.count, now))
		attempt.orders.count = 0;
	debug2("gpubudget: JobId=%u: %u of %u running jobs may be evicted, as was found in %.3f ms", request->job_id,
	       attempt.orders.count, attempt.placing.bridge.occupant_count, (clock_ns(CLOCK_MONOTONIC) - begin) / 1e6);
}

/* Of a het job also on whether other components have just been started. */
static bool answered(const job_record_t *request, time_t now)
{
	return !request->het_job_id && attempt.request == request->job_id && attempt.part == request->part_ptr && attempt.at == now &&
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

/* Those who are to go for a component of a het job, of the nodes that are planned for it;
 * without those whom slurmctld may be about to evict for another one. */
static uint32_t *find_victims(const struct gpub_peer *peer, const job_record_t *request, uint32_t *count)
{
	uint32_t *victims;

	*count = 0;
	pthread_mutex_lock(&lock);
	decide(peer, request, time(NULL));
	if ((victims = malloc((attempt.orders.count + 1) * sizeof(*victims))))
		for (uint32_t i = 0; i < attempt.placing.bridge.occupant_count && attempt.orders.count; i++)
			if (attempt.placing.occupants[i].order && by_id_find(&attempt.before, attempt.placing.occupants[i].job_id) < 0)
				victims[(*count)++] = attempt.placing.occupants[i].job_id;
	pthread_mutex_unlock(&lock);
	return victims;
}

static void evict(job_record_t *victim, job_record_t *request)
{
	if ((victim->het_job_id && !victim->het_job_list) || acct_policy_is_job_preempt_exempt(victim))
		return; /* a het job goes with its first component */
	slurm_job_preempt(victim, request, slurm_job_preempt_mode(victim), true);
}

/* What slurmctld does as it evicts somebody for a job, for one that it would come to
 * only after the next pass. */
static void evict_for(const struct gpub_peer *peer, job_record_t *request)
{
	job_record_t *victim;
	uint32_t count, *victims = find_victims(peer, request, &count);

	asking.request = request->job_id;
	for (uint32_t i = 0; i < count; i++)
		if ((victim = find_job_record(victims[i])) && (IS_JOB_RUNNING(victim) || IS_JOB_SUSPENDED(victim)))
			evict(victim, request);
	if (count)
		request->details->preempt_start_time = time(NULL);
	free(victims);
}

static void keep_before(void)
{
	struct by_id orders;

	pthread_mutex_lock(&lock);
	orders = attempt.before;
	attempt.before = attempt.orders;
	attempt.orders = orders;
	pthread_mutex_unlock(&lock);
}

/* All components have others evicted in the same moment. */
static void evict_for_others(const struct gpub_peer *peer, const job_record_t *request)
{
	const job_record_t *leader = het_leader(request);
	ListIterator iterator;
	job_record_t *other;

	if (!leader)
		return;
	asking.whole = true;
	keep_before();
	iterator = list_iterator_create(leader->het_job_list);
	while ((other = list_next(iterator)))
		if (other != request && other->sched_nodes && !makes_room(other, time(NULL)) && het_is_needy(other))
			evict_for(peer, other);
	list_iterator_destroy(iterator);
	asking.request = request->job_id;
	asking.whole = false;
}

void attempt_evicts(const job_record_t *job, uint32_t grace)
{
	const struct gpub_peer *peer = library_peer();
	const job_record_t *request;
	bool first;

	if (!peer || !asking.request)
		return;
	peer->preempted(job->job_id, asking.request, preempt_mode(job) == PREEMPT_MODE_REQUEUE, clock_ms());
	pthread_mutex_lock(&lock);
	first = attempt.request == asking.request;
	attempt.request = 0;
	attempt.serial++;
	pthread_mutex_unlock(&lock);
	request = find_job_record(asking.request);
	if (!request || !request->het_job_id)
		return;
	het_evicts(request, grace, time(NULL));
	if (first && !asking.whole)
		evict_for_others(peer, request);
}

void attempt_free(void)
{
	uint64_t serial;

	pthread_mutex_lock(&lock);
	running_free();
	placing_free(&attempt.placing);
	by_id_free(&attempt.orders);
	by_id_free(&attempt.before);
	free(attempt.starts);
	serial = attempt.serial;
	memset(&attempt, 0, sizeof(attempt));
	attempt.serial = serial + 1; /* threads remember it */
	pthread_mutex_unlock(&lock);
}
