/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * running.c: which jobs run, and what they hold.
 *
 * slurmctld asks us in the midst of a walk over its list of jobs, which is
 * locked then. So the list is looked at before, when slurmctld asks whether
 * there is any preemption at all; the records are found by their numbers.
 *
 * What a run holds doesn't change while it lasts, and lies in a dozen places all over
 * memory: it is read once and remembered by job and start. What somebody may change is
 * read anew by each look.
 *
 * Most of what a walk over tens of thousands of records takes is waiting for memory. So
 * the order of the list is remembered as well, and the processor is told of each
 * record before its turn, be the walk ours or Slurm's.
 */
#include <stdlib.h>
#include <string.h>

#include "byid.h"
#include "preempt.h"

/* The runs in the order of Slurm's list, and the pieces of each in that of its nodes. */
struct running {
	struct run *runs;
	struct run_piece *pieces;
	uint32_t count, room, piece_count, piece_room;
	struct by_id places;
};

/* What slurmctld's numbers of nodes go by. */
struct layout {
	const void *table;
	int nodes;
	time_t configured;
};

/* Where Slurm's list had which record, to be fetched only: it may be gone. Other threads
 * may read it meanwhile, so it is never moved; smaller ones are kept to the end. */
struct walk {
	struct walk *smaller;
	uint32_t room;
	struct walk_step {
		const job_record_t *job;
		const struct job_details *details; /* of one that runs */
	} steps[];
};

static struct walk *walk;

static struct {
	struct running now, before;
	uint32_t place; /* in the list */
	struct layout layout;
	time_t at;
	bool failed;
} looked;

int64_t run_start(const job_record_t *job)
{
	return job->resize_time > job->start_time ? job->resize_time : job->start_time;
}

bool gres_is_gpu(const gres_state_t *gres)
{
	static uint32_t gpu_id;
	uint32_t known = __atomic_load_n(&gpu_id, __ATOMIC_RELAXED);

	if (known)
		return gres->plugin_id == known;
	if (strcmp(gres->gres_name, "gpu"))
		return false;
	__atomic_store_n(&gpu_id, gres->plugin_id, __ATOMIC_RELAXED);
	return true;
}

/* ---- memory ahead of time ---- */

static struct walk_step step_at(uint32_t place)
{
	const struct walk *last = __atomic_load_n(&walk, __ATOMIC_ACQUIRE);

	if (!last || place >= last->room)
		return (struct walk_step){ 0 };
	return (struct walk_step){
		__atomic_load_n(&last->steps[place].job, __ATOMIC_RELAXED),
		__atomic_load_n(&last->steps[place].details, __ATOMIC_RELAXED),
	};
}

static void remember_step(uint32_t place, const job_record_t *job, const struct job_details *details)
{
	if (!walk || place >= walk->room)
		return;
	__atomic_store_n(&walk->steps[place].job, job, __ATOMIC_RELAXED);
	__atomic_store_n(&walk->steps[place].details, details, __ATOMIC_RELAXED);
}

/* No room for some is no harm: they aren't fetched then. */
static void make_walk(uint32_t jobs)
{
	uint32_t room = jobs + jobs / 2 + 1024;
	struct walk *more;

	if ((walk && walk->room >= jobs) || !(more = calloc(1, sizeof(*more) + room * sizeof(*more->steps))))
		return;
	more->smaller = walk;
	more->room = room;
	__atomic_store_n(&walk, more, __ATOMIC_RELEASE);
}

static void free_walks(void)
{
	struct walk *smaller;

	for (; walk; walk = smaller) {
		smaller = walk->smaller;
		free(walk);
	}
}

void job_fetch(const job_record_t *job)
{
	if (!job)
		return;
	__builtin_prefetch(&job->het_job_id);
	__builtin_prefetch(&job->job_state);
}

