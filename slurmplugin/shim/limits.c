/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * limits.c: the usage that Slurm's own limits are checked against.
 *
 * slurmctld leaves this to the priority plugin. GrpTRESMins and GrpWall, of
 * associations and of QOS, are compared with usage that decays by half every
 * PriorityDecayHalfLife and is cleared every PriorityUsageResetPeriod;
 * GrpTRESRunMins with what running jobs may still use before their time limits
 * end. Both are brought up to date every PriorityCalcPeriod. It has nothing to
 * do with budgets, whose usage is kept in Postgres.
 *
 * Usage is added from the end of one period to the end of the next, so it must
 * be known when the last one ended. That is kept in StateSaveLocation, in the
 * file and form of priority/multifactor: a site can change over and back.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

#define STATE_FILE "priority_last_decay_ran"

/* Changed under the job read lock by the pass thread alone, read under the
 * job write lock by those that end a job. */
static time_t last_period;
static time_t last_reset;
static bool reset_done; /* PriorityUsageResetPeriod=NOW, once after each reading of the configuration */

/* Jobs that have changed size since the last period, and when last: their
 * records only tell of the latest change, be it the one that goes on. Changed
 * under the job write lock, emptied under the read lock. */
struct resize {
	uint32_t job_id;
	time_t at;
};
static struct resize *resizes;
static uint32_t resize_count, resize_room;

static struct resize *resized(const job_record_t *job)
{
	for (uint32_t i = 0; i < resize_count; i++)
		if (resizes[i].job_id == job->job_id)
			return &resizes[i];
	return NULL;
}

static void remember_resize(const job_record_t *job, time_t at)
{
	struct resize *known = resized(job);
	uint32_t room = resize_room ? resize_room * 2 : 64;

	if (known) {
		known->at = at;
		return;
	}
	if (resize_count == resize_room) {
		if (!(known = realloc(resizes, room * sizeof(*resizes)))) {
			error("gpubudget: out of memory, what JobId=%u used before its change of size counts twice",
			      job->job_id);
			return;
		}
		resizes = known;
		resize_room = room;
	}
	resizes[resize_count++] = (struct resize){ .job_id = job->job_id, .at = at };
}

/* ---- what a job adds ---- */

struct usage {
	double wall, wall_undecayed;       /* seconds times UsageFactor */
	double billing, billing_undecayed; /* the same times billable TRES */
};

static double usage_factor(const job_record_t *job)
{
	const slurmdb_qos_rec_t *qos = job->qos_ptr;

	return qos && qos->usage_factor >= 0 ? qos->usage_factor : 1;
}

/* A little less than exact, but what priority/multifactor multiplies with. */
static double decay_of_a_second(void)
{
	return slurm_conf.priority_decay_hl ? 1 - 0.693 / slurm_conf.priority_decay_hl : 1;
}

/* The QOS that count a job: its own and its partition's. */
static uint32_t counting_qos(const job_record_t *job, slurmdb_qos_rec_t *qos[2])
{
	uint32_t count = 0;

	if (job->qos_ptr)
		qos[count++] = job->qos_ptr;
	if (job->part_ptr && job->part_ptr->qos_ptr && job->part_ptr->qos_ptr != job->qos_ptr)
		qos[count++] = job->part_ptr->qos_ptr;
	return count;
}

static bool counts_tres(const job_record_t *job, int i)
{
	return i != TRES_ARRAY_ENERGY && job->tres_alloc_cnt && job->tres_alloc_cnt[i] &&
	       job->tres_alloc_cnt[i] != NO_CONSUME_VAL64;
}

static bool limits_enforced(void)
{
	return accounting_enforce & ACCOUNTING_ENFORCE_LIMITS;
}

static void add_tres(long double *tres_raw, const job_record_t *job, double wall)
{
	for (int i = 0; limits_enforced() && i < slurmctld_tres_cnt; i++)
		if (counts_tres(job, i))
			tres_raw[i] += (long double)wall * job->tres_alloc_cnt[i];
}

