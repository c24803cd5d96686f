/* SPDX-License-Identifier: GPL-2.0-or-later */
/* library.c: finds priority_gpubudget.so in this process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preempt.h"

#define LIBRARY "libgpubudget.so"
#define PRIORITY_PLUGIN "priority_gpubudget.so"

/* A file of that name beside this plugin, malloc'ed. */
static char *beside(const char *name)
{
	static const char here;
	const char *slash;
	char *path = NULL;
	Dl_info self;

	if (!dladdr(&here, &self) || !self.dli_fname || !(slash = strrchr(self.dli_fname, '/')))
		return strdup(name);
	if (asprintf(&path, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name) < 0)
		return NULL;
	return path;
}

/* Is this plugin to go by another library? */
static bool library_is_elsewhere(void)
{
	return xstrcasestr(slurm_conf.priority_params, "gpubudget_lib=") != NULL;
}

bool library_installed(void)
{
	char *path = beside(LIBRARY);
	bool there = path && (library_is_elsewhere() || !access(path, R_OK));

	if (!there)
		error("gpubudget: preempt/gpubudget cannot work: %s cannot be read (%m): install " LIBRARY
		      " beside preempt_gpubudget.so, or set another PreemptType",
		      path ? path : LIBRARY);
	free(path);
	return there;
}

static int is_priority_plugin(struct dl_phdr_info *object, size_t size, void *arg)
{
	const char **found = arg, *slash = strrchr(object->dlpi_name, '/');

	(void)size;
	if (strcmp(slash ? slash + 1 : object->dlpi_name, PRIORITY_PLUGIN))
		return 0;
	*found = object->dlpi_name;
	return 1;
}

/* Nothing is loaded here, only found. */
static void *priority_plugin(void)
{
	char *path = beside(PRIORITY_PLUGIN);
	void *plugin = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	const char *elsewhere = NULL;

	free(path);
	if (!plugin && dl_iterate_phdr(is_priority_plugin, &elsewhere))
		plugin = dlopen(elsewhere, RTLD_NOW | RTLD_NOLOAD);
	return plugin;
}

/* Once and for all: the plugin is linked never to be unloaded. */
static const struct gpub_peer *find_peer(void)
{
	void *plugin = priority_plugin();
	const struct gpub_peer *peer;
	gpub_peer_fn get;

	if (!plugin)
		return NULL;
	*(void **)&get = dlsym(plugin, GPUB_PEER);
	if (get && (peer = get()) && peer->abi == GPUB_ABI)
		return peer;
	error("gpubudget: preempt_gpubudget.so and " PRIORITY_PLUGIN
	      " are not of the same release, so nobody is preempted: install both from one");
	return NULL;
}

const struct gpub_peer *library_peer(void)
{
	static const struct gpub_peer *peer;
	static time_t tried;
	const struct gpub_peer *known = __atomic_load_n(&peer, __ATOMIC_ACQUIRE);
	time_t now;

	if (known)
		return known;
	if ((now = time(NULL)) == tried)
		return NULL;
	tried = now;
	known = find_peer();
	__atomic_store_n(&peer, known, __ATOMIC_RELEASE);
	return known;
}
