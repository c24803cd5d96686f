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

#include "claims.h"
#include "eviction.h"
#include "peer.h"

#include "src/slurmctld/preempt.h"

#pragma weak avail_node_bitmap

/* array.c: arrays that are used again. */
/* Sees to it that there is room for so many. False if memory is short. */
bool array_grow(void *array, uint32_t *room, uint32_t need, size_t size);

/* library.c: the priority plugin and the Go library. */
/* Can the plugin work here? Says in the log why not. */
bool library_installed(void);
/* NULL as long as the priority plugin isn't loaded. */
const struct gpub_peer *library_peer(void);

/* running.c: which jobs run, and what they hold. For attempt.c alone, which locks it. */
struct run {
	uint32_t job_id;
	uint32_t het_job_id;
	int64_t start; /* run_start */
	int64_t nice;  /* without NICE_OFFSET */
	uint64_t gpus;
	uint32_t qos_priority;
	uint32_t first, nodes, pieces; /* of its pieces: one for each node first */
	bool keeps;                    /* its GPUs, whatever the rules say */
	const slurmctld_resv_t *resv;  /* to be compared only */
	const job_record_t *job;       /* to be fetched only: it may be gone */
};
/* What a run holds of a node: GPUs of one type at most. */
struct run_piece {
	uint32_t node;     /* slurmctld's index */
	uint32_t gpu_type; /* Slurm's number of the type; 0 if it has none */
	uint64_t gpus;
	uint32_t cpus;
	int64_t memory;
};
/* Looks at all jobs, at most once a second. */
void running_look(time_t now);
/* Those that ran then, in any state since; nobody if the nodes have been numbered
 * anew. Valid until the next look. */
const struct run *running_runs(uint32_t *count, const struct run_piece **pieces);
/* Tells the processor that the walk over the list has come to this place, from 0. Needs
 * no lock. */
void running_fetch(uint32_t place);
/* Tells it to get what says whether a job runs, so many jobs before its turn: before that
 * much else is asked for. Where a record was may be anything by now, which does no harm to
 * ask for. */
#define AHEAD 16
void job_fetch(const job_record_t *job);
void running_free(void);
/* Of a run: the later of its start and its last resize. */
int64_t run_start(const job_record_t *job);
/* By Slurm's number of the name, once it is known: the name of each is a string of
 * its own, which would have to be fetched from memory. */
bool gres_is_gpu(const gres_state_t *gres);

/* het.c: het jobs that others have to make way for. */
/* The first component of the het job that this one belongs to, with the list of all; NULL
 * if there is none. */
const job_record_t *het_leader(const job_record_t *job);
/* False if another component runs already, or is held back. */
bool het_may_ask(const job_record_t *request, time_t now);
/* Whether the candidates that there are for a component may be offered; 0 if it has room, or
 * none can be made. */
bool het_may_evict(const job_record_t *request, uint32_t candidates, time_t now);
/* Others are evicted for it, with that grace time. */
void het_evicts(const job_record_t *request, uint32_t grace, time_t now);
/* Some have to be, and may. */
bool het_is_needy(const job_record_t *job);
/* Where it belongs in the queue. Backfill's questions are about a queue that it sorts. */
enum claim_place het_place(const job_record_t *job);
/* Leaves of the nodes those that a component may use beside the others. */
void het_limit_nodes(bitstr_t *nodes, const job_record_t *request);

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

/* attempt.c: the answers. */
/* Looks at what runs. Needs the job read lock, and must not be called within a
 * walk over job_list. */
void attempt_prepare(void);
/* A walk over the list has come to its next job. */
void attempt_walks(void);
/* Where the job stands in the order of those that the request may evict, from 1;
 * 0 if it may not. Needs the job read lock. */
uint32_t attempt_order(const job_record_t *job, const job_record_t *request);
/* The same, of the request that this thread asked about last. */
uint32_t attempt_order_last(const job_record_t *job);
/* Slurm is about to evict a job for that request. */
void attempt_evicts(const job_record_t *job, uint32_t grace);
void attempt_free(void);

/* preempt_gpubudget.c: PREEMPT_MODE_OFF, _CANCEL or _REQUEUE. */
uint16_t preempt_mode(const job_record_t *job);
/* Have others been evicted for this job, and does it not run yet? Slurm itself
 * gives them so long to be gone. */
bool makes_room(const job_record_t *job, time_t now);

#endif
