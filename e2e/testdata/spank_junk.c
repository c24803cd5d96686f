/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * spank_junk.c: a client that goes round --min-runtime and sends slurmctld whatever
 * GPUBTEST_JUNK says.
 */
#include <slurm/spank.h>
#include <stdlib.h>

SPANK_PLUGIN(gpubtest_junk, 1)

extern int slurm_spank_init_post_opt(spank_t spank, int ac, char **av);

int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	const char *junk = getenv("GPUBTEST_JUNK");

	(void)ac;
	(void)av;
	if (!junk || (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR))
		return 0;
	return spank_job_control_setenv(spank, "GPUBUDGET_MIN_RUNTIME", junk, 1);
}