/* What note reads of one that runs. */
static void fetch_terms(struct walk_step step)
{
	__builtin_prefetch(&step.job->batch_flag);
	__builtin_prefetch(&step.job->details);
	__builtin_prefetch(&step.job->part_ptr);
	__builtin_prefetch(&step.job->qos_ptr);
	__builtin_prefetch(&step.job->resize_time);
	__builtin_prefetch(&step.job->start_time);
	__builtin_prefetch(&step.details->nice);
	__builtin_prefetch(&step.details->requeue);
}

void running_fetch(uint32_t place)
{
	job_fetch(step_at(place + AHEAD).job);
}

/* ---- what a run holds ---- */

struct holding {
	struct running *to;
	const struct job_resources *resources;
	struct run *run;
	bool memory_short;
};

static struct run_piece *add_piece(struct holding *holding)
{
	struct running *to = holding->to;

	if (!array_grow(&to->pieces, &to->piece_room, to->piece_count + 1, sizeof(*to->pieces))) {
		holding->memory_short = true;
		return NULL;
	}
	holding->run->pieces++;
	return &to->pieces[to->piece_count++];
}

/* A piece for each node, without GPUs. */
static void read_pieces(struct holding *holding)
{
	const struct job_resources *resources = holding->resources;
	struct run_piece *piece;
	uint32_t node = 0;

	/* Most have one node: looking for the last one as well would take half of the time. */
	for (int i = bit_ffs(resources->node_bitmap); i >= 0 && node < resources->nhosts && i < node_record_count; i++) {
		if (!bit_test(resources->node_bitmap, i))
			continue;
		if (!(piece = add_piece(holding)))
			return;
		*piece = (struct run_piece){
			.node = i,
			.cpus = resources->cpus ? resources->cpus[node] : 0,
			.memory = resources->memory_allocated ? (int64_t)resources->memory_allocated[node] : 0,
		};
		node++;
	}
}

/* The GPUs of one type: those of the first are put into the pieces that are there,
 * others have pieces of their own. */
static int read_gpus(void *x, void *arg)
{
	const gres_state_t *gres = x;
	const gres_job_state_t *gpus = gres->gres_data;
	struct holding *holding = arg;
	struct run *run = holding->run;
	uint32_t nodes = run->nodes;

	if (!gres_is_gpu(gres))
		return 0;
	if (gpus->total_gres != NO_CONSUME_VAL64)
		run->gpus += gpus->total_gres;
	if (!gpus->gres_cnt_node_alloc)
		return 0;
	for (uint32_t i = 0; i < nodes && i < gpus->node_cnt; i++) {
		struct run_piece *piece = &holding->to->pieces[run->first + i], *more;

		if (!gpus->gres_cnt_node_alloc[i])
			continue;
		if (piece->gpus) {
			if (!(more = add_piece(holding)))
				return -1;
			piece = &holding->to->pieces[run->first + i]; /* they may have been moved */
			*more = (struct run_piece){ .node = piece->node };
			piece = more;
		}
		piece->gpus = gpus->gres_cnt_node_alloc[i];
		piece->gpu_type = gpus->type_id;
	}
	return 0;
}

static bool read_held(struct running *to, struct run *run, const job_record_t *job)
{
	struct holding holding = { .to = to, .resources = job->job_resrcs, .run = run };

	run->first = to->piece_count;
	if (holding.resources && holding.resources->node_bitmap)
		read_pieces(&holding);
	run->nodes = run->pieces;
	if (job->gres_list_alloc && !holding.memory_short)
		list_for_each_ro(job->gres_list_alloc, read_gpus, &holding);
	return !holding.memory_short;
}

static bool copy_held(struct running *to, struct run *run, const struct running *from, const struct run *old)
{
	run->gpus = old->gpus;
	run->nodes = old->nodes;
	run->pieces = old->pieces;
	run->first = to->piece_count;
	if (!array_grow(&to->pieces, &to->piece_room, to->piece_count + old->pieces, sizeof(*to->pieces)))
		return false;
	memcpy(&to->pieces[run->first], &from->pieces[old->first], old->pieces * sizeof(*to->pieces));
	to->piece_count += old->pieces;
	return true;
}

