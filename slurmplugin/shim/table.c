/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * table.c: the numbers that priorities are worked out with, from one pass to
 * the next. A table is made beside the one in force and never changed once it
 * is; readers take no lock for it, but hold the job write lock, and what was
 * replaced is freed once that has been given back. If a table can't be made,
 * the last one stays.
 */
#include <stdlib.h>

#include "shim.h"

#define LINE 64 /* of the processor's cache */

/* What readers find first. All but the table itself only tells the processor
 * what they are going to look at; it is never followed. */
static struct {
	struct table *table;
	const struct score_owner *low;
	const struct gpub_rise *qos;
	const struct settings *settings;
} in_force __attribute__((aligned(LINE)));

static struct table *replaced; /* which readers may still hold */

static void fetch(const void *from, size_t size)
{
	for (size_t i = 0; i < size; i += LINE)
		__builtin_prefetch((const char *)from + i);
}

/* A thread that submits one job finds nothing of it in its cache: all that it
 * will look at is to be on its way while it waits for the first of it. */
void table_fetch(uint32_t assoc_id)
{
	const struct table *table = __atomic_load_n(&in_force.table, __ATOMIC_RELAXED);
	const struct score_owner *low = __atomic_load_n(&in_force.low, __ATOMIC_RELAXED);
	const struct settings *settings = __atomic_load_n(&in_force.settings, __ATOMIC_RELAXED);

	if (!table || !low)
		return;
	__builtin_prefetch(low + (assoc_id < OWNERS_LOW ? assoc_id : 0));
	fetch(table, sizeof(*table));
	fetch(settings, sizeof(*settings));
	__builtin_prefetch(__atomic_load_n(&in_force.qos, __ATOMIC_RELAXED));
}

const struct table *table_now(void)
{
	return __atomic_load_n(&in_force.table, __ATOMIC_ACQUIRE);
}

void table_free(struct table *table)
{
	if (!table)
		return;
	free(table->numbers.qos); /* and what lies behind it */
	owners_free(&table->owners);
	free(table);
}

void table_replace(struct table *by)
{
	struct table *old = in_force.table;

	__atomic_store_n(&in_force.table, by, __ATOMIC_RELEASE);
	__atomic_store_n(&in_force.low, by ? by->owners.low : NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&in_force.qos, by ? by->numbers.qos : NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&in_force.settings, by ? by->settings : NULL, __ATOMIC_RELAXED);
	if (!old)
		return;
	old->replaced = replaced;
	replaced = old;
}

void table_sweep(void)
{
	struct table *old;

	while ((old = replaced)) {
		replaced = old->replaced;
		table_free(old);
	}
}

/* Can score_job rely on it? */
static bool sound(const struct gpub_table *t)
{
	if (!t->packed)
		return true;
	if (!t->qos_count || !t->slot_count || t->rest_steps < 1)
		return false;
	for (uint32_t i = 0; i < t->slot_count; i++)
		if (!t->slots[i].nice_count || t->slots[i].nice_first > t->nice_count ||
		    t->slots[i].nice_count > t->nice_count - t->slots[i].nice_first ||
		    t->slots[i].unallocated >= t->slot_count)
			return false;
	return true;
}

/* All in one piece: a thread that comes from elsewhere has few pages to find. */
static bool make_room(struct gpub_table *t)
{
	size_t rises = (size_t)t->qos_count + t->nice_count;

	_Static_assert(sizeof(*t->qos) % _Alignof(struct gpub_slot) == 0, "slots lie behind rises");
	t->qos = calloc(1, rises * sizeof(*t->qos) + (size_t)t->slot_count * sizeof(*t->slots) + 1);
	if (!t->qos)
		return false;
	t->nice = t->qos + t->qos_count;
	t->slots = (struct gpub_slot *)(t->nice + t->nice_count);
	return true;
}

/* Settings that were read anew in the midst of the pass belong to the next. If
 * the library took some and failed all the same, a pass comes no sooner: only
 * the next attempt can help. */
static bool fill(struct table *table, const struct gpub_engine *e, const struct gpub_extremes *extremes,
		 const char **why)
{
	struct gpub_table *t = &table->numbers;

	*why = LIBRARY_FAILED;
	if (e->rank(extremes, t) != GPUB_OK)
		return false;
	*why = NULL;
	if (t->weights.generation != table->settings->weights.generation ||
	    t->weights.tres_count != (table->settings->tres ? table->settings->weights.tres_count : 0)) {
		if (!settings_stale())
			pass_want();
		return false;
	}
	t->weights.tres = table->settings->tres;
	*why = OUT_OF_MEMORY;
	if (!make_room(t))
		return false;
	*why = LIBRARY_FAILED;
	if (e->fill(t) != GPUB_OK)
		return false;
	*why = "libgpubudget.so gave numbers that can't be";
	if (!sound(t))
		return false;
	table->unknown = score_owner(t, &t->unknown);
	return true;
}

struct table *table_make(const struct gpub_engine *e, const struct settings *settings,
			 const struct gpub_extremes *extremes, const char **why)
{
	struct table *table = calloc(1, sizeof(*table));

	*why = OUT_OF_MEMORY;
	if (!table)
		return NULL;
	table->settings = settings;
	if (fill(table, e, extremes, why))
		return table;
	table_free(table);
	return NULL;
}

const struct score_owner *table_owner(const struct table *table, uint32_t number)
{
	const struct score_owner *owner = owners_standing(&table->owners, number);

	return owner ? owner : &table->unknown;
}

/* Of an association that the last pass did not know. */
static uint32_t parent_of(const struct table *table, const slurmdb_assoc_rec_t *assoc)
{
	assoc_mgr_lock_t locks = { .assoc = READ_LOCK };
	uint32_t number = OWNERS_NONE;

	assoc_mgr_lock(&locks);
	if (assoc->usage && assoc->usage->parent_assoc_ptr)
		number = owners_find_assoc(&table->owners, assoc->usage->parent_assoc_ptr->id);
	assoc_mgr_unlock(&locks);
	return number;
}

/*
 * Somebody who had no job in the last pass, and is no association that it
 * knew, stands where any guest of his account stands, and if that is not known
 * either where users of unknown accounts do. The next pass puts it right.
 */
const struct score_owner *table_owner_of(const struct table *table, const job_record_t *job)
{
	uint32_t number;

	if (!job->assoc_ptr) {
		number = owners_find_name(&table->owners, job->user_id, job->account);
		if (number == OWNERS_NONE)
			pass_want();
		return table_owner(table, number);
	}
	number = owners_find_assoc(&table->owners, job->assoc_id);
	if (number == OWNERS_NONE)
		number = parent_of(table, job->assoc_ptr);
	return table_owner(table, number);
}
