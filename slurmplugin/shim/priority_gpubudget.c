/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * priority_gpubudget.c: what Slurm looks up in priority_gpubudget.so.
 *
 * slurmctld calls most of these with locks held; each says which.
 */
#include <math.h>

#include "shim.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const char plugin_name[];
EXPORT extern const char plugin_type[];
EXPORT extern const uint32_t plugin_version;

const char plugin_name[] = "GPU budget priority plugin";
const char plugin_type[] = "priority/gpubudget";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

/* sshare loads the priority plugin to draw fair-share factors. There is no
 * controller around then, and nothing to start. */
static bool in_slurmctld(void)
{
	return &job_list && &slurmctld_tres_cnt;
}

/* Threads of slurmctld may be within any call meanwhile: what they can hold
 * without a lock of ours (settings, names) stays. The shim itself does, too. */
static void stop(void)
{
	pass_stop();
	engine_stop();
	table_replace(NULL);
	site_factor_plugin_fini();
	usernames_stop();
}

static int start(void)
{
	if (!GPUB_SLURM_TESTED)
		info("gpubudget: built for Slurm %s, which it has not been tested with", SLURM_VERSION_STRING);
	if (!layout_conf_ok() || !layout_jobs_ok() || usernames_start() != SLURM_SUCCESS ||
	    engine_start() != SLURM_SUCCESS)
		return SLURM_ERROR;
	site_factor_plugin_init();
	limits_start();
	return settings_load();
}

/* Takes none of slurmctld's locks: the first use of the plugin may load it
 * with any of them held. */
EXPORT int init(void)
{
	if (!in_slurmctld())
		return SLURM_SUCCESS;
	if (start() == SLURM_SUCCESS
#if !GPUB_HAS_THREAD_START
	    && pass_start() == SLURM_SUCCESS
#endif
	) {
		verbose("gpubudget: loaded for Slurm %s", SLURM_VERSION_STRING);
		return SLURM_SUCCESS;
	}
	stop();
	return SLURM_ERROR;
}

#if GPUB_HAS_THREAD_START
EXPORT void priority_p_thread_start(void)
{
	pass_start();
}
#endif

#if GPUB_HAS_RECOVER
EXPORT int priority_p_recover(uint32_t prio_boost)
{
	(void)prio_boost; /* only priority/basic has a use for it */
	return SLURM_SUCCESS;
}
#endif

#if GPUB_FINI_IS_VOID
EXPORT void fini(void)
{
	if (in_slurmctld())
		stop();
}
#else
EXPORT int fini(void)
{
	if (in_slurmctld())
		stop();
	return SLURM_SUCCESS;
}
#endif

/* Job write lock. last_prio is for plugins that count down. */
EXPORT uint32_t priority_p_set(uint32_t last_prio, job_record_t *job)
{
	uint32_t priority;

	(void)last_prio;
	table_fetch(job->assoc_id);
	site_factor_g_set(job);
	priority = set_priority(job);
	debug2("gpubudget: JobId=%u begins with priority %u", job->job_id, priority);
	return priority;
}

/* After a reconfigure, which says assoc_clear, no lock: the associations' run
 * seconds were reset. After a change of debug flags or of the dampening factor
 * the configuration write lock. A failure is told and tried again. */
EXPORT void priority_p_reconfig(bool assoc_clear)
{
	slurmctld_lock_t locks = { .conf = READ_LOCK };

	if (!engine)
		return;
	if (assoc_clear)
		lock_slurmctld(locks);
	settings_load();
	if (assoc_clear)
		unlock_slurmctld(locks);
	site_factor_g_reconfig();
	limits_reconfigure(assoc_clear);
	pass_wake();
}

/* The association manager's assoc lock, perhaps only to read. */
EXPORT void priority_p_set_assoc_usage(slurmdb_assoc_rec_t *assoc)
{
	standings_update_one(assoc);
}

#if GPUB_HAS_CALC_FS_FACTOR
/* The classic factor, 2 to the power of -(usage / share / dampening): in
 * clients as well. */
EXPORT double priority_p_calc_fs_factor(long double usage_efctv, long double shares_norm)
{
	double damp = GPUB_CONF_DAMP_FACTOR ? GPUB_CONF_DAMP_FACTOR : 1;

	if (shares_norm <= 0 || fabsl(usage_efctv - (long double)NO_VAL) < 0.5L)
		return 0;
	return pow(2.0, -(double)(usage_efctv / shares_norm / damp));
}
#endif

#if GPUB_LIST_TAKES_REQUEST
EXPORT gpub_list priority_p_get_priority_factors_list(priority_factors_request_msg_t *request, uid_t uid)
{
	slurmctld_lock_t locks = { .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	gpub_list rows;

	if (GPUB_LIST_LOCKS_ITSELF)
		lock_slurmctld(locks);
	rows = factors_list(request->job_id_list, request->uid_list, request->partitions, uid);
	if (GPUB_LIST_LOCKS_ITSELF)
		unlock_slurmctld(locks);
	return rows;
}
#else
EXPORT gpub_list priority_p_get_priority_factors_list(uid_t uid)
{
	return factors_list(NULL, NULL, NULL, uid);
}
#endif

/* A sighting of a run at the moment it ends. Backfill acts out the end of het
 * job components that it only tries on: those hold no nodes. */
static void see_end(const job_record_t *job)
{
	assoc_mgr_lock_t locks = { .assoc = READ_LOCK, .qos = READ_LOCK };
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	const struct settings *settings = settings_now();
	struct gpub_job sighting;
	struct timespec now;

	if (!e || !settings || !job->nodes || !layout_job_ok(job))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	assoc_mgr_lock(&locks);
	flatten_sighting(settings, job, now.tv_sec, &sighting);
	e->observe(&sighting, now.tv_sec * (int64_t)1000 + now.tv_nsec / 1000000);
	assoc_mgr_unlock(&locks);
}

/* Job write lock. Called as a job gives back its nodes and before it changes
 * size, but only where limits are enforced. */
EXPORT void priority_p_job_end(job_record_t *job)
{
	see_end(job);
	limits_job_end(job);
}
