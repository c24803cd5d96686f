/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * owners.h: who has jobs, and where he stands. Knows no Slurm.
 */
#ifndef GPUBUDGET_OWNERS_H
#define GPUBUDGET_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

#include "score.h"

/* An association of a high number, or, without one, a uid and the account that
 * it named. */
struct owner {
	uint32_t assoc_id;
	uint32_t user_id; /* and so on only where there is no association */
	char *account;    /* NULL if it named none */
	char *user;       /* NULL if nobody knows it; like account a copy: job records come and go */
};

/*
 * A set of owners; all zero is the empty one. Each has a number: associations
 * below OWNERS_LOW, which are nearly all, their own, the others from there on.
 */
struct owners {
	struct score_owner *low; /* where they stand, by association */
	uint32_t lows;
	struct owner *all; /* the others, */
	struct score_owner *standing; /* and where each of them stands */
	uint32_t count, room;
	struct owners_slot *slots; /* to find them */
	uint32_t size; /* of slots; a power of two */
};

#define OWNERS_NONE UINT32_MAX
#define OWNERS_LOW (1u << 20)
#define OWNERS_MOST (1u << 24)

/* Their numbers; OWNERS_NONE if there is none (or no memory). */
uint32_t owners_find_assoc(const struct owners *owners, uint32_t assoc_id);
uint32_t owners_find_name(const struct owners *owners, uint32_t user_id, const char *account);
uint32_t owners_add_assoc(struct owners *owners, uint32_t assoc_id);
uint32_t owners_add_name(struct owners *owners, uint32_t user_id, const char *account, const char *user);
/* NULL if there is nobody of that number, or nobody has said where he stands.
 * Nothing but the array of such associations is looked at. */
static inline const struct score_owner *owners_standing(const struct owners *owners, uint32_t number)
{
	const struct score_owner *at = NULL;

	if (number < owners->lows)
		at = &owners->low[number];
	else if (number >= OWNERS_LOW && number - OWNERS_LOW < owners->count)
		at = &owners->standing[number - OWNERS_LOW];
	return at && at->known ? at : NULL;
}
/* Of an owner that is there. */
void owners_place(struct owners *owners, uint32_t number, const struct score_owner *standing);
void owners_free(struct owners *owners);

#endif
