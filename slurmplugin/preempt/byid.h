/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * byid.h: a number for each of many job ids: a table of which at most half is in
 * use, made anew each time, its memory kept.
 */
#ifndef GPUBUDGET_BYID_H
#define GPUBUDGET_BYID_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct by_id {
	struct by_id_entry {
		uint32_t job_id, value; /* job_id 0: nobody */
	} *entries;
	uint32_t count;
	uint32_t bits, room; /* their size is 1 << bits */
};

/* An empty table with room for so many. False if memory is short. */
static inline bool by_id_make(struct by_id *table, uint32_t count)
{
	uint32_t bits = 8;

	while (1u << bits < 2 * count)
		bits++;
	table->count = 0;
	if (table->room < 1u << bits) {
		free(table->entries);
		table->room = 0;
		if (!(table->entries = malloc(sizeof(*table->entries) << bits)))
			return false;
		table->room = 1u << bits;
	}
	table->bits = bits;
	memset(table->entries, 0, sizeof(*table->entries) << bits);
	return true;
}

static inline uint32_t by_id_slot(const struct by_id *table, uint32_t job_id)
{
	return job_id * 2654435769u >> (32 - table->bits); /* Fibonacci hashing: ids are consecutive */
}

/* The id isn't in it yet, and there is room. Where it is now. */
static inline uint32_t by_id_put(struct by_id *table, uint32_t job_id, uint32_t value)
{
	uint32_t at = by_id_slot(table, job_id), mask = (1u << table->bits) - 1;

	while (table->entries[at].job_id)
		at = (at + 1) & mask;
	table->entries[at] = (struct by_id_entry){ job_id, value };
	table->count++;
	return at;
}

/* Where it is; -1 if it isn't there. */
static inline int64_t by_id_find(const struct by_id *table, uint32_t job_id)
{
	uint32_t mask = (1u << table->bits) - 1;

	if (!table->count)
		return -1;
	for (uint32_t at = by_id_slot(table, job_id); table->entries[at].job_id; at = (at + 1) & mask)
		if (table->entries[at].job_id == job_id)
			return at;
	return -1;
}

static inline void by_id_free(struct by_id *table)
{
	free(table->entries);
	memset(table, 0, sizeof(*table));
}

#endif
