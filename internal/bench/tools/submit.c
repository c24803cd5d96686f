/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * submit.c: submits many jobs of many users, as sbatch would but without a
 * process for each. Run by root, who may submit for others.
 *
 * usage: submit [OPTIONS] FIRST COUNT CLIENTS OWNERS
 *
 * Jobs are numbered from FIRST on; job i is owner (i * 7919) mod n's of the n
 * lines "UID ACCOUNT" in the file OWNERS. CLIENTS processes submit at a time.
 * Prints the seconds it took.
 *
 *   -a         allocations as of salloc --no-shell: they run without any process
 *   -x         with nodes for themselves (--exclusive)
 *   -H         held
 *   -g GPUS    of each node; 1 to 8 if it isn't said
 *   -N NODES   with a task on each; 1 if it isn't said
 *   -w         on the node whose turn it is: 8 on n1, 8 on h1, 8 on h2, ...
 *   -m SECONDS of minimum runtime
 *   -q QOS
 *   -J NAME    of all; "job" and the number if it isn't said
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define MIN_RUNTIME "GPUBUDGET_MIN_RUNTIME"
#define MOST_OWNERS 100000
#define STRIDE 7919 /* a prime: neighbours in the queue have different owners */
#define MOST_GPUS 8
#define TRIES 50

static struct owner {
	uint32_t uid;
	char account[64];
} owners[MOST_OWNERS];
static unsigned long owner_count;

static struct {
	bool allocate, exclusive, held, placed;
	int gpus; /* -1: 1 to 8 */
	uint32_t nodes;
	char *min_runtime, *qos, *name;
} asked = { .gpus = -1, .nodes = 1 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void read_owners(const char *path)
{
	FILE *file = fopen(path, "r");
	struct owner *o = owners;

	if (!file) {
		perror(path);
		exit(2);
	}
	while (owner_count < MOST_OWNERS && fscanf(file, "%u %63s", &o->uid, o->account) == 2) {
		owner_count++;
		o++;
	}
	fclose(file);
	if (!owner_count) {
		fprintf(stderr, "submit: no owners in %s\n", path);
		exit(2);
	}
}

static int submit_once(job_desc_msg_t *desc)
{
	resource_allocation_response_msg_t *allocated = NULL;
	submit_response_msg_t *submitted = NULL;
	int rc;

	if (asked.allocate) {
		rc = slurm_allocate_resources(desc, &allocated);
		slurm_free_resource_allocation_response_msg(allocated);
	} else {
		rc = slurm_submit_batch_job(desc, &submitted);
		slurm_free_submit_response_response_msg(submitted);
	}
	return rc;
}

/* Slurm asks clients to come again while it is busy. */
static int submit(job_desc_msg_t *desc)
{
	for (int i = 0; i < TRIES; i++) {
		if (submit_once(desc) == SLURM_SUCCESS)
			return 0;
		if (errno != EAGAIN)
			break;
		usleep(10000);
	}
	fprintf(stderr, "submit: %s\n", slurm_strerror(errno));
	return 1;
}

static int submit_one(unsigned long i)
{
	static char *environment[] = { "PATH=/usr/bin:/bin", NULL };
	struct owner *o = &owners[i * STRIDE % owner_count];
	char gres[32], name[32], node[32], min_runtime[64], *spank[] = { min_runtime };
	job_desc_msg_t desc;

	snprintf(gres, sizeof(gres), "gres:gpu:%lu", asked.gpus < 0 ? 1 + i % MOST_GPUS : (unsigned long)asked.gpus);
	snprintf(min_runtime, sizeof(min_runtime), MIN_RUNTIME "=%s", asked.min_runtime ? asked.min_runtime : "");
	snprintf(name, sizeof(name), "job%lu", i);
	snprintf(node, sizeof(node), i < MOST_GPUS ? "n1" : "h%lu", i / MOST_GPUS);
	slurm_init_job_desc_msg(&desc);
	desc.name = asked.name ? asked.name : name;
	desc.user_id = o->uid;
	desc.group_id = o->uid;
	desc.account = o->account;
	if (!asked.allocate)
		desc.script = "#!/bin/sh\nexec sleep 86400\n";
	desc.work_dir = "/";
	desc.std_in = desc.std_out = desc.std_err = "/dev/null";
	desc.environment = environment;
	desc.env_size = 1;
	desc.min_nodes = desc.max_nodes = desc.num_tasks = asked.nodes;
	if (asked.nodes > 1)
		desc.ntasks_per_node = 1;
	if (asked.gpus)
		desc.tres_per_node = gres;
	if (asked.placed)
		desc.req_nodes = node;
	if (asked.exclusive)
		desc.shared = JOB_SHARED_NONE;
	if (asked.held)
		desc.priority = 0;
	desc.qos = asked.qos;
	if (asked.min_runtime) {
		desc.spank_job_env = spank;
		desc.spank_job_env_size = 1;
	}
	desc.time_limit = 1440 + i % 60;
	desc.nice = NICE_OFFSET + i % 3;
	return submit(&desc);
}

static bool read_options(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "axHwg:N:m:q:J:")) != -1) {
		switch (option) {
		case 'a':
			asked.allocate = true;
			break;
		case 'x':
			asked.exclusive = true;
			break;
		case 'H':
			asked.held = true;
			break;
		case 'w':
			asked.placed = true;
			break;
		case 'g':
			asked.gpus = atoi(optarg);
			break;
		case 'N':
			asked.nodes = strtoul(optarg, NULL, 10);
			break;
		case 'm':
			asked.min_runtime = optarg;
			break;
		case 'q':
			asked.qos = optarg;
			break;
		case 'J':
			asked.name = optarg;
			break;
		default:
			return false;
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	unsigned long first, count, clients;
	double begin;
	int status, failed = 0;

	if (!read_options(argc, argv) || argc - optind != 4) {
		fprintf(stderr, "usage: submit [-axHw] [-g GPUS] [-N NODES] [-m SECONDS] [-q QOS] [-J NAME] FIRST COUNT CLIENTS OWNERS\n");
		return 2;
	}
	argv += optind - 1;
	first = strtoul(argv[1], NULL, 10);
	count = strtoul(argv[2], NULL, 10);
	clients = strtoul(argv[3], NULL, 10);
	read_owners(argv[4]);
	slurm_init(NULL);
	begin = now();
	for (unsigned long c = 0; c < clients; c++) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("submit: fork");
			return 1;
		}
		if (pid)
			continue;
		for (unsigned long i = c; i < count && !failed; i += clients)
			failed = submit_one(first + i);
		_exit(failed);
	}
	while (wait(&status) > 0)
		failed |= status;
	if (failed)
		return 1;
	printf("%.6f\n", now() - begin);
	return 0;
}
