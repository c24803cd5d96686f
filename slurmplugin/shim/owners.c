/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * owners.c: who has jobs, by association or by name.
 *
 * slurmdbd numbers associations from 1: nearly all are found in an array that
 * is dense enough to stay in the processor's cache, and in which one look tells
 * all.
 */
#include <stdlib.h>
#include <string.h>

#include "owners.h"

#define LINE 64 /* of the processor's cache: none has parts of two entries */

struct owners_slot {
	uint32_t hash;  /* of an association its id */
	uint32_t owner; /* in all, from 1; 0 if the slot is empty */
};

static uint32_t hash_name(uint32_t user_id, const char *account)
{
	uint32_t hash = 2166136261u ^ user_id;

	for (; account && *account; account++)
		hash = (hash ^ (unsigned char)*account) * 16777619u;
	return hash;
}

static uint32_t first_slot(const struct owners *owners, uint32_t hash)
{
	return (uint32_t)((hash * 0x9e3779b97f4a7c15u) >> 32) & (owners->size - 1);
}

static bool same_account(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

uint32_t owners_find_assoc(const struct owners *owners, uint32_t assoc_id)
{
	if (assoc_id < OWNERS_LOW)
		return owners_standing(owners, assoc_id) ? assoc_id : OWNERS_NONE;
	if (!owners->size)
		return OWNERS_NONE;
	for (uint32_t i = first_slot(owners, assoc_id); owners->slots[i].owner; i = (i + 1) & (owners->size - 1))
		if (owners->slots[i].hash == assoc_id && owners->all[owners->slots[i].owner - 1].assoc_id == assoc_id)
			return OWNERS_LOW + owners->slots[i].owner - 1;
	return OWNERS_NONE;
}

uint32_t owners_find_name(const struct owners *owners, uint32_t user_id, const char *account)
{
	uint32_t hash = hash_name(user_id, account);

	if (!owners->size)
		return OWNERS_NONE;
	for (uint32_t i = first_slot(owners, hash); owners->slots[i].owner; i = (i + 1) & (owners->size - 1)) {
		const struct owner *o = &owners->all[owners->slots[i].owner - 1];

		if (owners->slots[i].hash == hash && !o->assoc_id && o->user_id == user_id &&
		    same_account(o->account, account))
			return OWNERS_LOW + owners->slots[i].owner - 1;
	}
	return OWNERS_NONE;
}

static void enter(struct owners *owners, struct owners_slot slot)
{
	uint32_t i = first_slot(owners, slot.hash);

	while (owners->slots[i].owner)
		i = (i + 1) & (owners->size - 1);
	owners->slots[i] = slot;
}

static bool widen(struct owners *owners)
{
	struct owners bigger = { .size = owners->size ? owners->size * 2 : 1024 };

	if (!(bigger.slots = calloc(bigger.size, sizeof(*bigger.slots))))
		return false;
	for (uint32_t i = 0; i < owners->size; i++)
		if (owners->slots[i].owner)
			enter(&bigger, owners->slots[i]);
	free(owners->slots);
	owners->slots = bigger.slots;
	owners->size = bigger.size;
	return true;
}

static bool widen_low(struct owners *owners, uint32_t assoc_id)
{
	uint32_t lows = owners->lows ? owners->lows : 4096;
	struct score_owner *low;

	while (lows <= assoc_id)
		lows *= 2;
	if (!(low = aligned_alloc(LINE, lows * sizeof(*low))))
		return false;
	if (owners->lows)
		memcpy(low, owners->low, owners->lows * sizeof(*low));
	memset(low + owners->lows, 0, (lows - owners->lows) * sizeof(*low));
	free(owners->low);
	owners->low = low;
	owners->lows = lows;
	return true;
}

static bool make_room(struct owners *owners)
{
	uint32_t room = owners->room ? owners->room * 2 : 512;
	struct score_owner *standing;
	struct owner *all;

	if (owners->count >= OWNERS_MOST)
		return false;
	if (owners->count < owners->room)
		return true;
	if (!(all = realloc(owners->all, room * sizeof(*all))))
		return false;
	owners->all = all;
	if (!(standing = realloc(owners->standing, room * sizeof(*standing))))
		return false;
	owners->standing = standing;
	owners->room = room;
	return true;
}

static bool make_slot(struct owners *owners)
{
	return owners->count * 2 < owners->size || widen(owners);
}

static uint32_t add(struct owners *owners, struct owner owner, uint32_t hash)
{
	owners->all[owners->count] = owner;
	owners->standing[owners->count] = (struct score_owner){ 0 };
	enter(owners, (struct owners_slot){ hash, owners->count + 1 });
	return OWNERS_LOW + owners->count++;
}

uint32_t owners_add_assoc(struct owners *owners, uint32_t assoc_id)
{
	uint32_t found;

	if (assoc_id < OWNERS_LOW)
		return assoc_id < owners->lows || widen_low(owners, assoc_id) ? assoc_id : OWNERS_NONE;
	if ((found = owners_find_assoc(owners, assoc_id)) != OWNERS_NONE)
		return found;
	if (!make_room(owners) || !make_slot(owners))
		return OWNERS_NONE;
	return add(owners, (struct owner){ .assoc_id = assoc_id }, assoc_id);
}

/* NULL is the copy of NULL. */
static bool copy(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

uint32_t owners_add_name(struct owners *owners, uint32_t user_id, const char *account, const char *user)
{
	uint32_t found = owners_find_name(owners, user_id, account);
	struct owner owner = { .user_id = user_id };

	if (found != OWNERS_NONE)
		return found;
	if (!make_room(owners) || !make_slot(owners) || !copy(&owner.account, account) || !copy(&owner.user, user)) {
		free(owner.account);
		return OWNERS_NONE;
	}
	return add(owners, owner, hash_name(user_id, account));
}

void owners_place(struct owners *owners, uint32_t number, const struct score_owner *standing)
{
	struct score_owner *at =
		number < OWNERS_LOW ? &owners->low[number] : &owners->standing[number - OWNERS_LOW];

	*at = *standing;
	at->known = 1;
}

void owners_free(struct owners *owners)
{
	for (uint32_t i = 0; i < owners->count; i++) {
		free(owners->all[i].account);
		free(owners->all[i].user);
	}
	free(owners->all);
	free(owners->standing);
	free(owners->low);
	free(owners->slots);
	*owners = (struct owners){ 0 };
}
