/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pass.c: the thread that recalculates priorities.
 *
 * A pass reads every job under the job read lock, lets the Go library rank
 * them, and only then takes the job write lock to write what has changed. A
 * job that was altered or purged in between is left for the next pass.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define BATCH 512
#define SIGHTING_MS 5000 /* the longest that a job can start and end unseen */
#define LEAST_MS 100
#define WANTED_MS 1000
#define NS_PER_MS 1000000

static pthread_t thread;
static bool running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static bool stopping, woken;

/* The jobs of a pass whose priority is ours, side by side. Only the pass
 * thread uses them; they keep their size from one pass to the next. */
static struct {
	job_record_t **records;
	struct gpub_job *jobs;
	struct gpub_factors *out;
	uint32_t count, room;
} queue;
static struct arena arena;

struct pass {
	const struct gpub_engine *engine;
	struct flattening how;
	int64_t now_ms;
	bool prioritize;
	bool failed;
	struct gpub_job *batch; /* sightings on their way to the library */
	uint32_t batched;
	uint32_t observed; /* of the queue */
	uint32_t seen, changed, skipped;
	int64_t read_ns, write_ns;
};

static int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * (int64_t)1000 * NS_PER_MS + now.tv_nsec;
}

static bool make_room(uint32_t room)
{
	job_record_t **records = realloc(queue.records, room * sizeof(*records));
	struct gpub_job *jobs;
	struct gpub_factors *out;

	if (records)
		queue.records = records;
	if ((jobs = realloc(queue.jobs, room * sizeof(*jobs))))
		queue.jobs = jobs;
	if ((out = realloc(queue.out, room * sizeof(*out))))
		queue.out = out;
	if (!records || !jobs || !out)
		return false;
	queue.room = room;
	return true;
}

static void check(struct pass *pass, int rc)
{
	if (rc != GPUB_OK)
		pass->failed = true;
}

/* The jobs that have come into the queue since, as long as they are in the
 * processor's cache. */
static void observe_queue(struct pass *pass)
{
	if (queue.count > pass->observed && !pass->failed)
		check(pass, pass->engine->pass_observe(&queue.jobs[pass->observed], queue.count - pass->observed));
	pass->observed = queue.count;
}

static bool enqueue(struct pass *pass, job_record_t *job)
{
	uint32_t i = queue.count;

	if (i == queue.room && !make_room(queue.room ? queue.room + queue.room / 2 : 4 * BATCH))
		return false;
	if (!flatten_inputs(&pass->how, job, &queue.jobs[i]) || !prepare_factors(&pass->how, &queue.out[i]))
		return false;
	queue.records[i] = job;
	if (++queue.count % BATCH == 0)
		observe_queue(pass);
	return true;
}

static void send_batch(struct pass *pass)
{
	if (pass->batched && !pass->failed)
		check(pass, pass->engine->pass_observe(pass->batch, pass->batched));
	pass->batched = 0;
}

static int see_job(void *x, void *arg)
{
	struct pass *pass = arg;
	job_record_t *job = x;

	if (!layout_job_ok(job)) {
		pass->failed = true;
		return -1;
	}
	if (IS_JOB_REVOKED(job)) /* it is another cluster's */
		return 0;
	pass->seen++;
	if (pass->prioritize && job_wants_priority(job, pass->how.settings->weights.flags)) {
		if (enqueue(pass, job))
			return pass->failed ? -1 : 0;
		error("gpubudget: out of memory after %u jobs, the priorities stay as they were", pass->seen);
		pass->failed = true;
		return -1;
	}
	flatten_sighting(&pass->how, job, &pass->batch[pass->batched++]);
	if (pass->batched == BATCH)
		send_batch(pass);
	return pass->failed ? -1 : 0;
}

/* A batch that fails leaves its priorities 0, which are then not written.
 * What a record has already needn't be written: it leaves the queue here, so
 * that the write lock is held for the others only. */
static void prioritize_queue(struct pass *pass)
{
	for (uint32_t i = 0; i < queue.count; i += BATCH) {
		uint32_t end = queue.count - i < BATCH ? queue.count : i + BATCH;

		pass->engine->pass_prioritize(&queue.jobs[i], end - i, &queue.out[i]);
		for (uint32_t k = i; k < end; k++)
			if (has_factors(queue.records[k], &queue.jobs[k], &queue.out[k], pass->how.settings))
				queue.records[k] = NULL;
	}
}

