/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * attempt.c: what preempt_gpubudget.so costs slurmctld in C, for each attempt
 * to place a job. The plugin's own files with a list of job records as
 * slurmctld has them, and no Go library: an answer is there at once.
 *
 * usage: bench-attempt RUNNING PENDING ATTEMPTS
 *
 * Jobs of a GPU run on nodes of eight. Prints lines as go test -bench does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preempt.h"

#define GPUS 8 /* of a node */
#define CACHES (64 << 20) /* more than a core has to itself */
#define STRIDE 7919 /* a prime: those that are to go first are anywhere in the list */

bitstr_t *avail_node_bitmap;
List job_list;
time_t last_job_update;

extern int preempt_p_get_data(job_record_t *job, slurm_preempt_data_type_t type, void *data);
extern bool preempt_p_preemptable(job_record_t *preemptee, job_record_t *preemptor);

static job_record_t **by_id;
static uint32_t jobs, running_jobs;
static bool all_yield;

job_record_t *find_job_record(uint32_t id)
{
	return id && id <= jobs ? by_id[id - 1] : NULL;
}

/* No het job asks here, and nobody is evicted. */
extern uint16_t slurm_job_preempt_mode(job_record_t *job)
{
	(void)job;
	abort();
}

extern bool acct_policy_is_job_preempt_exempt(job_record_t *job)
{
	(void)job;
	abort();
}

extern uint32_t slurm_job_preempt(job_record_t *job, job_record_t *request, uint16_t mode, bool ignore_time)
{
	(void)job, (void)request, (void)mode, (void)ignore_time;
	abort();
}

static bool flatten(const job_record_t *job, time_t now, struct gpub_job *out)
{
	(void)now;
	*out = (struct gpub_job){ .job_id = job->job_id, .gpus = GPUS };
	return true;
}

static int candidates(const struct gpub_placing *placing, int64_t now_ms)
{
	(void)now_ms;
	if (placing->occupant_count != running_jobs || placing->piece_count != running_jobs) {
		fprintf(stderr, "bench-attempt: %u of %u jobs found\n", placing->occupant_count, running_jobs);
		exit(1);
	}
	for (uint32_t i = 0; i < placing->occupant_count; i++)
		placing->occupants[i].order = all_yield ? 1 + i * (uint64_t)STRIDE % running_jobs : 0;
	return GPUB_OK;
}

const struct gpub_peer *library_peer(void)
{
	static const struct gpub_peer peer = { .abi = GPUB_ABI, .flatten = flatten, .candidates = candidates };

	return &peer;
}

bool library_installed(void)
{
	return true;
}

static void *zeroed(size_t size)
{
	void *x = calloc(1, size);

	if (!x)
		abort();
	return x;
}

static List gpus(void *data)
{
	gres_state_t *gres = zeroed(sizeof(*gres));
	List list = list_create(NULL);

	gres->gres_name = "gpu";
	gres->plugin_id = 7696487; /* Slurm's number of that name */
	gres->gres_data = data;
	list_append(list, gres);
	return list;
}

static void make_nodes(uint32_t count)
{
	node_record_count = count;
	node_record_table_ptr = zeroed(count * sizeof(*node_record_table_ptr));
	avail_node_bitmap = bit_alloc(count);
	for (uint32_t i = 0; i < count; i++) {
		node_record_t *node = node_record_table_ptr[i] = zeroed(sizeof(*node));
		gres_node_state_t *has = zeroed(sizeof(*has));

		has->gres_cnt_avail = has->gres_cnt_alloc = GPUS;
		node->cpus = 128;
		node->config_ptr = zeroed(sizeof(*node->config_ptr));
		node->gres_list = gpus(has);
		bit_set(avail_node_bitmap, i);
	}
}

static job_record_t *make_job(uint32_t id, part_record_t *part)
{
	job_record_t *job = zeroed(sizeof(*job));

	job->job_id = id;
	job->part_ptr = part;
	job->priority = 1;
	job->details = zeroed(sizeof(*job->details));
	job->details->nice = NICE_OFFSET;
	job->details->min_nodes = job->details->max_nodes = 1;
	job->details->num_tasks = 1;
	job->details->requeue = 1;
	job->batch_flag = 1;
	job->job_state = JOB_PENDING;
	by_id[id - 1] = job;
	list_append(job_list, job);
	return job;
}

