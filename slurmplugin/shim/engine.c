/* SPDX-License-Identifier: GPL-2.0-or-later */
/* engine.c: finds, loads and stops libgpubudget.so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define LIBRARY "libgpubudget.so"
#define DEFAULT_CONF "/etc/gpubudget/gpubudget.conf"

const struct gpub_engine *engine;

static struct gpub_engine calls;

struct symbol {
	const char *name;
	void **call;
	bool optional;
};

/* A function's address in a void pointer: POSIX promises that it fits. */
#define CALL(field) ((void **)(void *)&calls.field)

static const struct symbol symbols[] = {
	{ "gpub_start", CALL(start), false },
	{ "gpub_stop", CALL(stop), false },
	{ "gpub_configure", CALL(configure), false },
	{ "gpub_interval_ms", CALL(interval_ms), false },
	{ "gpub_pass_begin", CALL(pass_begin), false },
	{ "gpub_pass_observe", CALL(pass_observe), false },
	{ "gpub_pass_end", CALL(pass_end), false },
	{ "gpub_rank", CALL(rank), false },
	{ "gpub_fill", CALL(fill), false },
	{ "gpub_observe", CALL(observe), false },
	{ "gpub_standings", CALL(standings), false },
	{ "gpub_shares", CALL(shares), false },
	{ "gpub_slurm_shares", CALL(slurm_shares), false },
	{ "gpub_candidates", CALL(candidates), false },
	{ "gpub_preempted", CALL(preempted), false },
	{ "gpub_drains", CALL(drains), false },
	{ "gpub_may_leave", CALL(may_leave), false },
	{ "gpub_left", CALL(left), false },
	{ "gpub_submit", CALL(submit), false },
	{ "gpub_wanted", CALL(wanted), true },
};

/* The library's way into slurmctld.log, from any of its threads. The shim is
 * linked never to be unloaded, so that a late message still finds this code. */
static void log_from_engine(int level, const char *message)
{
	switch (level) {
	case GPUB_LOG_ERROR:
		error("gpubudget: %s", message);
		break;
	case GPUB_LOG_INFO:
		info("gpubudget: %s", message);
		break;
	case GPUB_LOG_VERBOSE:
		verbose("gpubudget: %s", message);
		break;
	default:
		debug("gpubudget: %s", message);
	}
}

/* The library named in PriorityParameters, or the one beside this plugin. */
static char *library_path(void)
{
	char *path = priority_parameter("gpubudget_lib");
	const char *slash;
	Dl_info self;

	if (path)
		return path;
	if (!dladdr(&calls, &self) || !self.dli_fname || !(slash = strrchr(self.dli_fname, '/')))
		return strdup(LIBRARY);
	if (asprintf(&path, "%.*s/" LIBRARY, (int)(slash - self.dli_fname), self.dli_fname) < 0)
		return NULL;
	return path;
}

/* The library is never closed: the Go runtime cannot be unloaded, and a second
 * dlopen of the same file gives the same handle back. */
static int load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		error("gpubudget: cannot load %s (%s): install " LIBRARY
		      " beside priority_gpubudget.so, or name it with PriorityParameters=gpubudget_lib=PATH",
		      path, dlerror());
		return SLURM_ERROR;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].call = dlsym(library, symbols[i].name);
		if (*symbols[i].call || symbols[i].optional)
			continue;
		error("gpubudget: %s has no %s: it is not of the same release as priority_gpubudget.so; install both from one",
		      path, symbols[i].name);
		return SLURM_ERROR;
	}
	return SLURM_SUCCESS;
}

static int start(const char *path)
{
	char *conf = priority_parameter("gpubudget_conf");
	const struct gpub_host host = {
		.abi = GPUB_ABI,
		.cluster = slurm_conf.cluster_name,
		.slurm_version = SLURM_VERSION_STRING,
		.conf_path = conf ? conf : DEFAULT_CONF,
		.state_dir = slurm_conf.state_save_location,
		.log = log_from_engine,
	};
	int rc = calls.start(&host);

	if (rc == GPUB_ABI_MISMATCH)
		error("gpubudget: %s does not speak version %d of the bridge: install it and priority_gpubudget.so from one release",
		      path, GPUB_ABI);
	else if (rc != GPUB_OK)
		error("gpubudget: %s did not start (%d): see the lines above, and check %s", path, rc, host.conf_path);
	free(conf);
	return rc == GPUB_OK ? SLURM_SUCCESS : SLURM_ERROR;
}

int engine_start(void)
{
	char *path = library_path();
	int rc = SLURM_ERROR;

	if (!path) {
		error("gpubudget: out of memory");
		return SLURM_ERROR;
	}
	if (load(path) == SLURM_SUCCESS && start(path) == SLURM_SUCCESS) {
		verbose("gpubudget: %s started", path);
		__atomic_store_n(&engine, &calls, __ATOMIC_RELEASE);
		rc = SLURM_SUCCESS;
	}
	free(path);
	return rc;
}

void engine_stop(void)
{
	if (!engine)
		return;
	__atomic_store_n(&engine, NULL, __ATOMIC_RELEASE);
	calls.stop();
}
