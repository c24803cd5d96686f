/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * usernames.c: names of uids, for jobs without an association.
 *
 * slurmctld leaves user_name of most job records empty, and the directory that
 * knows the name (LDAP, sssd) may take its time or hang. So only a thread of
 * our own ever asks it; everybody else reads what is known by now, under a
 * lock that is never held meanwhile. Names are never freed, not even when the
 * plugin is stopped: whoever looks at a job then may still point to them. One
 * that is started again goes on with what is known and what is wanted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define ASK_AGAIN 60          /* seconds, for a uid that has no name: directories come back */
#define SLOW 10               /* seconds after which an administrator wants to know */
#define MOST_UIDS 262144      /* in a table of some 8 MB at most, half full; the rest goes by uid */
#define MOST_BYTES (1u << 20) /* of a directory's entry */

struct entry {
	uint32_t uid;
	bool used;
	bool wanted; /* the thread has to ask, or is about it */
	char *name;  /* NULL: it has none, or nobody has answered yet */
	time_t asked;
};

/* Nothing can call a thread back from a directory that hangs. One that is
 * dismissed meanwhile is left behind, and ends when it gets its answer. */
struct asker {
	pthread_cond_t cond;
	bool dismissed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table;
static size_t size, used; /* size is a power of two */
static size_t wanted, at; /* entries to ask for, and where to look for the next */
static struct asker *asker;
static bool news;
static struct {
	uint32_t uid;
	time_t since; /* 0 if it is not asking */
	bool told;    /* that it takes long */
} asking;

/* Seconds that no administrator sets back. */
static time_t seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

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
	struct entry *bigger = bigger_size <= MOST_UIDS ? calloc(bigger_size, sizeof(*bigger)) : NULL;

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

/* NULL if there is no room for it. */
static struct entry *find(uint32_t uid)
{
	struct entry *e = size ? slot(table, size, uid) : NULL;

	if (e && e->used)
		return e;
	if (used * 2 >= size && !grow())
		return NULL;
	e = slot(table, size, uid);
	*e = (struct entry){ .uid = uid, .used = true, .asked = seconds() - ASK_AGAIN };
	used++;
	return e;
}

static void want(struct entry *e)
{
	if (e->wanted || seconds() - e->asked < ASK_AGAIN)
		return;
	e->wanted = true;
	wanted++;
	if (asker)
		pthread_cond_signal(&asker->cond);
}

const char *username(uint32_t uid)
{
	const char *name = NULL;
	struct entry *e;

	pthread_mutex_lock(&lock);
	if ((e = find(uid)) && !(name = e->name))
		want(e);
	pthread_mutex_unlock(&lock);
	return name;
}

/* The only call that may take as long as it likes. */
static char *ask(uint32_t uid)
{
	struct passwd entry, *found = NULL;
	char *buffer = NULL, *name = NULL, *bigger;
	size_t bytes = 1024;
	int rc = ERANGE;

	if (!uid) /* several may share it, as Slurm knows */
		return strdup("root");
	while (rc == EINTR || (rc == ERANGE && bytes < MOST_BYTES)) {
		if (rc == ERANGE)
			bytes *= 2;
		if (!(bigger = realloc(buffer, bytes)))
			break;
		buffer = bigger;
		rc = getpwuid_r(uid, &entry, buffer, bytes, &found);
	}
	if (!rc && found && *found->pw_name)
		name = strdup(found->pw_name);
	free(buffer);
	return name;
}

/* Holds the lock, there is one. */
static uint32_t next_wanted(void)
{
	while (!table[at &= size - 1].wanted)
		at++;
	return table[at].uid;
}

static void learn(uint32_t uid, char *name)
{
	struct entry *e = slot(table, size, uid);

	e->wanted = false;
	wanted--;
	e->asked = seconds();
	e->name = name;
	news |= name != NULL;
}

static void *asker_thread(void *arg)
{
	struct asker *self = arg;

	pthread_mutex_lock(&lock);
	while (!self->dismissed) {
		uint32_t uid;
		char *name;

		if (!wanted) {
			pthread_cond_wait(&self->cond, &lock);
			continue;
		}
		asking.uid = uid = next_wanted();
		asking.since = seconds();
		pthread_mutex_unlock(&lock);
		name = ask(uid);
		pthread_mutex_lock(&lock);
		if (self->dismissed) {
			free(name);
			break;
		}
		asking.since = 0;
		learn(uid, name);
	}
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&self->cond);
	free(self);
	return NULL;
}

bool usernames_news(void)
{
	bool was, slow, over;
	uint32_t uid;

	pthread_mutex_lock(&lock);
	was = news;
	news = false;
	uid = asking.uid;
	slow = asking.since && !asking.told && seconds() - asking.since >= SLOW;
	over = asking.told && !asking.since;
	asking.told = (asking.told || slow) && !over;
	pthread_mutex_unlock(&lock);
	if (slow)
		error("gpubudget: for %d s nobody has answered who uid %" PRIu32
		      " is: jobs without an association count for their uid until then; check the directory that nsswitch.conf names",
		      SLOW, uid);
	if (over)
		info("gpubudget: it is answered again who a uid is");
	return was;
}

int usernames_start(void)
{
	struct asker *self = calloc(1, sizeof(*self));
	pthread_t thread;
	int rc = ENOMEM;

	if (self) {
		pthread_cond_init(&self->cond, NULL);
		rc = pthread_create(&thread, NULL, asker_thread, self);
	}
	if (rc) {
		error("gpubudget: cannot start the thread that asks for users' names: %s", strerror(rc));
		free(self);
		return SLURM_ERROR;
	}
	pthread_setname_np(thread, "gpub_names");
	pthread_detach(thread);
	pthread_mutex_lock(&lock);
	asker = self;
	pthread_cond_signal(&self->cond); /* some may be wanted already */
	pthread_mutex_unlock(&lock);
	return SLURM_SUCCESS;
}

void usernames_stop(void)
{
	pthread_mutex_lock(&lock);
	if (asker) {
		asker->dismissed = true;
		pthread_cond_signal(&asker->cond);
		asker = NULL;
	}
	memset(&asking, 0, sizeof(asking));
	pthread_mutex_unlock(&lock);
}