static void add_usage(const job_record_t *job, const struct usage *usage)
{
	slurmdb_qos_rec_t *qos[2];

	for (slurmdb_assoc_rec_t *assoc = job->assoc_ptr; assoc; assoc = assoc->usage->parent_assoc_ptr) {
		assoc->usage->grp_used_wall += usage->wall;
		assoc->usage->usage_raw += usage->billing;
		add_tres(assoc->usage->usage_tres_raw, job, usage->wall);
	}
	for (uint32_t i = counting_qos(job, qos); i--;) {
		bool undecayed = qos[i]->flags & QOS_FLAG_NO_DECAY;
		double wall = undecayed ? usage->wall_undecayed : usage->wall;

		qos[i]->usage->grp_used_wall += wall;
		qos[i]->usage->usage_raw += undecayed ? usage->billing_undecayed : usage->billing;
		add_tres(qos[i]->usage->usage_tres_raw, job, wall);
	}
}

/* From when on this job's usage is still to be added. What it used before a
 * change of size was added then. slurmctld may have been restarted since: the
 * record knows as well, but for a job that is about to change again. */
static time_t not_yet_added(const job_record_t *job)
{
	time_t from = last_period > job->start_time ? last_period : job->start_time;
	const struct resize *resize = resized(job);

	if (resize && resize->at > from)
		from = resize->at;
	if (!IS_JOB_RESIZING(job) && job->resize_time > from)
		from = job->resize_time;
	return from;
}

static void add_time(const job_record_t *job, time_t until)
{
	double seconds = difftime(until, not_yet_added(job));
	double billable = job->billable_tres, factor = usage_factor(job);
	struct usage usage;

	if (seconds <= 0)
		return;
	if (fabs(billable - NO_VAL) < 1)
		billable = job->total_cpus;
	usage.wall_undecayed = seconds * factor;
	usage.wall = seconds * pow(decay_of_a_second(), seconds) * factor;
	usage.billing_undecayed = seconds * billable * factor;
	usage.billing = seconds * pow(decay_of_a_second(), seconds) * billable * factor;
	add_usage(job, &usage);
}

/* ---- what running jobs may still use ---- */

/* Seconds to the end of the time limit, times UsageFactor: what slurmctld adds
 * when a job starts, less what it has used. */
static uint64_t remaining(const job_record_t *job, time_t at)
{
	uint64_t limit = (uint64_t)job->time_limit * 60, used = at > job->start_time ? at - job->start_time : 0;

	return used < limit ? (limit - used) * usage_factor(job) : 0;
}

static void change_run_secs(uint64_t *run_secs, const job_record_t *job, uint64_t seconds, bool add)
{
	for (int i = 0; i < slurmctld_tres_cnt; i++) {
		uint64_t change = counts_tres(job, i) ? seconds * job->tres_alloc_cnt[i] : 0;

		if (add)
			run_secs[i] += change;
		else
			run_secs[i] -= run_secs[i] > change ? change : run_secs[i];
	}
}

static void change_all_run_secs(const job_record_t *job, uint64_t seconds, bool add)
{
	slurmdb_qos_rec_t *qos[2];

	for (slurmdb_assoc_rec_t *assoc = job->assoc_ptr; assoc; assoc = assoc->usage->parent_assoc_ptr)
		change_run_secs(assoc->usage->grp_used_tres_run_secs, job, seconds, add);
	for (uint32_t i = counting_qos(job, qos); i--;)
		change_run_secs(qos[i]->usage->grp_used_tres_run_secs, job, seconds, add);
}

static int clear_assoc_run_secs(void *x, void *arg)
{
	slurmdb_assoc_rec_t *assoc = x;

	(void)arg;
	memset(assoc->usage->grp_used_tres_run_secs, 0, slurmctld_tres_cnt * sizeof(uint64_t));
	return SLURM_SUCCESS;
}

static int clear_qos_run_secs(void *x, void *arg)
{
	slurmdb_qos_rec_t *qos = x;

	(void)arg;
	memset(qos->usage->grp_used_tres_run_secs, 0, slurmctld_tres_cnt * sizeof(uint64_t));
	return SLURM_SUCCESS;
}

/* Is this a job that slurmctld has counted as begun and not as ended? */
static bool counted(const job_record_t *job)
{
	return (IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job)) && !IS_JOB_COMPLETING(job) && job->assoc_ptr &&
	       job->end_time_exp != (time_t)NO_VAL;
}

