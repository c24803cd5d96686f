/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * passes.c: has priority/multifactor recalculate when it is asked to.
 *
 * Its thread "decay" sleeps for PriorityCalcPeriod, which is a minute at least.
 * Loaded into slurmctld before all else (LD_PRELOAD), this cuts the sleep short
 * when the first number in the file GPUB_PASSES has changed, and puts that
 * number into the second when what it was asked for is done. All else that
 * waits waits as ever.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 5000000
#define SECOND_NS 1000000000

struct passes {
	uint32_t asked, done;
};

typedef int wait_fn(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static wait_fn *real_wait;
static struct passes *passes;

static void __attribute__((constructor)) find(void)
{
	const char *path = getenv("GPUB_PASSES");
	int file = path ? open(path, O_RDWR) : -1;
	void *map;

	real_wait = (wait_fn *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	if (file < 0)
		return;
	map = mmap(NULL, sizeof(*passes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	passes = map == MAP_FAILED ? NULL : map;
	close(file);
}

static int is_decay(void)
{
	char name[16] = "";

	prctl(PR_GET_NAME, name);
	return !strcmp(name, "decay");
}

static int past(const struct timespec *until, const struct timespec *now)
{
	return now->tv_sec > until->tv_sec || (now->tv_sec == until->tv_sec && now->tv_nsec >= until->tv_nsec);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	static uint32_t taken;
	struct timespec now;
	int rc;

	if (!passes || !is_decay())
		return real_wait(cond, mutex, until);
	__atomic_store_n(&passes->done, taken, __ATOMIC_RELEASE);
	do {
		uint32_t asked = __atomic_load_n(&passes->asked, __ATOMIC_ACQUIRE);

		if (asked != taken) {
			taken = asked;
			return ETIMEDOUT;
		}
		clock_gettime(CLOCK_REALTIME, &now);
		if (past(until, &now))
			return ETIMEDOUT;
		now.tv_nsec += SLICE_NS;
		if (now.tv_nsec >= SECOND_NS) {
			now.tv_nsec -= SECOND_NS;
			now.tv_sec++;
		}
		rc = real_wait(cond, mutex, &now);
	} while (rc == ETIMEDOUT);
	return rc;
}
