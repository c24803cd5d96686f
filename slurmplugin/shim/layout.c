/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * layout.c: do slurmctld's records lie in memory where our headers say?
 *
 * The loader compares version numbers. Headers that claim the right version
 * but belong to another release (a patched build, a wrong source package)
 * pass that test and then read other fields than they mean. Here a few fields
 * whose contents are known beforehand are looked at, from the beginning, the
 * middle and the end of the records, and without trusting a single pointer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim.h"

#define JOBS_TO_CHECK 64

static uint32_t jobs_checked;
static bool broken;

/* Copies from an address that may be none. */
static bool peek(const void *address, void *to, size_t size)
{
	struct iovec local = { to, size }, remote = { (void *)address, size };
	ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	if (got == (ssize_t)size)
		return true;
	if (got >= 0 || errno == EFAULT)
		return false;
	/* Not allowed to (a container's rules): believe the pointer. */
	memcpy(to, address, size);
	return true;
}

static bool peek_string(const char *address, const char *expected)
{
	char text[64];
	size_t size = strlen(expected) + 1;

	return size <= sizeof(text) && peek(address, text, size) && !memcmp(text, expected, size);
}

static bool peek_magic(const void *address, uint32_t expected)
{
	uint32_t magic;

	return peek(address, &magic, sizeof(magic)) && magic == expected;
}

bool layout_conf_ok(void)
{
	char first;

	jobs_checked = 0;
	broken = false;
	if (peek_string(slurm_conf.priority_type, "priority/gpubudget") &&
	    peek(slurm_conf.state_save_location, &first, 1) && first == '/' &&
	    peek(slurm_conf.cluster_name, &first, 1) && first)
		return true;
	error("gpubudget: slurmctld's configuration isn't laid out as in the headers of Slurm %s that this plugin was built with: rebuild it from the source package of the slurmctld that runs",
	      SLURM_VERSION_STRING);
	return false;
}

/* The last thing in the record that can be checked: tres_req_cnt, whose size
 * is known. xmalloc keeps it before the memory. */
static bool tres_size_ok(const job_record_t *job)
{
	char head[2 * sizeof(size_t)];

	if (!job->tres_req_cnt)
		return true;
	return peek((const char *)job->tres_req_cnt - sizeof(head), head, sizeof(head)) &&
	       xsize(job->tres_req_cnt) == slurmctld_tres_cnt * sizeof(uint64_t);
}

static const char *first_misplaced(const job_record_t *job)
{
	if (!peek_magic(job, JOB_MAGIC))
		return "magic";
	if (job->details && !peek_magic(job->details, DETAILS_MAGIC))
		return "details";
	if ((job->job_state & JOB_STATE_BASE) >= JOB_END)
		return "job_state";
	if (job->part_ptr && !peek_magic(job->part_ptr, PART_MAGIC))
		return "part_ptr";
	if (job->assoc_ptr && job->assoc_ptr->id != job->assoc_id)
		return "assoc_ptr";
	if (!tres_size_ok(job))
		return "tres_req_cnt";
	return NULL;
}

bool layout_job_ok(const job_record_t *job)
{
	const char *field;

	if (__atomic_load_n(&jobs_checked, __ATOMIC_RELAXED) >= JOBS_TO_CHECK || broken)
		return !broken;
	__atomic_add_fetch(&jobs_checked, 1, __ATOMIC_RELAXED);
	if (!(field = first_misplaced(job)))
		return true;
	broken = true;
	error("gpubudget: %s of a job record isn't where the headers of Slurm %s have it. Nothing is recalculated any more: rebuild priority_gpubudget.so from the source package of the slurmctld that runs",
	      field, SLURM_VERSION_STRING);
	return false;
}

static int check_job(void *x, void *arg)
{
	bool *ok = arg;

	*ok = layout_job_ok(x);
	return *ok && jobs_checked < JOBS_TO_CHECK ? SLURM_SUCCESS : -1;
}

bool layout_jobs_ok(void)
{
	bool ok = true;

	if (job_list)
		list_for_each_ro(job_list, check_job, &ok);
	return ok;
}
