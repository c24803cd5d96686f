/* SPDX-License-Identifier: GPL-2.0-or-later */
/* array.c: arrays that are used again. */
#include <stdlib.h>

#include "preempt.h"

bool array_grow(void *array, uint32_t *room, uint32_t need, size_t size)
{
	void **at = array, *more;
	size_t wanted;

	if (need <= *room)
		return true;
	wanted = (size_t)need + need / 2 + 64;
	if (!(more = realloc(*at, wanted * size)))
		return false;
	*at = more;
	*room = wanted;
	return true;
}
