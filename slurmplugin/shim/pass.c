/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pass.c: the thread that recalculates priorities.
 *
 * A pass looks at every job under the job read lock and keeps what priorities
 * depend on. With no lock held the Go library ranks everybody, and the shim
 * works the priorities out. Only for those that have changed it takes the job
 * write lock. A job that changed its owner, QOS, nice value, partitions or
 * priority in between is looked at anew. Of what else may have changed (its
 * size, say) the priority tells as of the look.
 *
 * Between passes there are looks alone. Once every PriorityCalcPeriod one of
 * them, or a pass, also adds up what limits are checked against.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define BATCH 128 /* sightings, which stay in the cache */
#define CHUNK 4096
#define AHEAD 12 /* changes that the processor is told of before their turn */
#define SIGHTING_MS 5000 /* the longest that a job can start and end unseen */
#define LEAST_MS 100
#define WANTED_MS 1000
#define NS_PER_MS 1000000

static pthread_t thread;
static bool running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static bool stopping, woken, news;

/* A job whose priority is ours, as the pass has seen it. */
struct candidate {
	job_record_t *record;
	const void *factors; /* neither is followed once the lock is given back */
	uint64_t stored;     /* stored_print of the job */
	uint64_t print;      /* score_print; before, of several partitions, inputs_print */
	uint32_t job_id, priority, state;
	uint32_t owner;
	bool parts;
	bool scored; /* out is, and in no more */
	union {
		struct score_job in;
		struct score out;
	};
};

/* The candidates of a pass, and which of them change. Only the pass thread
 * uses them; the memory stays from one pass to the next. */
static struct {
	struct candidate **chunks;
	uint32_t count, room;
	uint32_t *changes; /* as long as room */
	uint32_t change_count;
} queue;
static struct arena arena;

/* What is stored of each candidate: of this pass and the one before. Nobody else
 * changes that but set_priority, so of most jobs it needn't be read. */
struct print {
	uint32_t job_id;
	uint64_t stored;
};
static struct prints {
	struct print *all;
	uint32_t count, room;
} prints, prints_before;
static uint32_t next_before; /* the list hardly changes: mostly it is the job's turn */
static const struct settings *prints_by;

struct pass {
	const struct gpub_engine *engine;
	const struct settings *settings;
	time_t now;
	int64_t now_ms;
	bool prioritize;
	bool counts;     /* usage for limits as well */
	bool failed;
	bool given;      /* all priorities are as they should be */
	const char *why; /* not; NULL if there is no reason to tell */
	struct gpub_job *batch; /* sightings on their way to the library */
	uint32_t batched;
	struct owners owners; /* of the candidates; then the table's */
	struct gpub_extremes extremes;
	double *most_tres; /* what extremes.tres points to */
	struct limits_period period;
	uint32_t seen, changed, gone;
	int64_t read_ns, rank_ns, write_ns; /* rank_ns: with no lock of jobs */
};

static int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * (int64_t)1000 * NS_PER_MS + now.tv_nsec;
}

static struct candidate *candidate(uint32_t i)
{
	return &queue.chunks[i / CHUNK][i % CHUNK];
}

static bool make_room(void)
{
	uint32_t count = queue.room / CHUNK;
	struct candidate **chunks = realloc(queue.chunks, (count + 1) * sizeof(*chunks));
	uint32_t *changes = realloc(queue.changes, (queue.room + CHUNK) * sizeof(*changes));

	if (chunks)
		queue.chunks = chunks;
	if (changes)
		queue.changes = changes;
	if (!chunks || !changes || !(chunks[count] = malloc(CHUNK * sizeof(**chunks))))
		return false;
	queue.room += CHUNK;
	return true;
}

static bool make_print_room(void)
{
	struct print *all;

	if (prints.count < prints.room)
		return true;
	if (!(all = realloc(prints.all, (prints.room + CHUNK) * sizeof(*all))))
		return false;
	prints.all = all;
	prints.room += CHUNK;
	return true;
}

/* Keeps what the next pass is likely to need. */
static void trim_queue(uint32_t keep)
{
	while (queue.room >= keep + CHUNK) {
		queue.room -= CHUNK;
		free(queue.chunks[queue.room / CHUNK]);
	}
}

