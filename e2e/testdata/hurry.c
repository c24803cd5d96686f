/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * hurry.c: to be preloaded into slurmctld by tests that can't wait. slurm.conf
 * has PriorityCalcPeriod in minutes; this sets it, for whichever plugin reads
 * it, to the seconds that the file named by HURRY holds.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config.h"

#include <slurm/slurm.h>

#include "src/common/read_config.h"

#pragma weak slurm_conf

static unsigned int seconds_in(const char *path)
{
	FILE *file = fopen(path, "r");
	unsigned int seconds = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%u", &seconds) != 1)
		seconds = 0;
	fclose(file);
	return seconds;
}

/* slurmctld sets it anew whenever it reads slurm.conf. */
static void *hurry(void *path)
{
	unsigned int seconds = 0;

	for (unsigned int i = 0;; i++) {
		if (i % 50 == 0)
			seconds = seconds_in(path);
		if (seconds && &slurm_conf && slurm_conf.priority_calc_period)
			slurm_conf.priority_calc_period = seconds;
		usleep(2000);
	}
	return NULL;
}

/* slurmctld waits for signals in a thread of its own: not in this one. */
__attribute__((constructor)) static void start(void)
{
	char *path = getenv("HURRY");
	sigset_t all, before;
	pthread_t thread;

	if (!path)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_create(&thread, NULL, hurry, path);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
