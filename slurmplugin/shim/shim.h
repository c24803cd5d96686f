/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * shim.h: what the files of priority_gpubudget.so share.
 *
 * The shim moves values between slurmctld's records and bridge.h. What a
 * priority is made of is decided in the Go library, which hands over the
 * numbers (table.c); the shim adds them up (score.c).
 */
#ifndef GPUBUDGET_SHIM_H
#define GPUBUDGET_SHIM_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../bridge.h"
#include "eviction.h"
#include "owners.h"
#include "score.h"
#include "slurm_compat.h"

/* engine.c: the Go library. */
struct gpub_engine {
	gpub_start_fn start;
	gpub_stop_fn stop;
	gpub_configure_fn configure;
	gpub_interval_ms_fn interval_ms;
	gpub_pass_begin_fn pass_begin;
	gpub_pass_observe_fn pass_observe;
	gpub_pass_end_fn pass_end;
	gpub_rank_fn rank;
	gpub_fill_fn fill;
	gpub_observe_fn observe;
	gpub_standings_fn standings;
	gpub_shares_fn shares;
	gpub_slurm_shares_fn slurm_shares;
	gpub_candidates_fn candidates;
	gpub_preempted_fn preempted;
	gpub_drains_fn drains;
	gpub_may_leave_fn may_leave;
	gpub_left_fn left;
	gpub_submit_fn submit;
	gpub_wanted_fn wanted; /* NULL if the library has none */
};

/* Set from engine_start to engine_stop; NULL outside slurmctld. */
extern const struct gpub_engine *engine;

int engine_start(void);
void engine_stop(void);

/* settings.c: slurm.conf's priority settings, in the bridge's form. */
struct settings {
	struct gpub_weights weights;
	double *tres;            /* what weights.tres points to */
	int gpu_tres;            /* index of gres/gpu in slurmctld's TRES, -1 if it isn't accounted for */
	struct settings *retired; /* the settings before these */
};

/* The settings in force, NULL before the first. A reader may keep the pointer:
 * settings_load retires the old ones, and nothing frees them. That would never
 * be safe: threads of slurmctld are about while it unloads the plugin. */
const struct settings *settings_now(void);
/* Reads them anew and hands them to the library; in force only once that has
 * taken them. Needs the configuration read lock, but at start. */
int settings_load(void);
/* Was the last attempt in vain? Then they are to be loaded again. */
bool settings_stale(void);
/* Does that, if they are. Takes the lock. */
void settings_retry(void);

/* Is this failure to be told? Once, and again only after it has worked. */
static inline bool first_failure(bool *told, bool failing)
{
	bool first = failing && !*told;

	if (*told != failing) /* where all goes well, nobody waits for this line */
		*told = failing;
	return first;
}

/* The value of NAME= in PriorityParameters, malloc'ed, or NULL. */
char *priority_parameter(const char *name);

/* layout.c: do Slurm's records lie where our headers say? */
bool layout_conf_ok(void);
/* The jobs that slurmctld has recovered, before it schedules any. */
bool layout_jobs_ok(void);
/* Checked for the first jobs that are seen; afterwards a flag is read. */
bool layout_job_ok(const job_record_t *job);

/* usernames.c: names of uids, asked for by a thread of its own. */
int usernames_start(void);
/* Waits for nobody, whatever the thread waits for. Names stay. */
void usernames_stop(void);
/* Never waits: NULL if the uid has no name, or nobody has answered yet. It is
 * never freed. */
const char *username(uint32_t uid);
/* Has any name become known since the last call? Tells the log of a directory
 * that doesn't answer, so it is to be called every second or so. */
bool usernames_news(void);

/* gpus.c */
/* These two fill in gpus, gpu_parts and gpu_type. */
void gpus_allocated(const job_record_t *job, struct gpub_job *out);
void gpus_requested(const job_record_t *job, int gpu_tres, struct gpub_job *out);
void gpus_of_cluster(struct gpub_cluster *cluster);

/* arena.c: memory of one pass, given back all at once. */
struct arena {
	struct arena_chunk *first, *current;
};
void *arena_alloc(struct arena *arena, size_t size); /* zeroed; NULL if there is none */
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

/* jobs.c: a walk over all jobs. */
struct jobs_walk {
	int (*see)(void *job, void *arg); /* below 0 ends the walk */
	/* What see will look at: the processor is told to fetch it. */
	void (*fetch)(const job_record_t *job);
	/* What it will look at that the record points to, or NULL. */
	void (*fetch_more)(const job_record_t *job);
};
/* Needs the job read lock. False if see ended it. No job is changed, created or
 * purged meanwhile. */
bool jobs_for_each(const struct jobs_walk *how, void *arg);

/* terms.c: what a job is promised once it runs. */
/* Seconds of minimum runtime that the job asks for, -1 if it says nothing. */
int64_t min_runtime_asked(const job_record_t *job, time_t now);
/* Seconds; 0 if there is no limit. Needs the partition read lock. */
int64_t time_limit_s(const job_record_t *job);

/* flatten.c: from a job record to the bridge. Needs the job, node and
 * partition read locks and the association manager's assoc and qos ones. */
void flatten_sighting(const struct settings *settings, const job_record_t *job, time_t now, struct gpub_job *out);
/* For jobs_walk. */
void fetch_sighting(const job_record_t *job);
void fetch_sighting_more(const job_record_t *job);

/* inputs.c: what the priority of a job depends on. Needs the same locks. */
/* Is this job's priority ours to set? */
bool job_wants_priority(const job_record_t *job, uint32_t flags);
/* min_runtime is min_runtime_asked of the job. Takes memory from the arena; false
 * if there is none. */
bool read_inputs(const struct settings *settings, struct arena *arena, const job_record_t *job, int64_t min_runtime,
		 time_t now, struct score_job *out);
