/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * bridge.h: everything that crosses between the Slurm shims (C, one build per
 * Slurm version) and libgpubudget.so (Go). Plain values only: no Slurm type,
 * no Go type. Either side may change freely behind it.
 *
 * Rules of the bridge
 *  - The caller owns all memory. Go copies what it wants to keep before it
 *    returns and keeps no pointer.
 *  - A NULL string means "Slurm has none".
 *  - No call waits for I/O. Every call recovers its own panics; it then leaves
 *    its outputs as they were and returns GPUB_PANIC, and the shim keeps the
 *    last good value.
 *  - Times are Unix seconds as Slurm keeps them, 0 where Slurm has none.
 */
#ifndef GPUBUDGET_BRIDGE_H
#define GPUBUDGET_BRIDGE_H

#include <stdint.h>

/* Raised whenever a struct or a call below changes: both sides compare it at
 * start, so that a stale library is refused and not misread. */
#define GPUB_ABI 10

enum gpub_rc { GPUB_OK = 0, GPUB_ERROR = -1, GPUB_PANIC = -2, GPUB_ABI_MISMATCH = -3 };

enum gpub_log_level { GPUB_LOG_ERROR = 0, GPUB_LOG_INFO, GPUB_LOG_VERBOSE, GPUB_LOG_DEBUG };

typedef void (*gpub_log_fn)(int level, const char *message);

/* What the host process is: given once, at start. */
struct gpub_host {
	uint32_t abi;              /* GPUB_ABI */
	const char *cluster;       /* ClusterName */
	const char *slurm_version; /* "22.05.8" */
	const char *conf_path;     /* gpubudget.conf */
	const char *state_dir;     /* StateSaveLocation */
	gpub_log_fn log;           /* into slurmctld.log; callable from any thread */
};

/* slurm.conf's PriorityFlags, in bits of our own. */
enum gpub_priority_flag {
	GPUB_FLAG_ACCRUE_ALWAYS = 1 << 0,
	GPUB_FLAG_CALCULATE_RUNNING = 1 << 1,
	GPUB_FLAG_DEPTH_OBLIVIOUS = 1 << 2,
	GPUB_FLAG_FAIR_TREE = 1 << 3,
	GPUB_FLAG_INCR_ONLY = 1 << 4,
	GPUB_FLAG_MAX_TRES = 1 << 5,
	GPUB_FLAG_MAX_TRES_GRES = 1 << 6,
	GPUB_FLAG_NO_NORMAL_ASSOC = 1 << 7,
	GPUB_FLAG_NO_NORMAL_PART = 1 << 8,
	GPUB_FLAG_NO_NORMAL_QOS = 1 << 9,
	GPUB_FLAG_NO_NORMAL_TRES = 1 << 10,
	GPUB_FLAG_SIZE_RELATIVE = 1 << 11,
};

/* slurm.conf's priority settings: at start and after each reconfigure. */
struct gpub_weights {
	uint64_t generation;   /* which settings these are: a gpub_table says by which it was made */
	uint32_t age, assoc, fairshare, job_size, partition, qos;
	uint32_t max_age;      /* seconds */
	uint32_t flags;        /* gpub_priority_flag */
	uint32_t favor_small;  /* 0 or 1 */
	uint32_t damp_factor;
	uint32_t tres_count;   /* length of tres */
	const double *tres;    /* PriorityWeightTRES in slurmctld's TRES order; NULL if unset */
};

/* What the cluster is now: given with each pass. */
struct gpub_cluster {
	uint32_t nodes;            /* node records */
	uint32_t cpus;             /* cluster_cpus */
	uint64_t gpus;             /* GPUs on nodes that can be scheduled (not DOWN, DRAIN, FUTURE, POWERED_DOWN) */
	uint64_t gpus_configured;  /* GPUs on all nodes */
	uint32_t qos_priority_max; /* highest QOS priority */
	const char *gpu_types;     /* how many of gpus are of each type, as "a100:16,h100:8"; those
				    * without one as ":4"; NULL if none has any */
};

/* Slurm's base job states, in numbers of our own. */
enum gpub_job_state {
	GPUB_PENDING = 0,
	GPUB_RUNNING,
	GPUB_SUSPENDED,
	GPUB_COMPLETE,
	GPUB_CANCELLED,
	GPUB_FAILED,
	GPUB_TIMEOUT,
	GPUB_NODE_FAIL,
	GPUB_PREEMPTED,
	GPUB_BOOT_FAIL,
	GPUB_DEADLINE,
	GPUB_OUT_OF_MEMORY,
};

