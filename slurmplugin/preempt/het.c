/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * het.c: het jobs that others have to make way for.
 *
 * Backfill starts the components of a het job one after the other, in the order of its
 * queue. The first one for which somebody has to be evicted doesn't start at once: there
 * backfill stops, takes back those that it has just started, and holds these back until their
 * credentials have expired. Meanwhile others take all that was freed. So
 *
 *  - who has others evicted comes before those components that have room. Who that is, is
 *    known only when the rules were asked for each, so nobody is offered before backfill
 *    has sorted its queue again;
 *  - with the first component that has others evicted all do, on the nodes that this pass of
 *    backfill has planned for them;
 *  - meanwhile the whole job is first in the queue;
 *  - while a component runs or is held back nobody goes for the others;
 *  - a job for which nobody was evicted after all gets another turn later, and the later the
 *    more often that happened.
 */
#include <pthread.h>

#include "claims.h"
#include "preempt.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct claims claims;

static uint64_t this_thread(void)
{
	return (uint64_t)pthread_self();
}

/* ---- the components ---- */

const job_record_t *het_leader(const job_record_t *job)
{
	const job_record_t *leader = job->het_job_id ? find_job_record(job->het_job_id) : NULL;

	return leader && leader->het_job_list ? leader : NULL;
}

struct search {
	const job_record_t *request;
	time_t now;
};

static int can_not_start(void *x, void *arg)
{
	const job_record_t *job = x;
	const struct search *search = arg;

	return job != search->request &&
	       (!IS_JOB_PENDING(job) || IS_JOB_COMPLETING(job) || !job->priority || !job->details ||
		job->details->begin_time > search->now);
}

/* Some other component runs already, still cleans up, or is held back. */
static bool hindered(const job_record_t *request, time_t now)
{
	struct search search = { request, now };
	const job_record_t *leader = het_leader(request);

	return leader && list_find_first_ro(leader->het_job_list, can_not_start, &search);
}

/* Backfill only looks; otherwise it is about to start the job. */
static bool only_looked_at(const job_record_t *job)
{
	return job->bit_flags & BACKFILL_TEST;
}

static bitstr_t *planned_nodes(const job_record_t *job)
{
	bitstr_t *nodes = NULL;

	if (job->sched_nodes && gpub_node_bitmap(job->sched_nodes, &nodes) != SLURM_SUCCESS)
		FREE_NULL_BITMAP(nodes);
	return nodes;
}

struct exclusion {
	const job_record_t *request;
	bitstr_t *nodes;
};

static int exclude_planned(void *x, void *arg)
{
	const job_record_t *job = x;
	struct exclusion *exclusion = arg;
	bitstr_t *planned;

	if (job == exclusion->request || !IS_JOB_PENDING(job) || !(planned = planned_nodes(job)))
		return 0;
	bit_and_not(exclusion->nodes, planned);
	FREE_NULL_BITMAP(planned);
	return 0;
}

/* Components never share a node. Backfill plans those of each as it looks at it, and
 * forgets the plans of the pass before. */
void het_limit_nodes(bitstr_t *nodes, const job_record_t *request)
{
	struct exclusion exclusion = { request, nodes };
	const job_record_t *leader = het_leader(request);
	bitstr_t *planned;

	if (!leader)
		return;
	if (only_looked_at(request)) {
		list_for_each_ro(leader->het_job_list, exclude_planned, &exclusion);
		return;
	}
	if ((planned = planned_nodes(request)))
		bit_and(nodes, planned);
	FREE_NULL_BITMAP(planned);
}

/* ---- what is asked ---- */

bool het_may_ask(const job_record_t *request, time_t now)
{
	struct claim *claim;

	if (!hindered(request, now))
		return true;
	pthread_mutex_lock(&lock);
	if ((claim = claim_find(&claims, request->het_job_id)) && claim->known)
		claim_pause(claim, now);
	pthread_mutex_unlock(&lock);
	return false;
}

bool het_may_evict(const job_record_t *request, uint32_t candidates, time_t now)
{
	struct claim *claim;
	bool may = false;

	pthread_mutex_lock(&lock);
	claim = candidates ? claim_make(&claims, request->het_job_id, now) : claim_find(&claims, request->het_job_id);
	if (claim && only_looked_at(request))
		may = claim_test(claim, request->job_id, candidates, this_thread(), now);
	else if (claim)
		may = claim_allows(claim, request->job_id);
	pthread_mutex_unlock(&lock);
	return may;
}

void het_evicts(const job_record_t *request, uint32_t grace, time_t now)
{
	struct claim *claim;

	pthread_mutex_lock(&lock);
	if ((claim = claim_find(&claims, request->het_job_id)))
		claim_evicts(claim, (int64_t)now + grace + slurm_conf.kill_wait + slurm_conf.msg_timeout);
	pthread_mutex_unlock(&lock);
}

bool het_is_needy(const job_record_t *job)
{
	const struct claim *claim;
	bool needy;

	pthread_mutex_lock(&lock);
	claim = claim_find(&claims, job->het_job_id);
	needy = claim && claim_allows(claim, job->job_id);
	pthread_mutex_unlock(&lock);
	return needy;
}

enum claim_place het_place(const job_record_t *job)
{
	enum claim_place place = CLAIM_NONE;
	struct claim *claim;

	if (!job->het_job_id || !__atomic_load_n(&claims.count, __ATOMIC_RELAXED))
		return CLAIM_NONE;
	pthread_mutex_lock(&lock);
	if ((claim = claim_find(&claims, job->het_job_id)))
		place = claim_sort(claim, job->job_id, this_thread());
	pthread_mutex_unlock(&lock);
	return place;
}