static void free_queue(void)
{
	trim_queue(0);
	free(prints.all);
	free(prints_before.all);
	prints = prints_before = (struct prints){ 0 };
	free(queue.chunks);
	free(queue.changes);
	memset(&queue, 0, sizeof(queue));
}

static void check(struct pass *pass, int rc)
{
	if (rc == GPUB_OK)
		return;
	pass->failed = true;
	pass->why = LIBRARY_FAILED;
}

static void send_batch(struct pass *pass)
{
	if (pass->batched && !pass->failed)
		check(pass, pass->engine->pass_observe(pass->batch, pass->batched));
	pass->batched = 0;
}

/* ---- the look at all jobs ---- */

static double higher(double a, double b)
{
	return b > a ? b : a;
}

static void widen_part(struct pass *pass, double factor, const double *tres)
{
	pass->extremes.partition = higher(pass->extremes.partition, factor);
	for (uint32_t i = 0; tres && i < pass->extremes.tres_count; i++)
		pass->most_tres[i] = higher(pass->most_tres[i], tres[i]);
}

/* Of jobs that pend, as the scale of the rest is made for these. */
static void widen_extremes(struct pass *pass, const struct score_job *in)
{
	struct gpub_extremes *x = &pass->extremes;

	if (!x->any || in->site < x->site_low)
		x->site_low = in->site;
	if (!x->any || in->site > x->site_high)
		x->site_high = in->site;
	x->any = 1;
	x->assoc = higher(x->assoc, in->assoc);
	widen_part(pass, in->partition, in->tres);
	for (uint32_t i = 0; i < in->parts_count; i++)
		widen_part(pass, in->parts[i].factor, in->parts[i].tres);
}

static uint32_t owner_of(struct pass *pass, const job_record_t *job, const struct gpub_job *sighting)
{
	if (sighting->assoc_id && sighting->assoc_id < OWNERS_LOW)
		return sighting->assoc_id; /* there is room for it once it stands somewhere */
	if (sighting->assoc_id)
		return owners_add_assoc(&pass->owners, sighting->assoc_id);
	return owners_add_name(&pass->owners, job->user_id, job->account, sighting->user);
}

#define SEARCH 64 /* jobs that may have gone from the list, one beside the other */

/* 0 if it isn't known. */
static uint64_t known_print(uint32_t job_id)
{
	if (set_lately(job_id))
		return 0;
	for (uint32_t i = next_before; i < prints_before.count && i < next_before + SEARCH; i++)
		if (prints_before.all[i].job_id == job_id) {
			next_before = i + 1;
			return prints_before.all[i].stored;
		}
	return 0;
}

static void begin_prints(const struct settings *settings)
{
	struct prints before = prints_before;

	prints_before = prints;
	prints = before;
	prints.count = 0;
	next_before = 0;
	if (prints_by != settings)
		prints_before.count = 0;
	prints_by = settings;
}

static bool enqueue(struct pass *pass, job_record_t *job, const struct gpub_job *sighting)
{
	struct candidate *c;

	if ((queue.count == queue.room && !make_room()) || !make_print_room())
		return false;
	c = candidate(queue.count);
	c->record = job;
	c->factors = job->prio_factors;
	c->job_id = job->job_id;
	c->priority = job->priority;
	c->state = job->job_state;
	c->parts = job->part_ptr_list;
	c->scored = false;
	c->stored = known_print(c->job_id);
	if (!c->stored)
		c->stored = stored_print(job, pass->settings);
	prints.all[prints.count] = (struct print){ c->job_id, c->stored };
	c->print = c->parts ? inputs_print(job) : 0;
	if (!read_inputs(pass->settings, &arena, job, sighting->min_runtime, pass->now, &c->in) ||
	    (c->owner = owner_of(pass, job, sighting)) == OWNERS_NONE)
		return false;
	if (sighting->state == GPUB_PENDING)
		widen_extremes(pass, &c->in);
	queue.count++;
	prints.count++;
	return true;
}

