/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * preempt.h: what the files of preempt_gpubudget.so share.
 *
 * slurmctld asks about every job of its list each time that it tries to place
 * one. All these questions are answered from an array: the Go library is
 * asked once for each attempt, about all that run.
 */
#ifndef GPUBUDGET_PREEMPT_H
#define GPUBUDGET_PREEMPT_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "peer.h"

#include "src/slurmctld/preempt.h"

#pragma weak avail_node_bitmap

/* library.c: the priority plugin and the Go library. */
/* Can the plugin work here? Says in the log why not. */
bool library_installed(void);
/* NULL as long as the priority plugin isn't loaded. */
const struct gpub_peer *library_peer(void);

/* running.c: which jobs run. For attempt.c alone, which locks it. */
/* Looks at all jobs, at most once a second. */
void running_look(time_t now);
/* Ids of those that ran then. Valid until the next look. */
const uint32_t *running_ids(uint32_t *count);
void running_free(void);

/* placing.c: an attempt to place a job in the form of the bridge. */
struct placing {
	struct gpub_placing bridge;
	struct gpub_request request;
	struct gpub_room *free;
	struct gpub_piece *pieces;
	struct gpub_occupant *occupants;
	uint32_t *node_of;     /* by slurmctld's index of a node: index + 1 in free, or 0 */
	uint32_t node_room, piece_room, occupant_room, node_of_room;
};
/* Only what depends on Slurm's records. Needs the job and node read locks and the
 * association manager's assoc and qos ones. False if nobody can be evicted for
 * this job, or memory is short. */
bool placing_read(struct placing *placing, const struct gpub_peer *peer, const job_record_t *request, time_t now);
void placing_free(struct placing *placing);
/* Of a run: the later of its start and its last resize. */
int64_t run_start(const job_record_t *job);

/* attempt.c: the answers. */
/* Looks at what runs. Needs the job read lock, and must not be called within a
 * walk over job_list. */
void attempt_prepare(void);
/* Where the job stands in the order of those that the request may evict, from 1;
 * 0 if it may not. Needs the job read lock. */
uint32_t attempt_order(const job_record_t *job, const job_record_t *request);
/* The same, of the request that this thread asked about last. */
uint32_t attempt_order_last(const job_record_t *job);
/* Slurm is about to evict a job for that request. */
void attempt_evicts(const job_record_t *job);
void attempt_free(void);

/* preempt_gpubudget.c: PREEMPT_MODE_OFF, _CANCEL or _REQUEUE. */
uint16_t preempt_mode(const job_record_t *job);

#endif
