/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * slurmshares.c: how associations stand by the shares that slurmdbd gives them,
 * where priorities go by those.
 *
 * The tree is slurmctld's own: children_list holds who competes under an
 * association. Children of an account with Fairshare=parent are in the list of
 * the nearest account above that has shares of its own.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "shim.h"

static bool in_force; /* as the library said last */

bool slurm_shares_in_force(void)
{
	return __atomic_load_n(&in_force, __ATOMIC_RELAXED);
}

/* The tree on its way to the library and back, level by level. */
struct gathering {
	slurmdb_assoc_rec_t **records;
	struct gpub_slurm_assoc *assocs;
	uint32_t count, room, parent;
};

static int add(void *x, void *arg)
{
	slurmdb_assoc_rec_t *assoc = x;
	struct gathering *all = arg;
	double usage = assoc->usage->usage_raw;

	if (all->count == all->room)
		return -1;
	all->records[all->count] = assoc;
	all->assocs[all->count++] = (struct gpub_slurm_assoc){
		.id = assoc->id,
		.parent = all->parent,
		.shares = assoc->shares_raw,
		.flags = (assoc->user ? GPUB_ASSOC_USER : 0) |
			 (assoc->shares_raw == SLURMDB_FS_USE_PARENT ? GPUB_ASSOC_PARENT_SHARES : 0),
		.usage = usage,
		.usage_rest = assoc->usage->usage_raw - usage,
	};
	return SLURM_SUCCESS;
}

static void gather(struct gathering *all)
{
	add(assoc_mgr_root_assoc, all);
	for (uint32_t i = 0; i < all->count; i++) {
		gpub_list children = all->records[i]->usage->children_list;

		all->parent = i;
		if (!all->records[i]->user && children)
			list_for_each_ro(children, add, all);
	}
}

/* What priority/multifactor would have left there. */
static void answer(slurmdb_assoc_rec_t *assoc, const struct gpub_slurm_assoc *from, bool fair_tree)
{
	slurmdb_assoc_usage_t *to = assoc->usage;
	bool root = assoc == assoc_mgr_root_assoc;

	to->shares_norm = from->shares_norm;
	to->usage_norm = root ? NO_VAL : from->usage_norm;
	to->usage_efctv = from->usage_efctv;
	to->fs_factor = from->fs_factor;
	to->level_fs = from->level_fs >= DBL_MAX ? INFINITY : from->level_fs;
	if (fair_tree && (root || from->flags == GPUB_ASSOC_PARENT_SHARES))
		to->level_fs = NO_VAL;
}

static void reckon(const struct gpub_engine *e, struct gathering *all)
{
	bool fair_tree = settings_now()->weights.flags & GPUB_FLAG_FAIR_TREE;

	gather(all);
	if (e->slurm_shares(all->assocs, all->count) != GPUB_OK)
		return;
	for (uint32_t i = 0; i < all->count; i++)
		answer(all->records[i], &all->assocs[i], fair_tree);
}

static void update(const struct gpub_engine *e)
{
	struct gathering all = { .room = list_count(assoc_mgr_assoc_list) };
	static bool told; /* only the pass thread comes here */
	bool ok;

	all.records = calloc(all.room, sizeof(*all.records));
	all.assocs = calloc(all.room, sizeof(*all.assocs));
	ok = all.records && all.assocs;
	if (ok)
		reckon(e, &all);
	if (first_failure(&told, !ok))
		error("gpubudget: " OUT_OF_MEMORY ": fair shares stay as they were");
	free(all.records);
	free(all.assocs);
}

void slurm_shares_ask(void)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);

	__atomic_store_n(&in_force, e && e->shares() == GPUB_SHARES_SLURM, __ATOMIC_RELAXED);
}

void slurm_shares_update(void)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	assoc_mgr_lock_t locks = { .assoc = WRITE_LOCK };

	if (!e || !in_force)
		return;
	assoc_mgr_lock(&locks);
	if (assoc_mgr_root_assoc && assoc_mgr_assoc_list)
		update(e);
	assoc_mgr_unlock(&locks);
}
