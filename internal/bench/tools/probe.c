/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * probe.c: watches a priority and a preempt plugin from outside, whichever they are.
 *
 * The dynamic linker loads this into slurmctld as an auditor (LD_AUDIT, see
 * rtld-audit(7)) and asks it about each function that one object calls in
 * another. Where the priority plugin calls lock_slurmctld or unlock_slurmctld,
 * where Slurm calls priority_p_set, and where the backfill scheduler has Slurm
 * look for jobs that may be evicted, it is given a function of ours that looks
 * at the clock and calls the real one. Nothing else is touched, and all plugins
 * are measured by the same means.
 *
 * GPUBENCH_PROBE names the file, made by bench in its full size.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"
#include "src/slurmctld/locks.h"

#define EXPORT __attribute__((visibility("default")))

static struct probe *probe;

static void (*real_lock)(slurmctld_lock_t);
static void (*real_unlock)(slurmctld_lock_t);
static uint32_t (*real_set)(uint32_t, void *);
static void *(*real_search)(void *);
static int (*real_count)(void *);

static __thread struct probe_hold hold;
static __thread int64_t cpu_at_lock;

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static void timed_lock(slurmctld_lock_t locks)
{
	hold.asked = clock_ns(CLOCK_MONOTONIC);
	real_lock(locks);
	hold.job = locks.job;
	hold.node = locks.node;
	cpu_at_lock = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	hold.got = clock_ns(CLOCK_MONOTONIC);
}

/* Only the thread that recalculates gets here, but for who runs sprio. */
static void timed_unlock(slurmctld_lock_t locks)
{
	uint64_t i;

	hold.released = clock_ns(CLOCK_MONOTONIC);
	hold.cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_at_lock;
	real_unlock(locks);
	i = __atomic_load_n(&probe->holds, __ATOMIC_RELAXED);
	probe->hold[i % PROBE_HOLDS] = hold;
	__atomic_store_n(&probe->holds, i + 1, __ATOMIC_RELEASE);
}

/* Its callers hold the job write lock, so there is one at a time. */
static uint32_t timed_set(uint32_t last, void *job)
{
	int64_t begin = clock_ns(CLOCK_MONOTONIC), ns;
	uint32_t priority = real_set(last, job);
	uint64_t i = probe->sets;

	ns = clock_ns(CLOCK_MONOTONIC) - begin;
	probe->set[i % PROBE_SETS] = ns > UINT32_MAX ? UINT32_MAX : ns;
	__atomic_store_n(&probe->sets, i + 1, __ATOMIC_RELEASE);
	return priority;
}

/* There is one backfill scheduler. */
static void *timed_search(void *job)
{
	int64_t wall = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	void *list = real_search(job);
	struct probe_search *search = &probe->search[probe->searches % PROBE_SEARCHES];

	search->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
	search->wall = clock_ns(CLOCK_MONOTONIC) - wall;
	search->found = !list ? 0 : real_count ? real_count(list) : -1;
	__atomic_store_n(&probe->searches, probe->searches + 1, __ATOMIC_RELEASE);
	return list;
}

/* Without the file slurmctld runs as if this were not here. */
EXPORT unsigned int la_version(unsigned int version)
{
	const char *path = getenv("GPUBENCH_PROBE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return 0;
	mapped = mmap(NULL, sizeof(*probe), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped == MAP_FAILED)
		return 0;
	probe = mapped;
	return version < LAV_CURRENT ? version : LAV_CURRENT;
}

enum { OTHER, PRIORITY, BACKFILL };

EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	const char *slash = strrchr(map->l_name, '/');

	(void)lmid;
	*cookie = OTHER;
	if (slash && !strncmp(slash, "/priority_", 10))
		*cookie = PRIORITY;
	if (slash && !strncmp(slash, "/sched_backfill", 15))
		*cookie = BACKFILL;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

#define REPLACE(real, with)                                    \
	do {                                                   \
		real = (__typeof__(real))(void *)sym->st_value; \
		return (uintptr_t)(void *)(with);              \
	} while (0)

EXPORT uintptr_t la_symbind64(Elf64_Sym *sym, unsigned int index, uintptr_t *from, uintptr_t *to,
			      unsigned int *flags, const char *name)
{
	(void)index;
	(void)flags;
	if (*from == PRIORITY && !strcmp(name, "lock_slurmctld"))
		REPLACE(real_lock, timed_lock);
	if (*from == PRIORITY && !strcmp(name, "unlock_slurmctld"))
		REPLACE(real_unlock, timed_unlock);
	if (*to == PRIORITY && !strcmp(name, "priority_p_set"))
		REPLACE(real_set, timed_set);
	if (*from == BACKFILL && !strcmp(name, "slurm_find_preemptable_jobs"))
		REPLACE(real_search, timed_search);
	if (*from == BACKFILL && !strcmp(name, "list_count"))
		real_count = (__typeof__(real_count))(void *)sym->st_value;
	return sym->st_value;
}
