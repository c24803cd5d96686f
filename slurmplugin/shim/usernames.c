/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * usernames.c: names of uids, for jobs without an association.
 *
 * slurmctld leaves user_name of most job records empty. A name is looked up
 * once; what isn't known is asked again after a while, because directories
 * come back. Names are never freed while the plugin runs: a batch of jobs may
 * still point to them.
 */
#include <pthread.h>
#include <stdlib.h>

#include "shim.h"

#define ASK_AGAIN 300 /* seconds */

struct entry {
	uint32_t uid;
	bool used;
	const char *name;
	time_t asked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table;
static size_t size, used; /* size is a power of two */

static struct entry *slot(struct entry *in, size_t length, uint32_t uid)
{
	size_t i = (uid * 2654435761u) & (length - 1);

	while (in[i].used && in[i].uid != uid)
		i = (i + 1) & (length - 1);
	return &in[i];
}

static bool grow(void)
{
	size_t bigger_size = size ? size * 2 : 256;
	struct entry *bigger = calloc(bigger_size, sizeof(*bigger));

	if (!bigger)
		return false;
	for (size_t i = 0; i < size; i++)
		if (table[i].used)
			*slot(bigger, bigger_size, table[i].uid) = table[i];
	free(table);
	table = bigger;
	size = bigger_size;
	return true;
}

static const char *look_up(uint32_t uid)
{
	struct entry *e;
	time_t now = time(NULL);

	if (used * 2 >= size && !grow())
		return NULL;
	e = slot(table, size, uid);
	if (e->used && (e->name || now - e->asked < ASK_AGAIN))
		return e->name;
	used += !e->used;
	*e = (struct entry){ .uid = uid, .used = true, .name = uid_to_string_or_null(uid), .asked = now };
	return e->name;
}

const char *username(uint32_t uid)
{
	const char *name;

	pthread_mutex_lock(&lock);
	name = look_up(uid);
	pthread_mutex_unlock(&lock);
	return name;
}

void usernames_free(void)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < size; i++)
		xfree(table[i].name);
	free(table);
	table = NULL;
	size = used = 0;
	pthread_mutex_unlock(&lock);
}