enum gpub_job_flag {
	GPUB_JOB_HELD = 1 << 0,         /* priority 0 */
	GPUB_JOB_DIRECT_PRIO = 1 << 1,  /* an operator set the priority */
	GPUB_JOB_COMPLETING = 1 << 2,
	GPUB_JOB_CONFIGURING = 1 << 3,  /* allocated, nodes powering up or prolog running */
	GPUB_JOB_REQUEUED = 1 << 4,     /* this run has ended and the job will pend again. Its state is
					 * then GPUB_PENDING, start and end are the run's */
	GPUB_JOB_DEMANDS = 1 << 5,      /* pending, not held, begin time passed, no unmet dependency */
	GPUB_JOB_RESIZING = 1 << 6,
	GPUB_JOB_REQUEUABLE = 1 << 7,   /* may be requeued; not told of a job that pends */
};

/* What is seen of a job. */
struct gpub_job {
	uint32_t job_id;
	uint32_t array_job_id;   /* 0 if no array */
	uint32_t array_task_id;  /* UINT32_MAX if none */
	uint32_t array_tasks;    /* pending tasks this record stands for, 1 at least */
	uint32_t het_job_id;     /* 0 if no het job */
	uint32_t restart;        /* of this run: 0 for the first, one more after each requeue */
	uint32_t user_id;
	uint32_t assoc_id;       /* 0 if no association */
	uint32_t state;          /* gpub_job_state */
	uint32_t flags;          /* gpub_job_flag */

	const char *user;        /* name; NULL if the uid has none, or it isn't known yet */
	const char *account;     /* as submitted or as slurmdbd resolved it; may be NULL without slurmdbd */
	const char *partition;   /* partition it runs in, or first it pends in */
	const char *qos;
	const char *nodes;       /* allocated node list; NULL while pending */
	const char *gpu_type;    /* of the allocation, or asked for; NULL if any. Of several types
				  * a list of how many of each, as "a100:2,h100:0.5" */

	int64_t submit;
	int64_t begin;           /* eligible time */
	int64_t start;           /* of the run; 0 while it pends and for a job that never ran */
	int64_t end;             /* actual once it has ended; for a running job Slurm's expectation;
				  * for a job that pends again, when its last run ended if Slurm
				  * still knows, else 0 */
	int64_t resize;          /* last size change */
	int64_t suspend;         /* last suspend or resume */
	int64_t suspended;       /* seconds suspended in this run so far; Slurm forgets them when it
				  * requeues a job, so an ended run keeps the most ever seen */
	uint64_t gpus;           /* whole ones, allocated or asked for (one array task's) */
	uint64_t gpu_parts;      /* and parts of GPUs, in millionths: gres/shard and gres/mps */
	uint32_t demand_tasks;   /* of array_tasks, those that the array's own %N limit lets run now */

	/* what the priorities of others depend on while it pends, and who yields to
	 * whom when it runs */
	uint32_t qos_priority;   /* raw */
	int64_t nice;            /* without NICE_OFFSET */
	int64_t min_runtime;     /* seconds that it asks for; -1 if it says nothing */
	int64_t time_limit;      /* seconds; 0 if there is none */
};

/*
 * The priorities of a pass as plain numbers, from which the shim works them
 * out itself (score.h): those of jobs that are submitted, too, on threads that
 * have never met the Go runtime. What it knows of each owner is in gpub_place.
 */

/* Of jobs that pend: the lowest and the highest values. */
struct gpub_extremes {
	uint32_t any;            /* 0 if there are none */
	uint32_t tres_count;
	int64_t site_low, site_high; /* without NICE_OFFSET */
	double assoc, partition; /* the highest factors */
	const double *tres;      /* the highest factors; NULL if no weights */
};

/* A part of a function that goes up by steps: values from this one to the
 * next one's from have this amount. */
struct gpub_rise {
	int64_t from, amount;
};

/* What the accounts of one place have in common. Jobs that ask to be unallocated
 * stand elsewhere, unless all jobs here are. */
struct gpub_slot {
	int64_t qos_unit;        /* what QOS amounts are multiplied by */
	uint32_t nice_first;     /* of gpub_table.nice */
	uint32_t nice_count;
	int64_t unallocated_base; /* of such a job, to be added to the QOS column; FAIRSHARE is 0 */
	uint32_t unallocated;    /* its slot; this one if it stands where others do */
};

