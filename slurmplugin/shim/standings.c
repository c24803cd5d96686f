/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * standings.c: how every association stands: for priorities its place in the
 * table, and fair-share figures for sshare, the REST API and QOS UsageThreshold.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* All associations, behind them the owners of jobs without any. Only the pass
 * thread uses it; the memory stays from one pass to the next. */
struct asked {
	slurmdb_assoc_rec_t *record; /* NULL for an owner without one */
	uint32_t owner;
};
static struct {
	struct asked *asked;
	struct gpub_assoc *assocs;
	uint32_t count, room;
} all;

#define AHEAD 12 /* associations that the processor is told of before their turn */

static bool make_room(uint32_t room)
{
	struct gpub_assoc *assocs;
	struct asked *asked;

	all.count = 0;
	if (room <= all.room && room >= all.room / 4)
		return true;
	if (!(asked = realloc(all.asked, (room + 1) * sizeof(*asked))))
		return false;
	all.asked = asked;
	if (!(assocs = realloc(all.assocs, (room + 1) * sizeof(*assocs))))
		return false;
	all.assocs = assocs;
	all.room = room;
	return true;
}

void standings_free(void)
{
	free(all.asked);
	free(all.assocs);
	memset(&all, 0, sizeof(all));
}

static void add(slurmdb_assoc_rec_t *record, uint32_t owner, struct gpub_assoc assoc)
{
	all.asked[all.count] = (struct asked){ record, owner };
	all.assocs[all.count++] = assoc;
}

/* The list is chained, and its records lie anywhere: while the way along it is
 * found, they are fetched. */
static int meet_assoc(void *x, void *arg)
{
	const slurmdb_assoc_rec_t *assoc = x;

	(void)arg;
	if (all.count == all.room)
		return -1;
	__builtin_prefetch(&assoc->acct);
	__builtin_prefetch(&assoc->id);
	__builtin_prefetch(&assoc->usage);
	__builtin_prefetch(&assoc->user);
	all.asked[all.count++].record = x;
	return SLURM_SUCCESS;
}

static void fetch_names(const slurmdb_assoc_rec_t *assoc)
{
	__builtin_prefetch(assoc->acct);
	if (assoc->user)
		__builtin_prefetch(assoc->user);
}

static bool ask_assocs(struct owners *owners)
{
	for (uint32_t i = 0; i < all.count; i++) {
		slurmdb_assoc_rec_t *assoc = all.asked[i].record;

		if (i + AHEAD < all.count)
			fetch_names(all.asked[i + AHEAD].record);
		if ((all.asked[i].owner = owners_add_assoc(owners, assoc->id)) == OWNERS_NONE)
			return false;
		all.assocs[i] = question(assoc);
	}
	return true;
}

static void ask_nameless(const struct owners *owners)
{
	for (uint32_t i = 0; i < owners->count && all.count < all.room; i++) {
		const struct owner *o = &owners->all[i];

		if (!o->assoc_id)
			add(NULL, OWNERS_LOW + i,
			    (struct gpub_assoc){ .user_id = o->user_id, .account = o->account, .user = o->user });
	}
}

static bool ask(struct owners *owners)
{
	uint32_t assocs = assoc_mgr_assoc_list ? list_count(assoc_mgr_assoc_list) : 0;

	if (!make_room(assocs + owners->count))
		return false;
	if (assocs && list_for_each_ro(assoc_mgr_assoc_list, meet_assoc, NULL) < 0)
		return false;
	if (!ask_assocs(owners))
		return false;
	ask_nameless(owners);
	return true;
}

static void fetch_usage(const slurmdb_assoc_rec_t *assoc)
{
	if (!assoc)
		return;
	__builtin_prefetch(&assoc->usage->fs_factor, 1);
	__builtin_prefetch(&assoc->usage->level_fs, 1);
	__builtin_prefetch(&assoc->usage->usage_efctv, 1);
	__builtin_prefetch(&assoc->usage->usage_norm, 1);
}

static void answer_all(struct owners *owners, const struct gpub_table *numbers, bool by_slurm)
{
	for (uint32_t i = 0; i < all.count; i++) {
		struct score_owner standing = score_owner(numbers, &all.assocs[i].place);

		if (!by_slurm && i + AHEAD < all.count)
			fetch_usage(all.asked[i + AHEAD].record);
		owners_place(owners, all.asked[i].owner, &standing);
		if (all.asked[i].record && !by_slurm)
			answer(all.asked[i].record, &all.assocs[i]);
	}
}

/* An owner of whom nothing is heard (his association is gone) stands where
 * nobody is known. */
static bool update_all(const struct gpub_engine *e, struct table *table, const char **why)
{
	*why = OUT_OF_MEMORY;
	if (!ask(&table->owners))
		return false;
	*why = LIBRARY_FAILED;
	if (all.count && e->standings(all.assocs, all.count) != GPUB_OK)
		return false;
	answer_all(&table->owners, &table->numbers, slurm_shares_in_force());
	return true;
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