/* Of what slurmctld added when the job started, the rest as of a moment. The
 * time limit of a job whose nodes power up begins when they are ready. */
static uint64_t rest(const job_record_t *job, time_t at)
{
	return remaining(job, IS_JOB_POWER_UP_NODE(job) ? job->start_time : at);
}

static int add_run_secs(void *x, void *arg)
{
	const job_record_t *job = x;

	if (counted(job))
		change_all_run_secs(job, rest(job, *(time_t *)arg), true);
	return SLURM_SUCCESS;
}

/* Counted anew from all running jobs and not carried forward: slurmctld adds a
 * whole time limit again after a restart, a reconfigure and a change of size,
 * and nothing can drift. */
static void clear_run_secs(void)
{
	if (!limits_enforced())
		return;
	list_for_each_ro(assoc_mgr_assoc_list, clear_assoc_run_secs, NULL);
	list_for_each_ro(assoc_mgr_qos_list, clear_qos_run_secs, NULL);
}

/* Most jobs pend: of these the state is all that is looked at. */
static void fetch_state(const job_record_t *job)
{
	__builtin_prefetch(&job->job_state);
}

/* ---- decay and reset ---- */

static void multiply(long double *usage_raw, long double *tres_raw, double *wall, double by)
{
	*usage_raw *= by;
	for (int i = 0; i < slurmctld_tres_cnt; i++)
		tres_raw[i] *= by;
	*wall *= by;
}

static void multiply_assoc_usage(slurmdb_assoc_usage_t *usage, double by)
{
	multiply(&usage->usage_raw, usage->usage_tres_raw, &usage->grp_used_wall, by);
}

/* An account's leaf_usage is what users that have been deleted left there. */
static int decay_assoc(void *x, void *arg)
{
	slurmdb_assoc_rec_t *assoc = x;

	multiply_assoc_usage(assoc->usage, *(double *)arg);
	if (assoc->leaf_usage && assoc->leaf_usage != assoc->usage)
		multiply_assoc_usage(assoc->leaf_usage, *(double *)arg);
	return SLURM_SUCCESS;
}

static int decay_qos(void *x, void *arg)
{
	slurmdb_qos_rec_t *qos = x;

	if (!(qos->flags & QOS_FLAG_NO_DECAY))
		multiply(&qos->usage->usage_raw, qos->usage->usage_tres_raw, &qos->usage->grp_used_wall,
			 *(double *)arg);
	return SLURM_SUCCESS;
}

static void decay(double seconds)
{
	double by = pow(decay_of_a_second(), seconds);

	if (seconds <= 0 || by == 1)
		return;
	if (by < DBL_MIN)
		by = DBL_MIN;
	list_for_each_ro(assoc_mgr_assoc_list, decay_assoc, &by);
	list_for_each_ro(assoc_mgr_qos_list, decay_qos, &by);
}

static int reset_assoc(void *x, void *arg)
{
	slurmdb_assoc_rec_t *assoc = x;

	(void)arg;
	multiply_assoc_usage(assoc->usage, 0);
	if (assoc->leaf_usage && assoc->leaf_usage != assoc->usage) {
		slurmdb_destroy_assoc_usage(assoc->leaf_usage);
		assoc->leaf_usage = NULL;
	}
	return SLURM_SUCCESS;
}

static int reset_qos(void *x, void *arg)
{
	slurmdb_qos_rec_t *qos = x;

	(void)arg;
	multiply(&qos->usage->usage_raw, qos->usage->usage_tres_raw, &qos->usage->grp_used_wall, 0);
	return SLURM_SUCCESS;
}

/* The first day of the next reset period after a moment: local midnight. */
static time_t next_reset(uint16_t period, time_t after)
{
	struct tm day;

	localtime_r(&after, &day);
	day.tm_sec = day.tm_min = day.tm_hour = 0;
	day.tm_isdst = -1;
	switch (period) {
	case PRIORITY_RESET_DAILY:
		day.tm_mday++;
		break;
	case PRIORITY_RESET_WEEKLY:
		day.tm_mday += 7 - day.tm_wday;
		break;
	case PRIORITY_RESET_MONTHLY:
		day.tm_mday = 1;
		day.tm_mon++;
		break;
	case PRIORITY_RESET_QUARTERLY:
		day.tm_mday = 1;
		day.tm_mon += 3 - day.tm_mon % 3;
		break;
	default: /* PRIORITY_RESET_YEARLY */
		day.tm_mday = 1;
		day.tm_mon = 0;
		day.tm_year++;
	}
	return mktime(&day);
}

