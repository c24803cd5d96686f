/* SPDX-License-Identifier: GPL-2.0-or-later */
/* arena.c: memory that a pass takes piece by piece and gives back at once. */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define CHUNK (256 * 1024)

struct arena_chunk {
	struct arena_chunk *next;
	size_t size, used;
	max_align_t memory[];
};

static struct arena_chunk *add_chunk(struct arena *arena, size_t size)
{
	struct arena_chunk *chunk = malloc(sizeof(*chunk) + size);

	if (!chunk)
		return NULL;
	*chunk = (struct arena_chunk){ .size = size };
	if (arena->current) {
		chunk->next = arena->current->next;
		arena->current->next = chunk;
	} else {
		arena->first = chunk;
	}
	return chunk;
}

void *arena_alloc(struct arena *arena, size_t size)
{
	struct arena_chunk *chunk = arena->current ? arena->current : arena->first;
	char *memory;

	size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
	while (chunk && chunk->size - chunk->used < size)
		chunk = chunk->next;
	if (!chunk && !(chunk = add_chunk(arena, size > CHUNK ? size : CHUNK)))
		return NULL;
	arena->current = chunk;
	memory = (char *)chunk->memory + chunk->used;
	chunk->used += size;
	return memset(memory, 0, size);
}

void arena_reset(struct arena *arena)
{
	if (!arena->current) /* nothing was taken */
		return;
	for (struct arena_chunk *chunk = arena->first; chunk; chunk = chunk->next)
		chunk->used = 0;
	arena->current = NULL;
}

void arena_free(struct arena *arena)
{
	while (arena->first) {
		struct arena_chunk *next = arena->first->next;

		free(arena->first);
		arena->first = next;
	}
	arena->current = NULL;
}