static void look(struct pass *pass)
{
	struct gpub_cluster cluster = {
		.nodes = node_record_count,
		.cpus = cluster_cpus,
		.qos_priority_max = g_qos_max_priority,
	};

	gpus_of_cluster(&cluster);
	check(pass, pass->engine->pass_begin(pass->now_ms, &cluster));
	if (pass->failed)
		return;
	list_for_each_ro(job_list, see_job, pass);
	send_batch(pass);
	observe_queue(pass);
	/* A pass that ends says that it has shown every job. */
	if (pass->failed)
		return;
	prioritize_queue(pass);
	check(pass, pass->engine->pass_end());
}

static void look_locked(struct pass *pass)
{
	slurmctld_lock_t locks = { .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	assoc_mgr_lock_t assoc_locks = { .assoc = READ_LOCK, .qos = READ_LOCK };
	int64_t begin;

	lock_slurmctld(locks);
	begin = monotonic_ns();
	assoc_mgr_lock(&assoc_locks);
	look(pass);
	assoc_mgr_unlock(&assoc_locks);
	pass->read_ns = monotonic_ns() - begin;
	unlock_slurmctld(locks);
}

static void log_factors(const job_record_t *job, const struct gpub_factors *out)
{
	double tres = 0;

	if (!(slurm_conf.debug_flags & DEBUG_FLAG_PRIO))
		return;
	for (uint32_t i = 0; out->tres && i < settings_now()->weights.tres_count; i++)
		tres += out->tres[i];
	info("PRIO: gpubudget: JobId=%u site %" PRId64 " + age %.2f + assoc %.2f + fairshare %.2f + jobsize %.2f + partition %.2f + qos %.2f + tres %.2f - nice %" PRId64 " = %u",
	     job->job_id, out->site, out->age, out->assoc, out->fairshare, out->job_size, out->partition, out->qos,
	     tres, out->nice, out->priority);
}

static void write_job(struct pass *pass, uint32_t i)
{
	const struct gpub_factors *out = &queue.out[i];
	const struct gpub_job *in = &queue.jobs[i];
	uint32_t flags = pass->how.settings->weights.flags, priority = out->priority;
	job_record_t *job = find_job_record(in->job_id);

	if (!priority || job != queue.records[i] || job->priority != in->current_priority ||
	    !job_wants_priority(job, flags)) {
		pass->skipped++;
		return;
	}
	if (!parts_sorted(job))
		priority = set_priority(job);
	else
		store_factors(job, in, out, pass->how.settings);
	log_factors(job, out);
	if (job->priority == priority || (flags & GPUB_FLAG_INCR_ONLY && job->priority > priority))
		return;
	job->priority = priority;
	pass->changed++;
}

static void write_locked(struct pass *pass)
{
	slurmctld_lock_t locks = { .job = WRITE_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	int64_t begin;

	lock_slurmctld(locks);
	begin = monotonic_ns();
	for (uint32_t i = 0; i < queue.count; i++)
		if (queue.records[i])
			write_job(pass, i);
	if (pass->changed)
		last_job_update = time(NULL);
	pass->write_ns = monotonic_ns() - begin;
	unlock_slurmctld(locks);
}

static void update_site_factors(void)
{
	slurmctld_lock_t locks = { .job = WRITE_LOCK, .node = READ_LOCK, .part = READ_LOCK };

	if (!xstrcmp(slurm_conf.site_factor_plugin, "site_factor/none"))
		return;
	lock_slurmctld(locks);
	site_factor_g_update();
	unlock_slurmctld(locks);
}

static void run_pass(bool prioritize, struct gpub_job *batch)
{
	struct timespec now;
	struct pass pass = {
		.engine = engine,
		.how = { .settings = settings_now(), .arena = &arena },
		.prioritize = prioritize,
		.batch = batch,
	};
	bool by_slurm;

	if (!job_list)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	pass.how.now = now.tv_sec;
	pass.now_ms = now.tv_sec * (int64_t)1000 + now.tv_nsec / NS_PER_MS;
	queue.count = 0;
	by_slurm = prioritize && slurm_shares_update();
	look_locked(&pass);
	if (prioritize && !pass.failed) {
		write_locked(&pass);
		if (!by_slurm)
			standings_update();
	}
	arena_reset(&arena);
	debug("gpubudget: %s of %u jobs: %u prioritized, %u changed, %u left for the next; %.3f ms under the read lock, %.3f ms under the write lock",
	      prioritize ? "pass" : "sighting", pass.seen, queue.count, pass.changed, pass.skipped,
	      pass.read_ns / (double)NS_PER_MS, pass.write_ns / (double)NS_PER_MS);
}

static int64_t calc_period_ms(void)
{
	return slurm_conf.priority_calc_period ? slurm_conf.priority_calc_period * (int64_t)1000 : 300000;
}

static int64_t pass_interval_ns(void)
{
	int64_t ms = engine->interval_ms();

	if (ms <= 0)
		ms = calc_period_ms();
	return (ms < LEAST_MS ? LEAST_MS : ms) * NS_PER_MS;
}

/* Sleeps until a moment, or until woken; false when it is time to stop. */
static bool sleep_until(int64_t ns)
{
	const struct timespec until = { ns / (1000 * (int64_t)NS_PER_MS), ns % (1000 * (int64_t)NS_PER_MS) };
	bool go_on;

	pthread_mutex_lock(&lock);
	while (!stopping && !woken && monotonic_ns() < ns)
		pthread_cond_timedwait(&cond, &lock, &until);
	go_on = !stopping;
	pthread_mutex_unlock(&lock);
	return go_on;
}

static bool wanted(void)
{
	bool was;

	pthread_mutex_lock(&lock);
	was = woken;
	woken = false;
	pthread_mutex_unlock(&lock);
	if (usernames_news())
		was = true;
	return was || (engine->wanted && engine->wanted());
}

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void *pass_thread(void *arg)
{
	struct gpub_job *batch = arg;
	int64_t next_pass = monotonic_ns(), next_sighting = next_pass, next_period = next_pass, next;

	do {
		int64_t now = monotonic_ns();

		if (now >= next_period) {
			limits_period();
			update_site_factors();
			next_period = now + calc_period_ms() * NS_PER_MS;
		}
		/* Only one of the two: a pass sees every job as well. */
		if (wanted() || now >= next_pass) {
			run_pass(true, batch);
			next_pass = now + pass_interval_ns();
			next_sighting = now + SIGHTING_MS * (int64_t)NS_PER_MS;
		} else if (now >= next_sighting) {
			run_pass(false, batch);
			next_sighting = now + SIGHTING_MS * (int64_t)NS_PER_MS;
		}
		next = earlier(next_period, earlier(next_pass, next_sighting));
		next = earlier(next, monotonic_ns() + WANTED_MS * (int64_t)NS_PER_MS);
	} while (sleep_until(next));
	free(batch);
	return NULL;
}

static void init_cond(void)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&cond, &attributes);
	pthread_condattr_destroy(&attributes);
}

int pass_start(void)
{
	struct gpub_job *batch = malloc(BATCH * sizeof(*batch));
	int rc;

	init_cond();
	stopping = woken = false;
	rc = batch ? pthread_create(&thread, NULL, pass_thread, batch) : ENOMEM;
	if (rc) {
		error("gpubudget: cannot start the thread that recalculates priorities: %s", strerror(rc));
		pthread_cond_destroy(&cond);
		free(batch);
		return SLURM_ERROR;
	}
	pthread_setname_np(thread, "gpub_prio");
	running = true;
	return SLURM_SUCCESS;
}

void pass_wake(void)
{
	pthread_mutex_lock(&lock);
	woken = true;
	if (running)
		pthread_cond_signal(&cond);
	pthread_mutex_unlock(&lock);
}

void pass_stop(void)
{
	if (!running)
		return;
	pthread_mutex_lock(&lock);
	stopping = true;
	pthread_cond_signal(&cond);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	running = false;
	pthread_cond_destroy(&cond);
	arena_free(&arena);
	free(queue.records);
	free(queue.jobs);
	free(queue.out);
	memset(&queue, 0, sizeof(queue));
}
