/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the simulated driver answers from: the state file, and time. */
#ifndef SIMNVML_STATE_H
#define SIMNVML_STATE_H

#include <limits.h>
#include <stdbool.h>

#define MAX_GPUS 64
#define MAX_INSTANCES 512
#define MAX_PROCESSES 4096
#define MAX_XIDS 256
#define MAX_FAULTS 64
#define MAX_STEPS 256
#define NAME 96
#define WORKING 512
#define NONE 0xFFFFFFFFu
#define ABSENT ULLONG_MAX /* a number the file does not give: not supported */

/* A utilisation over time: percent[i] from at[i] on, in µs since 1970. */
struct load {
	int n;
	bool ramp; /* straight lines between the steps */
	long long at[MAX_STEPS];
	double percent[MAX_STEPS];
};

struct gpu {
	char uuid[NAME], pci[32], name[NAME];
	unsigned long long minor, memory, reserved, used, power, mig, mig_pending, slices;
	unsigned long long ring, period, sampled_until, sample_start;
	unsigned long long ecc[4]; /* corrected and uncorrected since the boot, and over the lifetime */
	struct load load;
	char working[WORKING]; /* a folder: the load holds as long as there is a file in it; empty: always */
	bool gpm, lost, no_events, garbage;
};

struct instance {
	int gpu;
	char uuid[NAME];
	unsigned long long gi, ci, slices, ci_slices, memory, used;
	struct load load;
};

struct process {
	int gpu, instance; /* instance: -1 if of the whole GPU */
	unsigned long long pid, memory;
	char kind; /* c, g, m */
};

struct xid {
	unsigned long long number, code, gi, ci;
	char gpu[NAME];
};

struct fault {
	int gpu; /* -1: of every GPU, and of calls that concern none */
	char call[NAME];
	int code; /* -1: does not return */
};

struct state {
	char driver[NAME];
	unsigned long long now; /* µs; ABSENT: the machine's clock */
	int gpus, instances, processes, xids, faults;
	struct gpu gpu[MAX_GPUS];
	struct instance instance[MAX_INSTANCES];
	struct process process[MAX_PROCESSES];
	struct xid xid[MAX_XIDS];
	struct fault fault[MAX_FAULTS];
};

/* The state that was read last. */
extern struct state *state;

/* Begins with the state file named; refresh() reads it again if it is another
 * than the one read last. Both return -1 if it can't be read. What is wrong with
 * it goes to stderr, once, and what was there before stays. */
int open_state(const char *path);
int refresh(void);

/* The time in µs since 1970, the state's or the machine's. */
long long now_us(void);

/* The load summed up from its first step to t, in percent x µs; and its mean. */
double area(const struct load *l, long long t);
double mean(const struct load *l, long long from, long long until);

/* Since when, µs since 1970, a GPU has been at work, or not, by its folder; one
 * without a folder has been at work all the time. */
struct work {
	bool now;
	long long since;
};
struct work work_of(const struct gpu *g);
/* Whether it was at work at t, as far as the folder tells. */
bool worked(const struct work *w, long long t);

#endif
