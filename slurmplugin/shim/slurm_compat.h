/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * slurm_compat.h: every difference between the Slurm versions that the shim
 * knows, and the only file that includes Slurm's headers. What is tested is
 * 22.05; the branches for later versions are written from their sources and
 * have not been compiled against them.
 */
#ifndef GPUBUDGET_SLURM_COMPAT_H
#define GPUBUDGET_SLURM_COMPAT_H

#include "config.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define GPUB_SLURM(major, minor, micro) SLURM_VERSION_NUM(major, minor, micro)
#define GPUB_SINCE(major, minor, micro) (SLURM_VERSION_NUMBER >= GPUB_SLURM(major, minor, micro))

/* 1 where the whole plugin has been run on a real slurmctld of that version. */
#define GPUB_SLURM_TESTED (!GPUB_SINCE(23, 2, 0) && GPUB_SINCE(22, 5, 0))

#include "src/common/assoc_mgr.h"
#include "src/common/list.h"
#include "src/common/log.h"
#include "src/common/node_conf.h"
#include "src/common/read_config.h"
#include "src/common/uid.h"
#include "src/common/xmalloc.h"
#include "src/common/xstring.h"
#if GPUB_SINCE(23, 2, 0)
#include "src/interfaces/gres.h"
#include "src/interfaces/mcs.h"
#include "src/interfaces/priority.h"
#include "src/interfaces/site_factor.h"
#else
#include "src/common/gres.h"
#include "src/common/site_factor.h"
#include "src/common/slurm_mcs.h"
#include "src/common/slurm_priority.h"
#endif
#include "src/slurmctld/locks.h"
#include "src/slurmctld/proc_req.h"
#include "src/slurmctld/slurmctld.h"

/*
 * Slurm's own plugins define the controller's variables a second time and rely
 * on the dynamic linker to merge them. Here they are weak references: bound in
 * slurmctld, NULL in the clients that load a priority plugin (sshare).
 */
#pragma weak accounting_enforce
#pragma weak acct_db_conn
#pragma weak cluster_cpus
#pragma weak job_list
#pragma weak last_job_update
#pragma weak slurmctld_config
#pragma weak slurmctld_tres_cnt
#pragma weak find_job_record
#pragma weak job_requeue
#pragma weak job_signal
#pragma weak send_job_warn_signal
#pragma weak find_part_record
#pragma weak lock_slurmctld
#pragma weak unlock_slurmctld
#pragma weak validate_operator

/* The controller's words for what changed its name. */
#if GPUB_SINCE(23, 2, 0)
typedef priority_factors_t gpub_slurm_factors;
#else
typedef priority_factors_object_t gpub_slurm_factors;
#endif

#if GPUB_SINCE(22, 5, 0) && !GPUB_SINCE(24, 11, 0)
typedef List gpub_list;
#else
typedef list_t *gpub_list;
#endif

/* Of a list of nodes. SLURM_SUCCESS if all are known; the bitmap is the caller's. */
static inline int gpub_node_bitmap(char *names, bitstr_t **bitmap)
{
#if GPUB_SINCE(24, 5, 0)
	return node_name2bitmap(names, false, bitmap, NULL);
#else
	return node_name2bitmap(names, false, bitmap);
#endif
}

/* Where a job keeps its priority in each of several partitions. */
static inline uint32_t **gpub_priority_array(job_record_t *job)
{
#if GPUB_SINCE(24, 5, 0)
	if (!job->part_prio)
		job->part_prio = xmalloc(sizeof(*job->part_prio));
	return &job->part_prio->priority_array;
#else
	return &job->priority_array;
#endif
}

/* Which of the loader's calls this version looks up. */
#define GPUB_HAS_CALC_FS_FACTOR (!GPUB_SINCE(25, 11, 0))
#define GPUB_HAS_RECOVER GPUB_SINCE(23, 2, 0)
#define GPUB_HAS_THREAD_START GPUB_SINCE(23, 11, 6)
#define GPUB_FINI_IS_VOID GPUB_SINCE(25, 11, 0)
#define GPUB_JOB_MODIFY_SAYS_WHY GPUB_SINCE(23, 2, 0)
/* The factors list: who holds the job lock, and whether a filter comes along. */
#define GPUB_LIST_TAKES_REQUEST (!GPUB_SINCE(24, 5, 0))
#define GPUB_LIST_LOCKS_ITSELF (!GPUB_SINCE(23, 2, 0))

#if GPUB_SINCE(23, 2, 0)
#define GPUB_MCS_PRIVATE_DATA() slurm_mcs_get_privatedata()
#define GPUB_IS_COORDINATOR(uid, account) assoc_mgr_is_user_acct_coord(acct_db_conn, uid, account, false)
#define GPUB_MCS_DENIES(uid, label) (mcs_g_check_mcs_label(uid, label, false) != 0)
#else
#define GPUB_MCS_PRIVATE_DATA() slurm_mcs_get_privatedata()
#define GPUB_IS_COORDINATOR(uid, account) assoc_mgr_is_user_acct_coord(acct_db_conn, uid, account)
#define GPUB_MCS_DENIES(uid, label) (mcs_g_check_mcs_label(uid, label, false) != 0)
#endif

#ifdef PRIORITY_FLAGS_MAX_TRES_GRES
#define GPUB_SLURM_MAX_TRES_GRES PRIORITY_FLAGS_MAX_TRES_GRES
#else
#define GPUB_SLURM_MAX_TRES_GRES 0
#endif

/* slurm_conf's weights by the names they have had since 22.05. */
#define GPUB_CONF_DAMP_FACTOR slurm_conf.fs_dampening_factor

/* A node that jobs can be sent to now. */
static inline bool gpub_node_can_run(const node_record_t *node)
{
	const uint64_t bad = NODE_STATE_DRAIN | NODE_STATE_FAIL | NODE_STATE_POWERED_DOWN;
	uint32_t base = node->node_state & NODE_STATE_BASE;

	return !(node->node_state & bad) && base != NODE_STATE_DOWN && base != NODE_STATE_FUTURE &&
	       base != NODE_STATE_UNKNOWN;
}

#endif
