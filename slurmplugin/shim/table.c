/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * table.c: the numbers that priorities are worked out with, from one pass to
 * the next. A table is made beside the one in force and never changed once it
 * is; readers hold a lock that the pass takes only to put the next one in its
 * place. If a table can't be made, the last one stays.
 */
#include <pthread.h>
#include <stdlib.h>

#include "shim.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct table *in_force;

static void fetch(const void *from, size_t size)
{
	for (size_t i = 0; i < size; i += 64)
		__builtin_prefetch((const char *)from + i);
}

/* A thread that submits one job finds nothing of it in its cache: all that it
 * will look at is to be on its way while it waits for the first of it. */
const struct table *table_read(uint32_t assoc_id)
{
	const struct table *table = __atomic_load_n(&in_force, __ATOMIC_RELAXED);

	if (table)
		fetch(table, sizeof(*table)); /* an address is all that it is so far */
	pthread_rwlock_rdlock(&lock);
	if (!(table = in_force)) {
		pthread_rwlock_unlock(&lock);
		return NULL;
	}
	if (assoc_id < table->owners.lows)
		__builtin_prefetch(&table->owners.low[assoc_id]);
	__builtin_prefetch(table->numbers.qos);
	__builtin_prefetch(table->numbers.nice);
	__builtin_prefetch(table->numbers.slots);
	return table;
}

void table_done(void)
{
	pthread_rwlock_unlock(&lock);
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
	struct table *old;

	pthread_rwlock_wrlock(&lock);
	old = in_force;
	__atomic_store_n(&in_force, by, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&lock);
	table_free(old);
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
	return sound(t);
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

const struct gpub_place *table_place(const struct table *table, uint32_t owner)
{
	return owner < table->owners.count ? &table->owners.all[owner].place : &table->numbers.unknown;
}

/*
 * Somebody who had no job in the last pass, and is no association that it
 * knew, stands where any guest of his account stands, and if that is not known
 * either where users of unknown accounts do. The next pass puts it right.
 */
const struct gpub_place *table_place_of(const struct table *table, const job_record_t *job)
{
	const slurmdb_assoc_rec_t *assoc = job->assoc_ptr;
	uint32_t owner;

	if (!assoc) {
		owner = owners_find_name(&table->owners, job->user_id, job->account);
		if (owner == OWNERS_NONE)
			pass_want();
		return table_place(table, owner);
	}
	owner = owners_find_assoc(&table->owners, assoc->id);
	if (owner == OWNERS_NONE && assoc->usage && assoc->usage->parent_assoc_ptr)
		owner = owners_find_assoc(&table->owners, assoc->usage->parent_assoc_ptr->id);
	return table_place(table, owner);
}
