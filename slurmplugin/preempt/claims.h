/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * claims.h: het jobs that wait for others to make way: het.c says why. Nothing of Slurm's
 * is in here, so that it is tested by itself. Times are seconds.
 */
#ifndef GPUBUDGET_CLAIMS_H
#define GPUBUDGET_CLAIMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CLAIMS = 64,             /* het jobs at a time: those that asked first */
	CLAIM_COMPONENTS = 16,   /* of one, for which somebody has to go */
	CLAIM_TESTS = 4,         /* by backfill, after which a claim has come to nothing */
	CLAIM_PAUSE = 10,        /* after which there may be another one; twice as long after each */
	CLAIM_DOUBLINGS = 6,
	CLAIM_LONGEST_GAP = 120, /* between two looks at a job, for which what was freed is kept */
	CLAIM_FORGOTTEN = 600    /* for which nobody asked */
};

/* What a het job wants of others. */
struct claim {
	uint32_t het_job_id; /* 0: none */
	uint32_t needy[CLAIM_COMPONENTS], count;
	uint64_t backfill;   /* the thread that asks */
	bool known;          /* some are needy, or were and make room now */
	bool sorted;         /* backfill's queue was, since all of them are known */
	uint32_t tests;      /* of the first of them, while nobody was on the way out */
	uint32_t failed;     /* times that nothing came of it */
	int64_t asked, gap;  /* last for the first of them, and after how long */
	int64_t paused_until;
	int64_t evicts_until; /* by when those who were evicted are gone */
};

struct claims {
	struct claim all[CLAIMS];
	uint32_t count;
};

static inline struct claim *claim_find(struct claims *claims, uint32_t het_job_id)
{
	for (uint32_t i = 0; i < CLAIMS; i++)
		if (claims->all[i].het_job_id == het_job_id)
			return &claims->all[i];
	return NULL;
}

static inline void claims_forget(struct claims *claims, int64_t now)
{
	for (uint32_t i = 0; i < CLAIMS; i++) {
		if (!claims->all[i].het_job_id || now - claims->all[i].asked <= CLAIM_FORGOTTEN)
			continue;
		claims->all[i].het_job_id = 0;
		claims->count--;
	}
}

/* NULL if there are too many. */
static inline struct claim *claim_make(struct claims *claims, uint32_t het_job_id, int64_t now)
{
	struct claim *claim = claim_find(claims, het_job_id);

	if (claim)
		return claim;
	claims_forget(claims, now);
	if (!(claim = claim_find(claims, 0)))
		return NULL;
	*claim = (struct claim){ .het_job_id = het_job_id, .asked = now };
	claims->count++;
	return claim;
}

static inline bool claim_needs(const struct claim *claim, uint32_t job_id)
{
	for (uint32_t i = 0; i < claim->count; i++)
		if (claim->needy[i] == job_id)
			return true;
	return false;
}

static inline void claim_add(struct claim *claim, uint32_t job_id)
{
	if (claim_needs(claim, job_id) || claim->count == CLAIM_COMPONENTS)
		return;
	claim->needy[claim->count++] = job_id;
	claim->known = true;
	claim->sorted = false;
}

static inline void claim_remove(struct claim *claim, uint32_t job_id)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < claim->count; i++)
		if (claim->needy[i] != job_id)
			claim->needy[kept++] = claim->needy[i];
	claim->count = kept;
}

static inline void claim_give_up(struct claim *claim)
{
	claim->count = claim->tests = 0;
	claim->known = claim->sorted = false;
	claim->evicts_until = 0;
}

static inline void claim_pause(struct claim *claim, int64_t now)
{
	uint32_t doublings = claim->failed < CLAIM_DOUBLINGS ? claim->failed : CLAIM_DOUBLINGS;

	claim_give_up(claim);
	claim->paused_until = now + ((int64_t)CLAIM_PAUSE << doublings);
	claim->failed++;
}

/* One more look of backfill's at all components, of whom the first that is needy stands
 * for all. */
static inline void claim_count_test(struct claim *claim, int64_t now)
{
	if (now > claim->asked)
		claim->gap = now - claim->asked < CLAIM_LONGEST_GAP ? now - claim->asked : CLAIM_LONGEST_GAP;
	claim->asked = now;
	if (now > claim->evicts_until && ++claim->tests > CLAIM_TESTS)
		claim_pause(claim, now);
}

/* May those who would have to go for a component go? */
static inline bool claim_allows(const struct claim *claim, uint32_t job_id)
{
	return claim->sorted && claim_needs(claim, job_id);
}

/* Backfill looks whether a component could start, for which somebody would have to go or
 * not. */
static inline bool claim_test(struct claim *claim, uint32_t job_id, bool needs, uint64_t thread, int64_t now)
{
	claim->backfill = thread;
	if (needs && now >= claim->paused_until)
		claim_add(claim, job_id);
	else
		claim_remove(claim, job_id);
	if (claim->count && claim->needy[0] == job_id)
		claim_count_test(claim, now);
	if (!claim->count && now > claim->evicts_until)
		claim->known = false; /* nobody has to go any more, or those who went did so in vain */
	return claim_allows(claim, job_id);
}

/* Somebody goes for a component, and is gone by then at the latest. */
static inline void claim_evicts(struct claim *claim, int64_t until)
{
	until += 2 * claim->gap; /* only backfill starts het jobs, and it comes by so often */
	if (until > claim->evicts_until)
		claim->evicts_until = until;
	claim->tests = 0;
}

/* Where a component belongs in the queue. */
enum claim_place { CLAIM_NONE = 0, CLAIM_NEEDS_ROOM, CLAIM_HAS_ROOM };

/* A queue is being sorted. */
static inline enum claim_place claim_sort(struct claim *claim, uint32_t job_id, uint64_t thread)
{
	if (!claim->known)
		return CLAIM_NONE;
	if (claim->backfill == thread)
		claim->sorted = true;
	return claim_needs(claim, job_id) ? CLAIM_NEEDS_ROOM : CLAIM_HAS_ROOM;
}

#endif
