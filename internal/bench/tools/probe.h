/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * probe.h: the file that probe.c writes and bench reads, mapped by both. Times
 * are nanoseconds: wall time by CLOCK_MONOTONIC, CPU time by the thread's own
 * clock.
 */
#ifndef GPUBUDGET_BENCH_PROBE_H
#define GPUBUDGET_BENCH_PROBE_H

#include <stdint.h>

#define PROBE_HOLDS 65536
#define PROBE_SETS 524288
#define PROBE_SEARCHES 65536

/* One stretch between lock_slurmctld and unlock_slurmctld of the plugin. */
struct probe_hold {
	uint32_t job, node; /* what of these locks: 0 nothing, 1 read, 2 write */
	int64_t asked, got, released;
	int64_t cpu; /* spent while it held */
};

/* One search of the backfill scheduler for jobs that a request may evict: Slurm's
 * walk over all jobs, with all that it asks the preempt plugin. */
struct probe_search {
	int64_t wall, cpu;
	int64_t found; /* jobs; -1 if that isn't known */
};

struct probe {
	uint64_t holds, sets, searches; /* how many there ever were */
	struct probe_hold hold[PROBE_HOLDS];
	uint32_t set[PROBE_SETS]; /* wall time of each priority_p_set */
	struct probe_search search[PROBE_SEARCHES];
};

#endif