/* Which jobs are unallocated by the minimum runtime they ask for. */
enum gpub_unallocated {
	GPUB_UNALLOCATED_ZERO = 1 << 0,   /* those that ask for 0 */
	GPUB_UNALLOCATED_UNSAID = 1 << 1, /* those that say nothing */
	GPUB_UNALLOCATED_ASKED = 1 << 2,  /* those that ask for some */
};

/* Where an owner of jobs stands. */
struct gpub_place {
	double fairshare;        /* the column of that name */
	uint32_t slot;           /* of gpub_table.slots */
};

struct gpub_table {
	struct gpub_weights weights; /* in force; tres isn't touched */
	uint32_t nodes, cpus;    /* of the cluster */
	uint32_t packed;         /* 1: digits; 0: the weighted sum, without slots */
	uint32_t unallocated;    /* gpub_unallocated */
	uint32_t qos_count, nice_count, slot_count;
	int64_t rest_steps;      /* the last digit is below this */
	double rest_scale;       /* steps for each point of the weighted sum */
	int64_t site_low;
	double band;             /* of the weighted sum by budgets: unallocated jobs have at most this,
				  * those of owners whose place isn't 0 more. Else 0 */
	struct gpub_place unknown; /* of an account that nobody knows */
	struct gpub_rise *qos, *nice; /* the first from is INT64_MIN, or below all values */
	struct gpub_slot *slots;
};

/* One association, for sshare, the REST API, QOS UsageThreshold and the
 * priorities of its jobs; or, with id 0, an owner of jobs without any. */
struct gpub_assoc {
	uint32_t id;
	uint32_t user_id;    /* of an owner without an association */
	const char *account; /* as in gpub_job */
	const char *user;    /* NULL for an account's own association, and as in gpub_job */
	/* out */
	struct gpub_place place; /* as of the table that was made last */
	uint32_t known;      /* 1 if the ledger knows it; the rest is set only then */
	double level_fs;     /* DBL_MAX for infinity: no infinity leaves the bridge */
	double factor;       /* (0, 1] for users, 0 for accounts */
	double shares_norm;  /* share of the cluster */
	double usage_norm;   /* share of the cluster's charged time in the window */
	double usage_seconds;/* charged GPU-seconds in the window */
};

/* Whose shares priorities go by, as gpubudget.conf says. */
enum gpub_shares { GPUB_SHARES_LEDGER = 0, GPUB_SHARES_SLURM };

enum gpub_slurm_assoc_flag {
	GPUB_ASSOC_USER = 1 << 0,          /* a user's, not an account's own */
	GPUB_ASSOC_PARENT_SHARES = 1 << 1, /* Fairshare=parent */
};

/* One association with the shares that slurmdbd gives it, for
 * GPUB_SHARES_SLURM. They come as a tree: root first, all others behind their
 * parents, siblings in Slurm's order. */
struct gpub_slurm_assoc {
	uint32_t id;
	uint32_t parent;       /* index of the nearest above with shares of its own; of root, 0 */
	uint32_t shares;       /* Fairshare */
	uint32_t flags;        /* gpub_slurm_assoc_flag */
	double usage;          /* RawUsage */
	double usage_rest;     /* what a double leaves out of it */
	/* out */
	double shares_norm, usage_norm, usage_efctv;
	double level_fs;       /* DBL_MAX for infinity; 0 unless FAIR_TREE */
	double fs_factor;      /* of users, with FAIR_TREE; else 0 */
};

/*
 * Preemption. A request is a job that pends and is being placed, an occupant a
 * job that runs on nodes which the request may use. The shim tells what each
 * occupant holds of these nodes, and how much of them is free; the library
 * answers which occupants the request may evict, and in which order.
 */

/* An amount of each resource of a node. */
struct gpub_room {
	int64_t gpus, cpus, memory; /* memory in MB, 0 everywhere if it isn't accounted for */
};

struct gpub_request {
	struct gpub_job job;
	uint32_t nodes;            /* that it needs at least */
	uint32_t max_nodes;        /* that it can be spread over; 0: no limit */
	struct gpub_room per_node; /* that it needs on each; no GPUs: only their sum counts */
};

struct gpub_occupant {
	uint32_t job_id;
	uint32_t het_job_id;   /* 0 if no het job, whose components are evicted together */
	int64_t start;         /* of the run: the later of start and last resize */
	int64_t nice;          /* without NICE_OFFSET */
	uint64_t gpus;
	uint32_t qos_priority; /* raw */
	/* out */
	uint32_t order;        /* of eviction, from 1; 0: it keeps its GPUs */
};

/* What an occupant holds of a node. Both are indices. */
struct gpub_piece {
	uint32_t occupant, node;
	struct gpub_room held;
};

