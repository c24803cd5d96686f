/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * submit.c: submits many jobs of many users, as sbatch would but without a
 * process for each. Run by root, who may submit for others.
 *
 * usage: submit FIRST COUNT CLIENTS OWNERS
 *
 * Jobs are numbered from FIRST on; job i is owner (i * 7919) mod n's of the n
 * lines "UID ACCOUNT" in the file OWNERS. CLIENTS processes submit at a time.
 * Prints the seconds it took.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define MOST_OWNERS 100000
#define STRIDE 7919 /* a prime: neighbours in the queue have different owners */
#define MOST_GPUS 8
#define TRIES 50

static struct owner {
	uint32_t uid;
	char account[64];
} owners[MOST_OWNERS];
static unsigned long owner_count;

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

/* Slurm asks clients to come again while it is busy. */
static int submit(job_desc_msg_t *desc)
{
	submit_response_msg_t *response = NULL;

	for (int i = 0; i < TRIES; i++) {
		if (slurm_submit_batch_job(desc, &response) == SLURM_SUCCESS) {
			slurm_free_submit_response_response_msg(response);
			return 0;
		}
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
	char gres[32], name[32];
	job_desc_msg_t desc;

	snprintf(gres, sizeof(gres), "gres:gpu:%lu", 1 + i % MOST_GPUS);
	snprintf(name, sizeof(name), "job%lu", i);
	slurm_init_job_desc_msg(&desc);
	desc.name = name;
	desc.user_id = o->uid;
	desc.group_id = o->uid;
	desc.account = o->account;
	desc.script = "#!/bin/sh\nexec sleep 86400\n";
	desc.work_dir = "/";
	desc.std_in = desc.std_out = desc.std_err = "/dev/null";
	desc.environment = environment;
	desc.env_size = 1;
	desc.min_nodes = desc.num_tasks = 1;
	desc.tres_per_node = gres;
	desc.time_limit = 1440 + i % 60;
	desc.nice = NICE_OFFSET + i % 3;
	return submit(&desc);
}

int main(int argc, char **argv)
{
	unsigned long first, count, clients;
	double begin;
	int status, failed = 0;

	if (argc != 5) {
		fprintf(stderr, "usage: submit FIRST COUNT CLIENTS OWNERS\n");
		return 2;
	}
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
