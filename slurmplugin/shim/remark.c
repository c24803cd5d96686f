/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * remark.c: what a job's owner reads about it in scontrol show job.
 *
 * It is the end of AdminComment, from MARK on, and replaces what was there of
 * ours; what an administrator wrote before it stays.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shim.h"

#define MARK "gpubudget: "

void job_remark(job_record_t *job, const char *format, ...)
{
	char text[512] = MARK, when[32];
	const time_t now = time(NULL);
	size_t used = strlen(text);
	struct tm local;
	char *ours;
	va_list args;

	if (localtime_r(&now, &local) && strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S ", &local))
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", when);
	va_start(args, format);
	vsnprintf(text + used, sizeof(text) - used, format, args);
	va_end(args);
	if (job->admin_comment && (ours = strstr(job->admin_comment, MARK)))
		*ours = '\0';
	if (job->admin_comment && *job->admin_comment) {
		size_t length = strlen(job->admin_comment);

		xstrfmtcat(job->admin_comment, "%s%s", job->admin_comment[length - 1] == ' ' ? "" : " ", text);
		return;
	}
	xfree(job->admin_comment);
	job->admin_comment = xstrdup(text);
}