/* A number that tells whose the job is, and its QOS, nice and site values and
 * partitions, in their order: it changes with any of these. The job lock does. */
uint64_t inputs_print(const job_record_t *job);
void fetch_inputs(const job_record_t *job);
void fetch_inputs_more(const job_record_t *job);
/* What stored_print looks at. */
void fetch_factors(const job_record_t *job);
double part_factor(const part_record_t *part, uint32_t flags);
void tres_factors(const job_record_t *job, const part_record_t *part, const struct settings *settings,
		  double *factors);

/* factors.c: from a score back to a job record. Needs the job write lock. */
/* Room for the TRES columns. False if memory ran out. */
bool prepare_score(const struct settings *settings, struct arena *arena, struct score *out);
/* Fills prio_factors, and priority_array if it is given what was read of the job;
 * the caller sets the priority. */
void store_score(job_record_t *job, const struct score_job *in, const struct score *out,
		 const struct settings *settings);
/* A number that tells what is stored from what would be; 0 if the former
 * can't be told. The read lock does for stored_print. */
uint64_t stored_print(const job_record_t *job, const struct settings *settings);
uint64_t score_print(const struct score_job *in, const struct score *out, const struct settings *settings);
void clear_factors(job_record_t *job);
bool parts_sorted(const job_record_t *job);

/* table.c: the numbers priorities are made of, as of the last pass. */
struct table {
	struct gpub_table numbers;       /* weights.tres is that of the settings */
	const struct settings *settings; /* that they were made by */
	struct owners owners;
	struct score_owner unknown;      /* where who isn't known stands */
	struct table *replaced;          /* before this one, which is by now too */
};
/* The one in force, NULL before the first. Needs the job write lock, for as
 * long as it is used. */
const struct table *table_now(void);
/* Tells the processor what the priority of a job of this association will need. */
void table_fetch(uint32_t assoc_id);
/* Why priorities stay as they were, for the log. */
#define OUT_OF_MEMORY "out of memory"
#define LIBRARY_FAILED "libgpubudget.so failed, as it said above"
/* NULL if there is none, and then why; nothing is said if it is only not yet
 * there. */
struct table *table_make(const struct gpub_engine *e, const struct settings *settings,
			 const struct gpub_extremes *extremes, const char **why);
/* Takes over the table, or NULL. Only who is the pass may call this. */
void table_replace(struct table *by);
/* Frees those that were replaced. Needs the job lock, to read at least. */
void table_sweep(void);
void table_free(struct table *table);
/* Where an owner of the table's stands. */
const struct score_owner *table_owner(const struct table *table, uint32_t number);
/* Where any job's owner does. */
const struct score_owner *table_owner_of(const struct table *table, const job_record_t *job);

/* set.c: one job's priority, at once. Needs the job write lock. Fills the
 * record, returns the priority. */
uint32_t set_priority(job_record_t *job);
/* Has the job, or perhaps another, been set since set_forget? Both need the job
 * lock. */
bool set_lately(uint32_t job_id);
void set_forget(void);

/* remark.c: a line about the job for its owner. Needs the job write lock. */
void job_remark(job_record_t *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* notice.c: what a job is told before it is requeued. */
/* For how long all of a job goes on after it was told, 0 if it isn't to be told. Needs
 * the association manager's lock of QOSs, to read. */
uint32_t notice_due(job_record_t *job);
/* Tells it. Needs the job write lock, those of nodes and the configuration. */
void notice_give(job_record_t *job);

/* drain.c: requeues jobs on nodes that are being drained, if the policy says so
 * and nothing protects them. Takes its locks. */
void drain_pass(int64_t now_ms);

/* pass.c: the thread that recalculates. */
int pass_start(void);
void pass_stop(void);
/* A pass now; one within a second. */
void pass_wake(void);
void pass_want(void);

/* limits.c: usage for GrpTRESMins, GrpWall and GrpTRESRunMins. */
void limits_start(void);
/* One stretch that usage is added up in, once every PriorityCalcPeriod, in the
 * course of a look at all jobs. */
struct limits_period {
	time_t now;
	bool waiting; /* does any job wait that a limit may block? */
};
/* Need the job read lock and the association manager's: assoc and qos to write,
 * tres to read. Without slurmdbd, or as slurmctld ends, there is nothing to
 * count: false. */
bool limits_begin(struct limits_period *period);
void limits_count(struct limits_period *period, job_record_t *job); /* each job, once */
void limits_end(const struct limits_period *period);
/* When these have been given back. Takes its own. */
void limits_tell(const struct limits_period *period);
/* After a reconfigure; cleared if slurmctld has counted run seconds anew. */
void limits_reconfigure(bool cleared);
/* A job gives back its nodes or changes size. Needs the job write lock. */
void limits_job_end(job_record_t *job);

/* standings.c: what sshare reads. */
/* All associations, and the places of these and of the table's owners. False if
 * it can't be done, and then why. */
bool standings_update(const struct gpub_engine *e, struct table *table, const char **why);
/* Gives back what memory standings_update keeps. */
void standings_free(void);
/* One association; the caller holds the association manager's assoc lock. */
void standings_update_one(slurmdb_assoc_rec_t *assoc);

/* slurmshares.c: the same, by Slurm's own shares. */
/* Asks the library whether priorities go by them, before a look. */
void slurm_shares_ask(void);
/* What slurm_shares_ask was told last. */
bool slurm_shares_in_force(void);
/* If they do: brings all associations up to date, by what is used by now. Takes
 * its locks. */
void slurm_shares_update(void);

/* listing.c: what sprio reads. */
gpub_list factors_list(gpub_list job_ids, gpub_list uids, const char *partitions, uid_t uid);

#endif
