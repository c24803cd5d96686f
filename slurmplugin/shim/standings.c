/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * standings.c: fair-share figures of every association, for sshare, the REST
 * API and QOS UsageThreshold.
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

struct gathering {
	struct gpub_assoc *assocs;
	uint32_t count, room, next;
};

static int ask_one(void *x, void *arg)
{
	struct gathering *all = arg;

	if (all->count < all->room)
		all->assocs[all->count++] = question(x);
	return SLURM_SUCCESS;
}

static int answer_one(void *x, void *arg)
{
	struct gathering *all = arg;

	if (all->next < all->count)
		answer(x, &all->assocs[all->next++]);
	return SLURM_SUCCESS;
}

static void update_all(const struct gpub_engine *e)
{
	struct gathering all = { .room = list_count(assoc_mgr_assoc_list) };

	if (!all.room || !(all.assocs = calloc(all.room, sizeof(*all.assocs))))
		return;
	list_for_each_ro(assoc_mgr_assoc_list, ask_one, &all);
	if (e->standings(all.assocs, all.count) == GPUB_OK)
		list_for_each_ro(assoc_mgr_assoc_list, answer_one, &all);
	free(all.assocs);
}

void standings_update(void)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	assoc_mgr_lock_t locks = { .assoc = WRITE_LOCK };

	if (!e || !assoc_mgr_assoc_list)
		return;
	assoc_mgr_lock(&locks);
	if (assoc_mgr_assoc_list)
		update_all(e);
	assoc_mgr_unlock(&locks);
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
