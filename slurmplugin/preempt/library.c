/* SPDX-License-Identifier: GPL-2.0-or-later */
/* library.c: the libraries that this plugin relies on. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "find.h"
#include "preempt.h"

#define LIBRARY "libgpubudget.so"

/* Is this plugin to go by another library? */
static bool library_is_elsewhere(void)
{
	return xstrcasestr(slurm_conf.priority_params, "gpubudget_lib=") != NULL;
}

bool library_installed(void)
{
	char *path = peer_beside(LIBRARY);
	bool there = path && (library_is_elsewhere() || !access(path, R_OK));

	if (!there)
		error("gpubudget: preempt/gpubudget cannot work: %s cannot be read (%m): install " LIBRARY
		      " beside preempt_gpubudget.so, or set another PreemptType",
		      path ? path : LIBRARY);
	free(path);
	return there;
}

const struct gpub_peer *library_peer(void)
{
	return peer_find("preempt_gpubudget.so", "nobody is preempted");
}
