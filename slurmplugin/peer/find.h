/* SPDX-License-Identifier: GPL-2.0-or-later */
/* find.h: for our other plugins, where priority_gpubudget.so is. */
#ifndef GPUBUDGET_FIND_H
#define GPUBUDGET_FIND_H

#include "peer.h"

/* A file of that name beside the plugin that this is part of, malloc'ed. */
char *peer_beside(const char *name);

/* NULL as long as the priority plugin isn't loaded. If it is of another release the
 * log says so, of the plugin mine, and what that leads to. */
const struct gpub_peer *peer_find(const char *mine, const char *consequence);

#endif
