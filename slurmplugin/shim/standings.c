/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * standings.c: how every association stands: for priorities its place in the
 * table, and fair-share figures for sshare, the REST API and QOS UsageThreshold.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "shim.h"

static struct gpub_assoc question(const slurmdb_assoc_rec_t *assoc)
{
	return (struct gpub_assoc){ .id = assoc->id, .account = assoc->acct, .user = assoc->user };
}

/* Shares and usage are both of the whole cluster, so that usage_efctv over
 * shares_norm, which UsageThreshold looks at, is charged over entitled. */
static void answer(slurmdb_assoc_rec_t *assoc, const struct gpub_assoc *from)
{
	slurmdb_assoc_usage_t *to = assoc->usage;

	if (!from->known) {
		to->fs_factor = 0;
		to->level_fs = 0;
		to->usage_norm = to->usage_efctv = 0;
		return;
	}
	to->fs_factor = from->factor;
	to->level_fs = from->level_fs >= DBL_MAX ? INFINITY : from->level_fs;
	to->shares_norm = from->shares_norm;
	to->usage_norm = from->usage_norm;
	to->usage_efctv = assoc == assoc_mgr_root_assoc ? 1 : from->usage_norm;
}

/* All associations, behind them the owners of jobs without any. */
struct gathering {
	struct owners *owners;
	slurmdb_assoc_rec_t **records;
	struct gpub_assoc *assocs;
	uint32_t *owner; /* of each of assocs */
	uint32_t count, room;
};

static void add(struct gathering *all, slurmdb_assoc_rec_t *record, struct gpub_assoc assoc, uint32_t owner)
{
	all->records[all->count] = record;
	all->assocs[all->count] = assoc;
	all->owner[all->count++] = owner;
}

static int add_assoc(void *x, void *arg)
{
	struct gathering *all = arg;
	slurmdb_assoc_rec_t *assoc = x;

	uint32_t owner;

	if (all->count == all->room || (owner = owners_add_assoc(all->owners, assoc->id)) == OWNERS_NONE)
		return -1;
	add(all, assoc, question(assoc), owner);
	return SLURM_SUCCESS;
}

static void add_nameless(struct gathering *all)
{
	for (uint32_t i = 0; i < all->owners->count && all->count < all->room; i++) {
		const struct owner *o = &all->owners->all[i];

		if (!o->assoc_id)
			add(all, NULL, (struct gpub_assoc){ .user_id = o->user_id, .account = o->account, .user = o->user },
			    OWNERS_LOW + i);
	}
}

static void answer_all(const struct gathering *all, const struct gpub_table *numbers, bool by_slurm)
{
	for (uint32_t i = 0; i < all->count; i++) {
		struct score_owner standing = score_owner(numbers, &all->assocs[i].place);

		owners_place(all->owners, all->owner[i], &standing);
		if (all->records[i] && !by_slurm)
			answer(all->records[i], &all->assocs[i]);
	}
}

/* An owner of whom nothing is heard (his association is gone) stands where
 * nobody is known. */
static bool update_all(const struct gpub_engine *e, struct table *table, const char **why)
{
	uint32_t assocs = assoc_mgr_assoc_list ? list_count(assoc_mgr_assoc_list) : 0;
	struct gathering all = { .owners = &table->owners, .room = assocs + table->owners.count };
	bool ok;

	all.records = calloc(all.room + 1, sizeof(*all.records));
	all.assocs = calloc(all.room + 1, sizeof(*all.assocs));
	all.owner = calloc(all.room + 1, sizeof(*all.owner));
	ok = all.records && all.assocs && all.owner;
	if (ok && assocs)
		ok = list_for_each_ro(assoc_mgr_assoc_list, add_assoc, &all) >= 0;
	*why = ok ? LIBRARY_FAILED : OUT_OF_MEMORY;
	if (ok)
		add_nameless(&all);
	ok = ok && (!all.count || e->standings(all.assocs, all.count) == GPUB_OK);
	if (ok)
		answer_all(&all, &table->numbers, slurm_shares_in_force());
	free(all.records);
	free(all.assocs);
	free(all.owner);
	return ok;
}

bool standings_update(const struct gpub_engine *e, struct table *table, const char **why)
{
	assoc_mgr_lock_t locks = { .assoc = WRITE_LOCK };
	bool ok;

	assoc_mgr_lock(&locks);
	ok = update_all(e, table, why);
	assoc_mgr_unlock(&locks);
	return ok;
}

void standings_update_one(slurmdb_assoc_rec_t *assoc)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	struct gpub_assoc one = question(assoc);

	if (slurm_shares_in_force()) /* all are up to date, but for one that is new */
		pass_wake();
	else if (e && e->standings(&one, 1) == GPUB_OK)
		answer(assoc, &one);
}
