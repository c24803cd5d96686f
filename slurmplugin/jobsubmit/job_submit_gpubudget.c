/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * job_submit_gpubudget.c: what Slurm looks up in job_submit_gpubudget.so.
 *
 * Jobs are judged by the same library that works priorities out, in memory and
 * without waiting for anything. Without it every job passes: it is still cut to
 * what the policy allows when it starts.
 *
 * slurmctld calls with the configuration, job, node and partition read locks.
 */
#include <inttypes.h>

#include "find.h"
#include "spankenv.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const char plugin_name[];
EXPORT extern const char plugin_type[];
EXPORT extern const uint32_t plugin_version;

const char plugin_name[] = "GPU budget job submit plugin";
const char plugin_type[] = "job_submit/gpubudget";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

static const struct gpub_peer *peer(void)
{
	return peer_find("job_submit_gpubudget.so", "every job passes");
}

EXPORT int init(void)
{
	if (xstrcmp(slurm_conf.priority_type, "priority/gpubudget"))
		error("gpubudget: JobSubmitPlugins=gpubudget goes by the accounts' standings, which priority/gpubudget works out, but slurm.conf has PriorityType=%s: every job passes",
		      slurm_conf.priority_type);
	return SLURM_SUCCESS;
}

EXPORT int fini(void)
{
	return SLURM_SUCCESS;
}

/* However GPUs are asked for, their name is in one of these. */
static bool asks_gpus(const char *job, const char *node, const char *socket, const char *task)
{
	return xstrcasestr(job, "gpu") || xstrcasestr(node, "gpu") || xstrcasestr(socket, "gpu") ||
	       xstrcasestr(task, "gpu");
}

/* Who submits, and to which account if he names none. */
struct owner {
	char *account, *user; /* xmalloc'ed, or NULL */
};

static struct owner find_owner(uint32_t uid, const char *account, const struct gpub_peer *p)
{
	assoc_mgr_lock_t locks = { .user = READ_LOCK };
	slurmdb_user_rec_t user = { .uid = uid };
	struct owner owner = { xstrdup(account), NULL };
	int rc;

	assoc_mgr_lock(&locks);
	rc = assoc_mgr_fill_in_user(acct_db_conn, &user, 0, NULL, true);
	if (rc == SLURM_SUCCESS && user.default_acct && !owner.account)
		owner.account = xstrdup(user.default_acct);
	if (rc == SLURM_SUCCESS && user.name)
		owner.user = xstrdup(user.name);
	assoc_mgr_unlock(&locks);
	if (!owner.user)
		owner.user = xstrdup(p->username(uid));
	return owner;
}

static int judge(struct gpub_submission *submission, const char *account)
{
	const struct gpub_peer *p = peer();
	struct owner owner;
	int rc;

	if (!p)
		return GPUB_ERROR;
	owner = find_owner(submission->user_id, account, p);
	submission->account = owner.account;
	submission->user = owner.user;
	rc = p->submit(submission);
	xfree(owner.account);
	xfree(owner.user);
	return rc;
}

static void say(char **to, const char *text)
{
	if (*text)
		xstrfmtcat(*to, "%s%s", *to ? "\n" : "", text);
}

/* Seconds that the environment asks for, -1 if it says nothing. */
static bool read_min_runtime(char *const *env, uint32_t count, uint32_t *at, int64_t *seconds)
{
	const char *text = spankenv_find(env, count, at);

	*seconds = -1;
	return !text || spankenv_seconds(text, seconds);
}

static int64_t limit_of(uint32_t minutes)
{
	return minutes == NO_VAL || minutes == INFINITE ? 0 : minutes * INT64_C(60);
}

EXPORT int job_submit(job_desc_msg_t *desc, uint32_t submit_uid, char **err_msg)
{
	struct gpub_submission submission = {
		.user_id = desc->user_id,
		.gpus = asks_gpus(desc->tres_per_job, desc->tres_per_node, desc->tres_per_socket, desc->tres_per_task),
		.time_limit = limit_of(desc->time_limit),
	};
	uint32_t at = 0;

	(void)submit_uid;
	if (!read_min_runtime(desc->spank_job_env, desc->spank_job_env_size, &at, &submission.min_runtime)) {
		say(err_msg, "gpubudget: " SPANKENV_VARIABLE " of the SPANK environment is no number of seconds");
		return ESLURM_INVALID_TIME_VALUE;
	}
	if (judge(&submission, desc->account) != GPUB_OK)
		return SLURM_SUCCESS;
	say(err_msg, submission.message);
	if (submission.verdict == GPUB_REFUSED)
		return ESLURM_ACCOUNTING_POLICY;
	if (submission.verdict == GPUB_CAPPED) {
		xfree(desc->spank_job_env[at]);
		desc->spank_job_env[at] = xstrdup_printf(SPANKENV_VARIABLE "=%" PRId64, submission.granted);
	}
	return SLURM_SUCCESS;
}

/* A user who gives a job to another account submits it there. Operators do as they
 * like. */
static int modify(const job_desc_msg_t *desc, const job_record_t *job, uint32_t submit_uid, char **err_msg)
{
	struct gpub_submission submission = {
		.user_id = job->user_id,
		.gpus = asks_gpus(job->tres_per_job, job->tres_per_node, job->tres_per_socket, job->tres_per_task),
	};
	uint32_t at;

	if (!desc->account || submit_uid != job->user_id)
		return SLURM_SUCCESS;
	if (!read_min_runtime(job->spank_job_env, job->spank_job_env_size, &at, &submission.min_runtime))
		submission.min_runtime = -1;
	if (judge(&submission, desc->account) != GPUB_OK || submission.verdict != GPUB_REFUSED)
		return SLURM_SUCCESS;
	info("%s (JobId=%u is to change its account)", submission.message, job->job_id);
	if (err_msg)
		say(err_msg, submission.message);
	return ESLURM_ACCOUNTING_POLICY;
}

#if GPUB_JOB_MODIFY_SAYS_WHY
EXPORT int job_modify(job_desc_msg_t *desc, job_record_t *job, uint32_t submit_uid, char **err_msg)
{
	return modify(desc, job, submit_uid, err_msg);
}
#else
EXPORT int job_modify(job_desc_msg_t *desc, job_record_t *job, uint32_t submit_uid)
{
	return modify(desc, job, submit_uid, NULL);
}
#endif
