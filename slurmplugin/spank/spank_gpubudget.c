/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * spank_gpubudget.c: the option --min-runtime of sbatch, srun and salloc.
 *
 * It tells slurmctld the seconds in the job's SPANK environment, where they are
 * kept across restarts and requeues. Built with Slurm's public header only.
 *
 * plugstack.conf: required spank_gpubudget.so [cap=TIME]
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <slurm/spank.h>

#include "minruntime.h"

SPANK_PLUGIN(gpubudget, 1)

#define VARIABLE "GPUBUDGET_MIN_RUNTIME"
#define DEFAULT_CAP (8 * 3600)
#define FAILED (-1) /* Slurm takes an error of a plugin for one if it is negative */

static uint64_t cap = DEFAULT_CAP;
static uint64_t wanted; /* seconds */
static bool asked;

/* Where the job is described; elsewhere there is nothing to do. */
static bool submitting(void)
{
	spank_context_t context = spank_context();

	return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

/* Takes a time from the command line, the script or the environment. */
static int take(const char *source, const char *text)
{
	char at_most[MINRUNTIME_TEXT];
	uint64_t seconds;

	if (!minruntime_parse(text, &seconds)) {
		slurm_error("%s=%s: not a time: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]], "
			    "or a number with s, m, h or d; 0 runs unallocated",
			    source, text);
		return FAILED;
	}
	if (seconds > cap) {
		slurm_error("%s=%s: the longest minimum runtime is %s here; jobs may run longer, but not protected", source, text,
			    minruntime_text(cap, at_most));
		return FAILED;
	}
	wanted = seconds;
	asked = true;
	return 0;
}

static int take_option(int value, const char *text, int remote)
{
	(void)value;
	return remote ? 0 : take("--min-runtime", text);
}

static struct spank_option min_runtime = {
	.name = "min-runtime",
	.arginfo = "time",
	.usage = "gpubudget: time for which the job is not preempted once it runs; 0 runs unallocated, "
		 "charged to no budget (default: what the account's policy says)",
	.has_arg = 1,
	.cb = take_option,
};

static int read_arguments(int count, char **arguments)
{
	for (int i = 0; i < count; i++) {
		if (strncasecmp(arguments[i], "cap=", 4) || !minruntime_parse(arguments[i] + 4, &cap) || !cap) {
			slurm_error("plugstack.conf: spank_gpubudget.so: \"%s\": cap=TIME is all there is to say", arguments[i]);
			return FAILED;
		}
	}
	return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	spank_context_t context = spank_context();

	if (submitting() && read_arguments(count, arguments))
		return FAILED;
	/* Steps are told the options of their job and must know them. */
	if (submitting() || context == S_CTX_REMOTE)
		return spank_option_register(spank, &min_runtime) ? FAILED : 0;
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	const char *variable = getenv(VARIABLE);
	char seconds[24];

	(void)count;
	(void)arguments;
	if (!submitting())
		return 0;
	if (!asked && variable && *variable && take(VARIABLE, variable))
		return FAILED;
	if (!asked)
		return 0;
	snprintf(seconds, sizeof(seconds), "%" PRIu64, wanted);
	if (spank_job_control_setenv(spank, VARIABLE, seconds, 1)) {
		slurm_error("gpubudget: the minimum runtime can't be told to slurmctld");
		return FAILED;
	}
	return 0;
}
