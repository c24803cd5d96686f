/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * peer.h: what preempt_gpubudget.so and job_submit_gpubudget.so find in
 * priority_gpubudget.so, which has started the Go library and knows how to read a
 * job record.
 */
#ifndef GPUBUDGET_PEER_H
#define GPUBUDGET_PEER_H

#include "../bridge.h"
#include "slurm_compat.h"

struct gpub_peer {
	uint32_t abi; /* GPUB_ABI */
	/* False if the engine doesn't run, or settings aren't there yet. Strings are
	 * the job record's. Needs what flatten.c needs. */
	bool (*flatten)(const job_record_t *job, time_t now, struct gpub_job *out);
	/* GPUB_ERROR if the engine doesn't run. */
	int (*candidates)(const struct gpub_placing *placing, int64_t now_ms);
	int (*preempted)(uint32_t victim, uint32_t request, uint32_t requeues, int64_t now_ms);
	/* The same. */
	int (*submit)(struct gpub_submission *submission);
	/* Never waits: NULL if the uid has no name, or nobody has answered yet. */
	const char *(*username)(uint32_t uid);
};

/* The name it is looked up by, and its type. */
#define GPUB_PEER "gpubudget_peer"
typedef const struct gpub_peer *(*gpub_peer_fn)(void);

#endif