/* ---- looking ---- */

static const struct run *find_before(const job_record_t *job)
{
	const struct running *before = &looked.before;
	int64_t at = by_id_find(&before->places, job->job_id);
	const struct run *run;

	if (at < 0)
		return NULL;
	run = &before->runs[before->places.entries[at].value];
	return run->start == run_start(job) ? run : NULL;
}

/* What somebody may change while the job runs. */
static void read_terms(struct run *run, const job_record_t *job)
{
	run->het_job_id = job->het_job_id;
	run->resv = job->resv_ptr;
	run->qos_priority = job->qos_ptr ? job->qos_ptr->priority : 0;
	run->nice = job->details ? (int64_t)job->details->nice - NICE_OFFSET : 0;
	run->keeps = !job->details || preempt_mode(job) == PREEMPT_MODE_OFF;
}

static bool runs(const job_record_t *job)
{
	return IS_JOB_RUNNING(job) || IS_JOB_SUSPENDED(job) || IS_JOB_COMPLETING(job);
}

static int note(void *x, void *arg)
{
	const job_record_t *job = x;
	struct running *now = &looked.now;
	const struct run *old;
	struct walk_step ahead = step_at(looked.place + AHEAD);
	struct run *run;

	(void)arg;
	job_fetch(ahead.job);
	if (ahead.details)
		fetch_terms(ahead);
	remember_step(looked.place++, job, runs(job) ? job->details : NULL);
	if (!runs(job))
		return 0;
	looked.failed = !array_grow(&now->runs, &now->room, now->count + 1, sizeof(*now->runs));
	if (looked.failed)
		return -1;
	run = &now->runs[now->count++];
	*run = (struct run){ .job_id = job->job_id, .start = run_start(job), .job = job };
	read_terms(run, job);
	old = find_before(job);
	looked.failed = !(old ? copy_held(now, run, &looked.before, old) : read_held(now, run, job));
	return looked.failed ? -1 : 0;
}

static struct layout layout_now(void)
{
	return (struct layout){ node_record_table_ptr, node_record_count, slurm_conf.last_update };
}

static bool same_layout(struct layout a, struct layout b)
{
	return a.table == b.table && a.nodes == b.nodes && a.configured == b.configured;
}

/* So that the next look finds them. */
static bool place(struct running *running)
{
	if (!by_id_make(&running->places, running->count))
		return false;
	for (uint32_t i = 0; i < running->count; i++)
		by_id_put(&running->places, running->runs[i].job_id, i);
	return true;
}

void running_look(time_t now)
{
	struct running before = looked.before;
	struct layout layout = layout_now();

	if (looked.at == now)
		return;
	looked.at = now;
	looked.before = looked.now;
	looked.now = before;
	looked.now.count = looked.now.piece_count = looked.now.places.count = 0;
	if (!same_layout(layout, looked.layout))
		looked.before.places.count = 0;
	looked.layout = layout;
	looked.failed = false;
	looked.place = 0;
	make_walk(list_count(job_list));
	list_for_each_ro(job_list, note, NULL);
	if (looked.failed || !place(&looked.now)) /* what is missing would look like room */
		looked.now.count = looked.now.piece_count = looked.now.places.count = 0;
}

const struct run *running_runs(uint32_t *count, const struct run_piece **pieces)
{
	bool same = same_layout(layout_now(), looked.layout);

	*count = same ? looked.now.count : 0;
	*pieces = looked.now.pieces;
	return looked.now.runs;
}

static void free_running(struct running *running)
{
	free(running->runs);
	free(running->pieces);
	by_id_free(&running->places);
}

void running_free(void)
{
	free_running(&looked.now);
	free_running(&looked.before);
	free_walks();
	memset(&looked, 0, sizeof(looked));
}
