/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * parts.h: parts of GPUs that are shared, as shards or by MPS, in millionths.
 * Nothing of Slurm's is in here, so that it is tested by itself.
 */
#ifndef GPUBUDGET_PARTS_H
#define GPUBUDGET_PARTS_H

#include <stdint.h>

#define WHOLE 1000000 /* a GPU, in millionths */

/* A job's part of so many GPUs, of whose shares it has count: never more than
 * they are, whatever the counts. */
static inline uint64_t parts_of(uint64_t count, uint64_t shares, uint64_t gpus)
{
	uint64_t most = gpus * WHOLE;

	if (!shares)
		return 0;
	if (count >= shares)
		return most;
	if (!most || count <= UINT64_MAX / most)
		return count * most / shares;
	return count / (shares / most + 1);
}

/* Of shares that are spread evenly over several GPUs, those on one of them. */
static inline uint64_t shares_on(uint64_t count, uint64_t gpus, uint64_t nth)
{
	return count / gpus + (nth < count % gpus);
}

#endif
