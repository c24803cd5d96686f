/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * host.c: a slurmctld of a hundred lines. It loads libgpubudget.so as the shim
 * does, calls everything in it and checks what must not happen to a host. Each
 * line it prints is compared by the test.
 *
 * usage: host LIBRARY CONF STATE_DIR
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../bridge.h"
#include "../../shim/score.c"

static void *library;
static atomic_int logged, panics_logged, terminated, children;

#define CALL(name) ((gpub_##name##_fn)symbol("gpub_" #name))

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		printf("no symbol %s\n", name);
		exit(1);
	}
	return found;
}

static void log_line(int level, const char *message)
{
	(void)level;
	logged++;
	if (strstr(message, "panic"))
		panics_logged++;
}

static void on_signal(int sig)
{
	if (sig == SIGTERM)
		terminated++;
	else
		children++;
}

static struct gpub_job job(uint32_t id, const char *account)
{
	return (struct gpub_job){
		.job_id = id, .array_task_id = UINT32_MAX, .array_tasks = 1, .demand_tasks = 1, .assoc_id = id,
		.state = GPUB_PENDING, .flags = GPUB_JOB_DEMANDS, .user = "alice", .account = account, .partition = "gpu",
		.submit = 1000000, .begin = 1000000, .gpus = 2, .min_runtime = -1,
	};
}

/* The older of two jobs of one owner, and the columns of the younger. */
static void score(const struct gpub_table *table, const struct gpub_assoc *owner)
{
	struct score_owner at = score_owner(table, &owner->place);
	struct score_part parts[] = { { .factor = 1 }, { .factor = 0.5 } };
	struct score_job old = { .age = 20 }, young = { .age = 10, .parts = parts, .parts_count = 2 };
	struct score a, b = { 0 };

	a = b;
	score_job(table, &at, &old, &a);
	score_job(table, &at, &young, &b);
	printf("the older job is first: %d\n", a.priority > b.priority && b.priority > 0);
	printf("partitions have priorities: %d\n", parts[0].priority > 0 && parts[1].priority > 0);
	printf("columns add up: %d\n", a.age + a.assoc + a.fairshare + a.job_size + a.partition + a.qos + a.site - a.nice ==
	       a.priority);
}

static void rank(void)
{
	const struct gpub_extremes extremes = { .any = 1 };
	struct gpub_assoc owners[] = { { .id = 1, .account = "physics", .user = "alice" }, { .user_id = 7 } };
	struct gpub_table table = { 0 };

	printf("rank %d\n", CALL(rank)(&extremes, &table));
	printf("fill without room %d\n", CALL(fill)(&(struct gpub_table){ .qos_count = table.qos_count }));
	table.qos = calloc(table.qos_count, sizeof(*table.qos));
	table.nice = calloc(table.nice_count, sizeof(*table.nice));
	table.slots = calloc(table.slot_count, sizeof(*table.slots));
	printf("fill %d, generation %d\n", CALL(fill)(&table), (int)table.weights.generation);
	printf("standings %d known %u\n", CALL(standings)(owners, 2), owners[0].known);
	score(&table, owners);
	free(table.qos);
	free(table.nice);
	free(table.slots);
}

static void pass(void)
{
	const struct gpub_cluster cluster = { .nodes = 4, .cpus = 64, .gpus = 32, .gpus_configured = 32 };
	struct gpub_job jobs[] = { job(1, "physics"), job(2, "physics"), job(3, NULL) };
	struct gpub_slurm_assoc tree[] = { { .id = 1 }, { .id = 2, .shares = 3, .flags = GPUB_ASSOC_USER }, { .id = 3, .shares = 1 } };

	jobs[2].state = GPUB_RUNNING;
	jobs[2].start = 1999990;
	printf("begin %d\n", CALL(pass_begin)(2000000000, &cluster));
	printf("observe %d\n", CALL(pass_observe)(jobs, 3));
	printf("end %d\n", CALL(pass_end)());
	rank();
	printf("sighting %d\n", CALL(observe)(&jobs[2], 2000001000));
	printf("shares %d, slurm's %d", CALL(shares)(), CALL(slurm_shares)(tree, 3));
	printf(" %g %g\n", tree[1].shares_norm, tree[2].shares_norm);
	printf("wanted %d\n", CALL(wanted)());
}

/* slurmctld's threads are many and short-lived. */
static void *short_lived(void *arg)
{
	const struct gpub_job one = job(9, "physics");

	return CALL(observe)(&one, 2000002000) == GPUB_OK ? arg : NULL;
}

static void threads(void)
{
	int good = 0;

	for (int i = 0; i < 50; i++) {
		pthread_t t[4];
		void *result;

		for (int k = 0; k < 4; k++)
			pthread_create(&t[k], NULL, short_lived, &good);
		for (int k = 0; k < 4; k++) {
			pthread_join(t[k], &result);
			good += result != NULL;
		}
	}
	printf("short-lived threads served: %d\n", good);
}

/* The host's own handlers go on to work, SIGPIPE stays ignored. */
static void signals(void)
{
	int ends[2];
	ssize_t n;

	kill(getpid(), SIGTERM);
	kill(getpid(), SIGCHLD);
	for (int i = 0; i < 1000 && !(terminated && children); i++)
		usleep(1000);
	printf("SIGTERM and SIGCHLD reach the host: %d %d\n", terminated, children);
	if (pipe(ends))
		return;
	close(ends[0]);
	n = write(ends[1], "x", 1);
	close(ends[1]);
	printf("SIGPIPE is ignored: %d\n", n < 0);
}

static void faults(void)
{
	struct gpub_job one = job(5, "physics");

	one.account = (const char *)16; /* the first page: nothing there */
	for (int i = 0; i < 3; i++)
		printf("fault near NULL: %d\n", CALL(observe)(&one, 2000003000));
	one.account = (const char *)(1L << 46); /* nothing there either */
	printf("fault elsewhere: %d\n", CALL(observe)(&one, 2000003000));
	printf("NULL jobs: %d\n", CALL(pass_observe)(NULL, 3));
	printf("panics logged: %d\n", panics_logged);
}

int main(int argc, char **argv)
{
	struct gpub_host host = { .abi = GPUB_ABI, .cluster = "titan", .slurm_version = "22.05.8", .log = log_line };
	const struct gpub_weights weights = { .generation = 3, .age = 1000, .fairshare = 10000, .max_age = 100000 };
	struct sigaction action = { .sa_handler = on_signal };
	int before;

	if (argc != 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGCHLD, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	printf("abi %u, job %d\n", ((uint32_t (*)(void))symbol("gpub_abi"))(),
	       ((uint32_t (*)(void))symbol("gpub_job_size"))() == sizeof(struct gpub_job));
	printf("before start: %d %d\n", CALL(pass_end)(), CALL(interval_ms)());
	host.conf_path = argv[2];
	host.state_dir = argv[3];
	host.abi++;
	printf("start with another ABI: %d\n", CALL(start)(&host));
	host.abi--;
	for (int i = 0; i < 2; i++) { /* init, fini, init in one process */
		printf("start %d\n", CALL(start)(&host));
		printf("configure %d\n", CALL(configure)(&weights));
		printf("interval %d\n", CALL(interval_ms)());
		pass();
		CALL(stop)();
		before = logged;
		usleep(50000);
		printf("silent after stop: %d\n", logged == before);
	}
	printf("start %d\n", CALL(start)(&host));
	CALL(configure)(&weights);
	threads();
	signals();
	faults();
	pass();
	CALL(stop)();
	printf("alive\n");
	return 0;
}
