/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * spank_gpubudget.c: the option --min-runtime of sbatch, srun and salloc.
 *
 * It tells slurmctld the seconds in the job's SPANK environment, where they are
 * kept across restarts and requeues. Built with Slurm's public header only.
 *
 * plugstack.conf: required spank_gpubudget.so [cap=TIME]
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include <errno.h>
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
#define FORWARDED "_SLURM_SPANK_OPTION_gpubudget_min_runtime" /* Slurm's name for the option in a job */
#define PRESET "SLURM_SPANK_" FORWARDED			       /* and for what it is where nobody says it */
#define DEFAULT_CAP (8 * 3600)
#define FAILED (-1) /* Slurm takes an error of a plugin for one if it is negative */

static uint64_t cap = DEFAULT_CAP;
static uint64_t wanted; /* seconds */
static bool asked;

/*
 * Where the job is described; elsewhere there is nothing to do. scrontab describes
 * jobs, but keeps nothing that a plugin says of one: it would take the option and
 * forget it, and has to refuse it, as one that it doesn't know.
 */
static bool submitting(void)
{
	spank_context_t context = spank_context();

	if (!strcmp(program_invocation_short_name, "scrontab"))
		return false;
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
	const char *variable = getenv(VARIABLE);
	bool preset = variable && *variable && !strcmp(variable, text);

	(void)value;
	return remote ? 0 : take(preset ? VARIABLE : "--min-runtime", text);
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

/*
 * Slurm takes options from the script, then from its own variables, then from the
 * command line, for each component of a het job anew. Ours is handed to it as one
 * of those, so that it comes in the same place. What else that says is the option
 * of the job in which this runs, and not meant for another; steps have none.
 */
static int preset_option(void)
{
	const char *variable = getenv(VARIABLE);
	bool step = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");

	if (step || !variable || !*variable)
		return unsetenv(PRESET);
	return setenv(PRESET, variable, 1);
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	spank_context_t context = spank_context();

	if (submitting() && read_arguments(count, arguments))
		return FAILED;
	if (submitting() && preset_option()) {
		slurm_error("gpubudget: %s can't be handed to Slurm: %m", VARIABLE);
		return FAILED;
	}
	/* Steps are told the options of their job and must know them. */
	if (submitting() || context == S_CTX_REMOTE)
		return spank_option_register(spank, &min_runtime) ? FAILED : 0;
	return 0;
}

/* Once for each component of a het job, after its options. What a component does not say it has from the one before. */
int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	char seconds[24];

	(void)count;
	(void)arguments;
	if (!submitting() || !asked)
		return 0;
	/* As part of the job Slurm would make it the variable that presets the next component's, over its script. */
	if (spank_job_control_unsetenv(spank, FORWARDED)) {
		slurm_error("gpubudget: the option of a component can't be kept from the next");
		return FAILED;
	}
	snprintf(seconds, sizeof(seconds), "%" PRIu64, wanted);
	if (spank_job_control_setenv(spank, VARIABLE, seconds, 1)) {
		slurm_error("gpubudget: the minimum runtime can't be told to slurmctld");
		return FAILED;
	}
	return 0;
}
