/* SPDX-License-Identifier: GPL-2.0-or-later */
/* find.c: finds priority_gpubudget.so in this process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "find.h"

#define PRIORITY_PLUGIN "priority_gpubudget.so"

char *peer_beside(const char *name)
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
	char *path = peer_beside(PRIORITY_PLUGIN);
	void *plugin = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	const char *elsewhere = NULL;

	free(path);
	if (!plugin && dl_iterate_phdr(is_priority_plugin, &elsewhere))
		plugin = dlopen(elsewhere, RTLD_NOW | RTLD_NOLOAD);
	return plugin;
}

/* Once and for all: the plugin is linked never to be unloaded. */
static const struct gpub_peer *look(const char *mine, const char *consequence)
{
	void *plugin = priority_plugin();
	const struct gpub_peer *peer;
	gpub_peer_fn get;

	if (!plugin)
		return NULL;
	*(void **)&get = dlsym(plugin, GPUB_PEER);
	if (get && (peer = get()) && peer->abi == GPUB_ABI)
		return peer;
	error("gpubudget: %s and " PRIORITY_PLUGIN " are not of the same release, so %s: install both from one", mine,
	      consequence);
	return NULL;
}

const struct gpub_peer *peer_find(const char *mine, const char *consequence)
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
	known = look(mine, consequence);
	__atomic_store_n(&peer, known, __ATOMIC_RELEASE);
	return known;
}
