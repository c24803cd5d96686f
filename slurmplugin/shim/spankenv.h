/* SPDX-License-Identifier: GPL-2.0-or-later */
/* spankenv.h: the minimum runtime in a job's SPANK environment. Knows no Slurm. */
#ifndef GPUBUDGET_SPANKENV_H
#define GPUBUDGET_SPANKENV_H

#include <stdbool.h>
#include <stdint.h>

#define SPANKENV_VARIABLE "GPUBUDGET_MIN_RUNTIME"

/* What the variable holds, and where in the environment it is; NULL if it isn't. */
const char *spankenv_find(char *const *env, uint32_t count, uint32_t *at);

/* Seconds: digits and nothing else. More than a hundred years are a hundred. */
bool spankenv_seconds(const char *text, int64_t *seconds);

#endif