static bool reset_is_due(time_t now)
{
	uint16_t period = slurm_conf.priority_reset_period;
	time_t at = last_reset, next;

	if (period == PRIORITY_RESET_NONE)
		return false;
	if (period == PRIORITY_RESET_NOW) {
		if (__atomic_exchange_n(&reset_done, true, __ATOMIC_RELAXED))
			return false;
		last_reset = now;
		return true;
	}
	/* Each later than the one before, whatever the time zone's rules are. */
	while ((next = next_reset(period, at)) > at && next <= now)
		at = next;
	if (at == last_reset)
		return false;
	last_reset = at;
	return true;
}

static void reset_if_due(time_t now)
{
	if (!reset_is_due(now))
		return;
	info("gpubudget: usage of associations and QOS is reset, as PriorityUsageResetPeriod says");
	list_for_each_ro(assoc_mgr_assoc_list, reset_assoc, NULL);
	list_for_each_ro(assoc_mgr_qos_list, reset_qos, NULL);
}

/* ---- the state file: two times, each 8 bytes, most significant first ---- */

struct times {
	uint64_t last_period, last_reset;
};

/* Needs the configuration read lock, but at start: a reconfigure frees the
 * name of the folder. */
static void state_path(char *path, size_t size, const char *suffix)
{
	snprintf(path, size, "%s/" STATE_FILE "%s", slurm_conf.state_save_location, suffix);
}

static bool read_times(const char *suffix, struct times *times)
{
	char path[PATH_MAX];
	ssize_t got;
	int fd;

	state_path(path, sizeof(path), suffix);
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return false;
	got = read(fd, times, sizeof(*times));
	close(fd);
	if (got == sizeof(*times))
		return true;
	error("gpubudget: %s is incomplete", path);
	return false;
}

/* A time that was noted is not in the future, nor before there were any. */
static bool has_been(time_t noted, time_t now)
{
	return noted >= 0 && noted <= now;
}

static void load_times(void)
{
	struct times times = { 0 };
	time_t now = time(NULL);

	if (!read_times("", &times) && !read_times(".old", &times))
		info("gpubudget: no " STATE_FILE " in StateSaveLocation: running jobs are counted from their start");
	last_period = be64toh(times.last_period);
	last_reset = be64toh(times.last_reset);
	if (!has_been(last_period, now) || !has_been(last_reset, now)) {
		error("gpubudget: " STATE_FILE " in StateSaveLocation holds a time that is yet to come, or none at all: it is damaged, or the clock was ahead; running jobs are counted from now on");
		last_period = last_reset = now;
	}
	if (!last_reset)
		last_reset = now;
}

static bool write_times(const char *path, const struct times *times)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok;

	if (fd < 0)
		return false;
	ok = write(fd, times, sizeof(*times)) == sizeof(*times) && !fsync(fd);
	return !close(fd) && ok;
}

static void save_times(void)
{
	struct times times = { htobe64(last_period), htobe64(last_reset) };
	slurmctld_lock_t locks = { .conf = READ_LOCK };
	char path[PATH_MAX], new[PATH_MAX], old[PATH_MAX];

	lock_slurmctld(locks);
	state_path(path, sizeof(path), "");
	state_path(new, sizeof(new), ".new");
	state_path(old, sizeof(old), ".old");
	unlock_slurmctld(locks);
	if (!write_times(new, &times)) {
		error("gpubudget: cannot write %s: %s", new, strerror(errno));
		return;
	}
	unlink(old);
	if (link(path, old) && errno != ENOENT)
		debug("gpubudget: cannot keep %s: %s", old, strerror(errno));
	if (rename(new, path))
		error("gpubudget: cannot write %s: %s", path, strerror(errno));
}

/* ---- what the plugin calls ---- */

