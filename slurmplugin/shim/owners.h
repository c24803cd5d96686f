/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * owners.h: who has jobs, and where he stands. Knows no Slurm.
 */
#ifndef GPUBUDGET_OWNERS_H
#define GPUBUDGET_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

#include "../bridge.h"

/* An association, or, without one, a uid and the account that it named. */
struct owner {
	uint32_t assoc_id;
	uint32_t user_id; /* and so on only where there is no association */
	char *account;    /* NULL if it named none */
	char *user;       /* NULL if nobody knows it; like account a copy: job records come and go */
	struct gpub_place place;
};

/* A set of owners; all zero is the empty one. */
struct owners {
	struct owner *all;
	uint32_t count, room;
	uint32_t *low; /* by association, of those with low numbers: place in all, from 1 */
	uint32_t lows;
	struct owners_slot *slots; /* the others */
	uint32_t used, size;       /* of slots; a power of two */
};

#define OWNERS_NONE UINT32_MAX
#define OWNERS_MOST (1u << 24)

/* Their places in all, from 0; OWNERS_NONE if there is none (or no memory). */
uint32_t owners_find_assoc(const struct owners *owners, uint32_t assoc_id);
uint32_t owners_find_name(const struct owners *owners, uint32_t user_id, const char *account);
uint32_t owners_add_assoc(struct owners *owners, uint32_t assoc_id);
uint32_t owners_add_name(struct owners *owners, uint32_t user_id, const char *account, const char *user);
void owners_free(struct owners *owners);

#endif