/* Short of memory for priorities, a pass still tells the library what runs. */
static void only_look(struct pass *pass)
{
	pass->prioritize = false;
	pass->why = OUT_OF_MEMORY;
}

static bool sight(struct pass *pass, job_record_t *job)
{
	struct gpub_job *sighting = &pass->batch[pass->batched];

	if (!layout_job_ok(job)) {
		pass->failed = true;
		return false;
	}
	if (IS_JOB_REVOKED(job)) /* it is another cluster's */
		return true;
	pass->seen++;
	flatten_sighting(pass->settings, job, pass->now, sighting);
	if (pass->prioritize && job_wants_priority(job, pass->settings->weights.flags) &&
	    !enqueue(pass, job, sighting))
		only_look(pass);
	if (++pass->batched == BATCH)
		send_batch(pass);
	return !pass->failed;
}

/* Limits count whatever becomes of the library. */
static int see_job(void *x, void *arg)
{
	struct pass *pass = arg;

	if (pass->counts)
		limits_count(&pass->period, x);
	return (!pass->failed && sight(pass, x)) || pass->counts ? SLURM_SUCCESS : -1;
}

static void fetch_job(const job_record_t *job)
{
	fetch_sighting(job);
	fetch_inputs(job);
}

static void fetch_job_more(const job_record_t *job)
{
	fetch_sighting_more(job);
	fetch_inputs_more(job);
	if (!prints_before.count)
		fetch_factors(job);
}

static void look(struct pass *pass)
{
	static const struct jobs_walk prioritizing = { see_job, fetch_job, fetch_job_more };
	static const struct jobs_walk looking = { see_job, fetch_sighting, fetch_sighting_more };
	struct gpub_cluster cluster = {
		.nodes = node_record_count,
		.cpus = cluster_cpus,
		.qos_priority_max = g_qos_max_priority,
	};

	gpus_of_cluster(&cluster);
	check(pass, pass->engine->pass_begin(pass->now_ms, &cluster));
	if (pass->failed && !pass->counts)
		return;
	jobs_for_each(pass->prioritize ? &prioritizing : &looking, pass);
	send_batch(pass);
	/* A pass that ends says that it has shown every job. */
	if (!pass->failed)
		check(pass, pass->engine->pass_end());
}

