/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * site_factor_gpubtest.c: a site_factor plugin for tests. New jobs get 1000,
 * and all that pend get what the file named by PrioritySiteFactorParameters
 * says plus their number, whenever Slurm asks for an update.
 */
#include <stdio.h>

#include "slurm_compat.h"

const char plugin_name[] = "site_factor plugin of a test";
const char plugin_type[] = "site_factor/gpubtest";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

static long from_file;

int init(void)
{
	return SLURM_SUCCESS;
}

int fini(void)
{
	return SLURM_SUCCESS;
}

void site_factor_p_reconfig(void)
{
}

void site_factor_p_set(job_record_t *job)
{
	job->site_factor = NICE_OFFSET + 1000;
}

static int update(void *x, void *arg)
{
	job_record_t *job = x;

	(void)arg;
	if (IS_JOB_PENDING(job))
		job->site_factor = NICE_OFFSET + from_file + job->job_id;
	return SLURM_SUCCESS;
}

void site_factor_p_update(void)
{
	FILE *file = slurm_conf.site_factor_params ? fopen(slurm_conf.site_factor_params, "r") : NULL;
	int got;

	if (!file)
		return;
	got = fscanf(file, "%ld", &from_file);
	fclose(file);
	if (got == 1 && job_list)
		list_for_each(job_list, update, NULL);
}