struct gpub_placing {
	const struct gpub_request *request;
	const struct gpub_room *free; /* of each node, less than 0 where more is held than there is */
	const struct gpub_piece *pieces;
	struct gpub_occupant *occupants;
	uint32_t node_count, piece_count, occupant_count;
};

/* Room for a message to a user, the end included. */
#define GPUB_MESSAGE 512

enum gpub_verdict {
	GPUB_ACCEPTED = 0,
	GPUB_CAPPED,  /* it asks for more than there is: granted says how much there is */
	GPUB_REFUSED, /* its account has nothing left, and the policy says so */
};

/* A job that is submitted, or changes hands. */
struct gpub_submission {
	const char *account; /* NULL: the user's first by name */
	const char *user;    /* NULL if nobody knows */
	uint32_t user_id;
	uint32_t gpus;       /* 1 if it asks for any */
	int64_t min_runtime; /* as in gpub_job */
	int64_t time_limit;  /* as in gpub_job */
	/* out */
	uint32_t verdict;    /* gpub_verdict */
	int64_t granted;     /* seconds of minimum runtime, if GPUB_CAPPED */
	char message[GPUB_MESSAGE]; /* to the user; empty if there is none */
};

/*
 * The calls, as libgpubudget.so exports them: gpub_start is of type
 * gpub_start_fn and so on. Types only, because Go declares the functions
 * itself. All return a gpub_rc unless they say otherwise.
 *
 * A pass is begin, observe (every job in the list, in batches), end. If it
 * sets priorities rank follows, then fill, then standings: none of these needs
 * the jobs any more. A pass without them only looks: it is how short jobs are
 * seen when passes are far apart.
 */
typedef int (*gpub_start_fn)(const struct gpub_host *host);
typedef void (*gpub_stop_fn)(void); /* back within 2 s */
typedef int (*gpub_configure_fn)(const struct gpub_weights *weights);
typedef int (*gpub_interval_ms_fn)(void); /* between passes; 0 = PriorityCalcPeriod */
typedef int (*gpub_pass_begin_fn)(int64_t now_ms, const struct gpub_cluster *cluster);
typedef int (*gpub_pass_observe_fn)(const struct gpub_job *jobs, uint32_t count);
typedef int (*gpub_pass_end_fn)(void);
/* Ranks everybody as of the pass that has ended, and says all of the table
 * but the arrays, whose lengths it gives. */
typedef int (*gpub_rank_fn)(const struct gpub_extremes *extremes, struct gpub_table *table);
/* The arrays of that table, for which the caller has made room. */
typedef int (*gpub_fill_fn)(struct gpub_table *table);
typedef int (*gpub_observe_fn)(const struct gpub_job *job, int64_t now_ms); /* one more sighting */
typedef int (*gpub_standings_fn)(struct gpub_assoc *assocs, uint32_t count);

/* A gpub_shares, in force until the next call: asked before each pass that
 * prioritizes. With GPUB_SHARES_SLURM it is followed by gpub_slurm_shares, and
 * gpub_standings gives associations the places that follow from the factors
 * worked out then, and nothing else. */
typedef int (*gpub_shares_fn)(void);
typedef int (*gpub_slurm_shares_fn)(struct gpub_slurm_assoc *assocs, uint32_t count);

/* Decides the order of all occupants. If it fails nobody is evicted. */
typedef int (*gpub_candidates_fn)(const struct gpub_placing *placing, int64_t now_ms);
/* Slurm evicts a job so that another one can start. requeues is 1 if it will pend again,
 * 0 if it is cancelled. */
typedef int (*gpub_preempted_fn)(uint32_t victim, uint32_t request, uint32_t requeues, int64_t now_ms);

/* Nodes that are being drained. 1 if jobs are to make room for their repair. */
typedef int (*gpub_drains_fn)(void);
/* 1 if nothing protects the job, of a het job the leader and so all of it, so
 * that it may be requeued now; 0 if it stays. */
typedef int (*gpub_may_leave_fn)(uint32_t job_id, uint32_t het_job_id, int64_t now_ms);
/* It is, from this node. */
typedef int (*gpub_left_fn)(uint32_t job_id, const char *node, int64_t now_ms);
/* By how everybody stood in the last pass. Waits for nothing at all. */
typedef int (*gpub_submit_fn)(struct gpub_submission *submission);

/* Optional: 1 if something has changed since the last pass began that should
 * not wait for the next one (a refresh, say), else 0. Asked once a second. */
typedef int (*gpub_wanted_fn)(void);

#endif