static void look_locked(struct pass *pass)
{
	slurmctld_lock_t locks = { .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	assoc_mgr_lock_t assoc_locks = { .assoc = READ_LOCK, .qos = READ_LOCK };
	int64_t begin;

	if (pass->counts)
		assoc_locks = (assoc_mgr_lock_t){ .assoc = WRITE_LOCK, .qos = WRITE_LOCK, .tres = READ_LOCK };
	lock_slurmctld(locks);
	begin = monotonic_ns();
	table_sweep();
	assoc_mgr_lock(&assoc_locks);
	pass->counts = pass->counts && limits_begin(&pass->period);
	look(pass);
	if (pass->counts)
		limits_end(&pass->period);
	assoc_mgr_unlock(&assoc_locks);
	if (pass->prioritize)
		set_forget();
	pass->read_ns = monotonic_ns() - begin;
	unlock_slurmctld(locks);
	if (pass->counts)
		limits_tell(&pass->period);
}

/* ---- between the locks ---- */

/* The new table, in force: jobs that are submitted from now on go by it too. */
static const struct table *rank(struct pass *pass)
{
	struct table *table = table_make(pass->engine, pass->settings, &pass->extremes, &pass->why);

	if (!table)
		return NULL;
	table->owners = pass->owners;
	pass->owners = (struct owners){ 0 };
	if (!standings_update(pass->engine, table, &pass->why)) {
		table_free(table);
		return NULL;
	}
	pass->why = NULL;
	table_replace(table);
	return table;
}

/* A print that is 0 tells nothing; where only higher priorities are written a
 * lower one changes nothing. */
static bool changes(const struct candidate *c, const struct score *out, uint64_t print, const struct settings *settings)
{
	bool lower = settings->weights.flags & GPUB_FLAG_INCR_ONLY && out->priority < c->priority;

	return !c->stored || (out->priority != c->priority && !lower) ||
	       c->stored != print;
}

static bool work_out(struct pass *pass, const struct table *table)
{
	struct score out;
	uint64_t print;

	if (!prepare_score(pass->settings, &arena, &out)) {
		pass->why = OUT_OF_MEMORY;
		return false;
	}
	for (uint32_t i = 0; i < queue.count; i++) {
		struct candidate *c = candidate(i);

		score_job(&table->numbers, table_owner(table, c->owner), &c->in, &out);
		print = score_print(&c->in, &out, pass->settings);
		if (!changes(c, &out, print, pass->settings))
			continue;
		queue.changes[queue.change_count++] = i;
		if (c->parts)
			continue;
		c->print = print;
		if (out.tres) /* it points elsewhere */
			continue;
		c->out = out;
		c->scored = true;
	}
	return true;
}

/* ---- what has changed ---- */

static void log_score(const job_record_t *job, const struct score *out)
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

/* Has the job changed hands, QOS, nice value, partitions or priority since the
 * look, or started? slurmctld asks for a new priority whenever it has altered a
 * job, but not for one of several partitions when these are read anew: then the
 * record tells, but for the priority. The scheduler gives such a job, while it
 * waits, that which it has in one partition after the other. */
static bool altered(const job_record_t *job, const struct candidate *c)
{
	if (job != c->record || job->job_state != c->state || set_lately(c->job_id))
		return true;
	return c->parts ? inputs_print(job) != c->print : job->priority != c->priority;
}

static uint32_t write_score(struct pass *pass, const struct table *table, const struct candidate *c, struct score *room)
{
	const struct score *out = room;

	if (c->scored) {
		out = &c->out;
		store_score(c->record, NULL, out, pass->settings);
	} else {
		score_job(&table->numbers, table_owner(table, c->owner), &c->in, room);
		store_score(c->record, &c->in, room, pass->settings);
	}
	log_score(c->record, out);
	return out->priority;
}

static void write_job(struct pass *pass, const struct table *table, uint32_t i, struct score *room)
{
	uint32_t flags = pass->settings->weights.flags, priority;
	const struct candidate *c = candidate(i);
	job_record_t *job = find_job_record(c->job_id);

	if (job && !altered(job, c) && (!c->parts || (parts_sorted(job) && job_wants_priority(job, flags)))) {
		priority = write_score(pass, table, c, room);
		prints.all[i].stored = c->parts ? 0 : c->print;
	} else if (job && job_wants_priority(job, flags)) {
		priority = set_priority(job);
	} else {
		pass->gone++;
		return;
	}
	if (job->priority == priority || (flags & GPUB_FLAG_INCR_ONLY && job->priority > priority))
		return;
	job->priority = priority;
	pass->changed++;
}

static void fetch_change(const struct candidate *c)
{
	const gpub_slurm_factors *factors = c->factors;

	__builtin_prefetch(&c->record->job_id);
	__builtin_prefetch(&c->record->job_state);
	__builtin_prefetch(&c->record->priority, 1);
	if (!factors)
		return;
	__builtin_prefetch(&factors->priority_age, 1);
	__builtin_prefetch(&factors->priority_site, 1);
	__builtin_prefetch(&factors->nice, 1);
}

static void write_changes(struct pass *pass, const struct table *table, struct score *out)
{
	for (uint32_t i = 0; i < queue.change_count + AHEAD; i++) {
		if (i < queue.change_count)
			fetch_change(candidate(queue.changes[i]));
		if (i >= AHEAD)
			write_job(pass, table, queue.changes[i - AHEAD], out);
	}
}

static bool write_locked(struct pass *pass, const struct table *table)
{
	slurmctld_lock_t locks = { .job = WRITE_LOCK, .node = READ_LOCK, .part = READ_LOCK };
	struct score out;
	int64_t begin;

	if (!prepare_score(pass->settings, &arena, &out)) {
		pass->why = OUT_OF_MEMORY;
		return false;
	}
	lock_slurmctld(locks);
	begin = monotonic_ns();
	write_changes(pass, table, &out);
	if (pass->changed)
		last_job_update = time(NULL);
	pass->write_ns = monotonic_ns() - begin;
	unlock_slurmctld(locks);
	return true;
}

/* Nobody but this thread replaces the table, so it stays. */
static void give_priorities(struct pass *pass)
{
	int64_t begin = monotonic_ns();
	const struct table *table = rank(pass);
	bool known = table && work_out(pass, table);

	pass->rank_ns = monotonic_ns() - begin;
	pass->given = known && (!queue.change_count || write_locked(pass, table));
}

/* A reconfigure frees the string. */
static bool has_site_factors(void)
{
	slurmctld_lock_t locks = { .conf = READ_LOCK };
	bool has;

	lock_slurmctld(locks);
	has = xstrcmp(slurm_conf.site_factor_plugin, "site_factor/none");
	unlock_slurmctld(locks);
	return has;
}

static void update_site_factors(void)
{
	slurmctld_lock_t locks = { .job = WRITE_LOCK, .node = READ_LOCK, .part = READ_LOCK };

	if (!has_site_factors())
		return;
	lock_slurmctld(locks);
	site_factor_g_update();
	unlock_slurmctld(locks);
}

static void prepare(struct pass *pass)
{
	const struct settings *settings = pass->settings;

	queue.count = queue.change_count = 0;
	if (!pass->prioritize)
		return;
	begin_prints(settings);
	if (!settings->tres)
		return;
	pass->extremes.tres_count = settings->weights.tres_count;
	pass->extremes.tres = pass->most_tres = arena_alloc(&arena, settings->weights.tres_count * sizeof(double));
	if (!pass->most_tres)
		only_look(pass);
}

/* Of a pass that was to give priorities: once, until one has. */
static void tell_failure(const struct pass *pass)
{
	static const char *told;

	if (pass->why && xstrcmp(pass->why, told))
		error("gpubudget: %s: priorities stay as they were", pass->why);
	if (pass->given && told)
		info("gpubudget: priorities are given again");
	told = pass->given ? NULL : pass->why ? pass->why : told;
}

static void run_pass(bool prioritize, bool counts, struct gpub_job *batch)
{
	struct timespec now;
	struct pass pass = {
		.engine = engine,
		.settings = settings_now(),
		.prioritize = prioritize,
		.counts = counts,
		.batch = batch,
	};

	if (!job_list)
		return;
	prepare(&pass);
	clock_gettime(CLOCK_REALTIME, &now);
	pass.now = now.tv_sec;
	pass.now_ms = now.tv_sec * (int64_t)1000 + now.tv_nsec / NS_PER_MS;
	if (prioritize)
		slurm_shares_ask();
	look_locked(&pass);
	if (prioritize)
		slurm_shares_update();
	if (pass.prioritize && !pass.failed)
		give_priorities(&pass);
	if (prioritize) {
		tell_failure(&pass);
		trim_queue(2 * queue.count);
	}
	owners_free(&pass.owners);
	arena_reset(&arena);
	drain_pass(pass.now_ms);
	debug("gpubudget: %s of %u jobs: %u prioritized, %u changed, %u gone meanwhile; %.3f ms under the read lock, %.3f ms to rank, %.3f ms under the write lock",
	      prioritize ? "pass" : "sighting", pass.seen, queue.count, pass.changed, pass.gone,
	      pass.read_ns / (double)NS_PER_MS, pass.rank_ns / (double)NS_PER_MS, pass.write_ns / (double)NS_PER_MS);
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
	was = woken || news;
	woken = news = false;
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
		bool period = now >= next_period;

		if (period) {
			update_site_factors();
			next_period = now + calc_period_ms() * NS_PER_MS;
		}
		/* A pass sees every job as well, and whoever looks may count. */
		if (wanted() || now >= next_pass) {
			settings_retry();
			run_pass(true, period, batch);
			next_pass = now + pass_interval_ns();
			next_sighting = now + SIGHTING_MS * (int64_t)NS_PER_MS;
		} else if (period || now >= next_sighting) {
			run_pass(false, period, batch);
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
	stopping = woken = news = false;
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

/* Not at once: of what is new there may be more. */
void pass_want(void)
{
	pthread_mutex_lock(&lock);
	news = true;
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
	standings_free();
	free_queue();
}
