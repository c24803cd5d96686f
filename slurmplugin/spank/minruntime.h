/* SPDX-License-Identifier: GPL-2.0-or-later */
/* minruntime.h: minimum runtimes as text. */
#ifndef GPUBUDGET_MINRUNTIME_H
#define GPUBUDGET_MINRUNTIME_H

#include <stdbool.h>
#include <stdint.h>

/* Room for minruntime_text. */
#define MINRUNTIME_TEXT 32

/*
 * Reads a time as Slurm writes them (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S) or a
 * number with a unit (90s, 30m, 2h, 1d) as seconds. It is false, and seconds
 * stays as it is, for everything else: signs, blanks, fractions, no end of
 * time, and what comes to more than a hundred years.
 */
bool minruntime_parse(const char *text, uint64_t *seconds);

/* The time as Slurm writes it: [D-]HH:MM:SS. Returns out. */
const char *minruntime_text(uint64_t seconds, char out[MINRUNTIME_TEXT]);

#endif