static void run_job(job_record_t *job, uint32_t node)
{
	gres_job_state_t *has = zeroed(sizeof(*has));
	struct job_resources *resources = job->job_resrcs = zeroed(sizeof(*resources));

	job->job_state = JOB_RUNNING;
	job->start_time = 1000;
	resources->node_bitmap = bit_alloc(node_record_count);
	bit_set(resources->node_bitmap, node);
	resources->nhosts = 1;
	resources->cpus = zeroed(sizeof(*resources->cpus));
	resources->cpus[0] = 8;
	has->total_gres = has->node_cnt = 1;
	has->gres_cnt_node_alloc = zeroed(sizeof(*has->gres_cnt_node_alloc));
	has->gres_cnt_node_alloc[0] = 1;
	job->gres_list_alloc = gpus(has);
}

/* As Slurm's preempt.c does it. */
static int ask(void *x, void *arg)
{
	if (preempt_p_preemptable(x, by_id[jobs - 1]))
		list_append(arg, x);
	return 0;
}

static int by_order(void *x, void *y)
{
	uint32_t a, b;

	preempt_p_get_data(*(job_record_t **)x, PREEMPT_DATA_PRIO, &a);
	preempt_p_get_data(*(job_record_t **)y, PREEMPT_DATA_PRIO, &b);
	return a > b ? 1 : a < b ? -1 : 0;
}

/* CPU time: nothing here waits for anybody. */
static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* What Slurm does between two attempts drives all this out of the caches. */
static void forget(void)
{
	static volatile uint64_t other[CACHES / sizeof(uint64_t)];

	for (size_t i = 0; i < CACHES / sizeof(uint64_t); i += 8)
		other[i]++;
}

/* A look at all jobs comes first once a second. */
static void measure(const char *name, uint32_t attempts, bool look, bool cold)
{
	double spent = 0;

	for (uint32_t i = 0; i < attempts; i++) {
		List yielding = list_create(NULL);
		uint32_t found;
		bool enabled;
		double begin;

		last_job_update++; /* so that nothing is used again */
		if (look)
			running_look(i); /* long ago */
		if (cold)
			forget();
		begin = now_ns();
		preempt_p_get_data(NULL, PREEMPT_DATA_ENABLED, &enabled);
		list_for_each_ro(job_list, ask, yielding);
		list_sort(yielding, by_order);
		spent += now_ns() - begin;
		found = list_count(yielding);
		if (!enabled || found != (all_yield ? running_jobs : 0)) {
			fprintf(stderr, "bench-attempt: %u of %u jobs yield\n", found, running_jobs);
			exit(1);
		}
		list_destroy(yielding);
	}
	printf("BenchmarkAttempt/%s/running=%u/pending=%u \t%8u\t%12.0f ns/op\n", name, running_jobs, jobs - running_jobs, attempts,
	       spent / attempts);
}

int main(int argc, char **argv)
{
	part_record_t *part = zeroed(sizeof(*part));
	uint32_t pending, attempts;

	if (argc != 4 || (running_jobs = atoi(argv[1])) < 1 || (pending = atoi(argv[2])) < 1 || (attempts = atoi(argv[3])) < 1) {
		fprintf(stderr, "usage: bench-attempt RUNNING PENDING ATTEMPTS\n");
		return 2;
	}
	jobs = running_jobs + pending;
	by_id = zeroed(jobs * sizeof(job_record_t *));
	job_list = list_create(NULL);
	slurm_conf.preempt_mode = PREEMPT_MODE_REQUEUE;
	make_nodes((running_jobs + GPUS - 1) / GPUS);
	part->node_bitmap = bit_copy(avail_node_bitmap);
	part->preempt_mode = NO_VAL16;
	for (uint32_t i = 0; i < jobs; i++) {
		job_record_t *job = make_job(i + 1, part);

		if (i < running_jobs)
			run_job(job, i / GPUS);
	}
	measure("nobody-yields", attempts, false, false);
	measure("nobody-yields/first-of-a-second", attempts, true, false);
	measure("nobody-yields/cold", attempts, false, true);
	all_yield = true;
	measure("all-yield", attempts, false, false);
	measure("all-yield/cold", attempts, false, true);
	return 0;
}
