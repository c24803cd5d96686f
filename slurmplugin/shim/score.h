/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * score.h: a job's priority from the numbers that the Go library hands over
 * with each pass. Knows no Slurm: the tests of the library compile it too.
 */
#ifndef GPUBUDGET_SCORE_H
#define GPUBUDGET_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../bridge.h"

/* One partition of a job that names several, in Slurm's order (tier first). */
struct score_part {
	double factor;      /* normalised unless NO_NORMAL_PART */
	const double *tres; /* TRES factors there, before weights; NULL if no weights */
	uint32_t priority;  /* out: what goes into priority_array */
};

/* Where an owner of jobs stands: his gpub_place, and of its slot what a priority
 * needs, so that one look finds all. Half a line of the processor's cache. */
struct score_owner {
	double fairshare;
	int64_t qos_unit;
	uint32_t nice_first, nice_count;
	uint32_t slot;
	uint32_t known; /* for owners.h */
};

/* What a priority depends on besides the job's owner. */
struct score_job {
	int64_t age;           /* seconds since age began to count, -1 if it hasn't */
	int64_t nice, site;    /* without NICE_OFFSET */
	int64_t min_runtime;   /* seconds that it asks for, -1 if it says nothing */
	double assoc, qos;     /* factors, normalised unless NO_NORMAL_ASSOC and so on */
	double partition;
	uint32_t qos_priority; /* raw */
	uint32_t cpus;         /* total_cpus, else the request; 0 if unknown */
	uint32_t min_nodes;
	uint32_t time_limit;   /* minutes, UINT32_MAX if unlimited */
	const double *tres;    /* TRES factors, before weights; NULL if no weights */
	struct score_part *parts; /* NULL unless several partitions */
	uint32_t parts_count;
};

/* What a priority is made of, weighted: prio_factors, what sprio adds up. */
struct score {
	double age, assoc, fairshare, job_size, partition, qos;
	int64_t site;
	int64_t nice;      /* what is subtracted, without NICE_OFFSET */
	double *tres;      /* caller's array of tres_count, NULL if no weights */
	uint32_t priority; /* the sum; at least 1 */
};

/* A place of a table's. */
struct score_owner score_owner(const struct gpub_table *table, const struct gpub_place *place);

/* Is a job unallocated that asks for this minimum runtime? */
bool score_unallocated(const struct gpub_table *table, int64_t min_runtime);

/* Does it stand elsewhere than its account's other jobs? */
bool score_elsewhere(const struct gpub_table *table, const struct score_owner *owner, int64_t min_runtime);

/* Fills all of out but the pointer, and the parts' priorities. */
void score_job(const struct gpub_table *table, const struct score_owner *owner, const struct score_job *job,
	       struct score *out);

#endif