/* Limits may block less than before. The backfill scheduler looks at jobs again
 * only if something has happened to one. */
static void wake_scheduler(void)
{
	slurmctld_lock_t locks = { .job = WRITE_LOCK };

	lock_slurmctld(locks);
	last_job_update = time(NULL);
	unlock_slurmctld(locks);
}

/* Job read lock and the association manager's locks. */
static bool lock_lists(slurmctld_lock_t *locks, assoc_mgr_lock_t *assoc_locks)
{
	*locks = (slurmctld_lock_t){ .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	*assoc_locks = (assoc_mgr_lock_t){ .assoc = WRITE_LOCK, .qos = WRITE_LOCK, .tres = READ_LOCK };
	lock_slurmctld(*locks);
	assoc_mgr_lock(assoc_locks);
	return assoc_mgr_assoc_list && assoc_mgr_root_assoc && assoc_mgr_qos_list;
}

static void unlock_lists(slurmctld_lock_t *locks, assoc_mgr_lock_t *assoc_locks)
{
	assoc_mgr_unlock(assoc_locks);
	unlock_slurmctld(*locks);
}

void limits_start(void)
{
	__atomic_store_n(&reset_done, false, __ATOMIC_RELAXED);
	resize_count = 0;
	load_times();
}

/* slurmctld saves what was used before it stops us: a period that is counted
 * after that would be noted as counted, and lost. The next slurmctld counts it. */
static bool ending(void)
{
	return slurmctld_config.shutdown_time != 0;
}

bool limits_begin(struct limits_period *period)
{
	*period = (struct limits_period){ 0 };
	if (!assoc_mgr_assoc_list || !assoc_mgr_root_assoc || !assoc_mgr_qos_list || ending())
		return false;
	period->now = time(NULL);
	reset_if_due(period->now);
	if (last_period)
		decay(difftime(period->now, last_period));
	clear_run_secs();
	return true;
}

void limits_count(struct limits_period *period, job_record_t *job)
{
	if (IS_JOB_PENDING(job))
		period->waiting = true;
	if (!counted(job))
		return;
	if (!IS_JOB_POWER_UP_NODE(job))
		add_time(job, period->now);
	if (limits_enforced())
		add_run_secs(job, &period->now);
}

void limits_end(const struct limits_period *period)
{
	last_period = period->now;
	resize_count = 0;
}

void limits_tell(const struct limits_period *period)
{
	if (period->waiting)
		wake_scheduler();
	save_times();
}

void limits_reconfigure(bool cleared)
{
	slurmctld_lock_t locks;
	assoc_mgr_lock_t assoc_locks;

	__atomic_store_n(&reset_done, false, __ATOMIC_RELAXED);
	if (!cleared)
		return;
	/* As of the last period, which is what held_run_secs expects. */
	if (lock_lists(&locks, &assoc_locks) && limits_enforced()) {
		clear_run_secs();
		jobs_for_each(&(struct jobs_walk){ .see = add_run_secs, .fetch = fetch_state }, &last_period);
	}
	unlock_lists(&locks, &assoc_locks);
}

/* What slurmctld or the last recount holds for this job. After a change of
 * size slurmctld has added the whole time limit again. */
static uint64_t held_run_secs(const job_record_t *job)
{
	if (!job->nodes || resized(job))
		return remaining(job, job->start_time);
	return rest(job, last_period > job->start_time ? last_period : job->start_time);
}

void limits_job_end(job_record_t *job)
{
	assoc_mgr_lock_t locks = { .assoc = WRITE_LOCK, .qos = WRITE_LOCK, .tres = READ_LOCK };
	time_t until = time(NULL);

	if (job->end_time_exp == (time_t)NO_VAL)
		return;
	if (job->end_time && until > job->end_time)
		until = job->end_time;
	assoc_mgr_lock(&locks);
	if (job->nodes)
		add_time(job, until);
	if (limits_enforced())
		change_all_run_secs(job, held_run_secs(job), false);
	if (IS_JOB_RESIZING(job))
		remember_resize(job, until);
	assoc_mgr_unlock(&locks);
	/* How slurmctld knows that this job has been ended. */
	job->end_time_exp = (time_t)NO_VAL;
}
