/* SPDX-License-Identifier: GPL-2.0-or-later */
/* listing.c: the rows of sprio, one for each partition of a pending job. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

struct listing {
	const struct settings *settings;
	gpub_list job_ids, uids;
	gpub_list partitions; /* part_record_t; NULL for all */
	gpub_list rows;
	uid_t uid;
	bool operator;
	time_t now;
};

/*
 * A row goes to the wire after the locks are given back, and its partition's
 * name isn't freed with it. So the names that rows point to are kept, one for
 * each partition there ever was, past fini: that comes while replies are sent.
 */
struct name {
	struct name *next;
	char text[];
};
static struct name *names;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;

static char *kept_name(const char *text)
{
	struct name *name;

	pthread_mutex_lock(&names_lock);
	for (name = names; name && strcmp(name->text, text); name = name->next)
		;
	if (!name && (name = malloc(sizeof(*name) + strlen(text) + 1))) {
		strcpy(name->text, text);
		name->next = names;
		names = name;
	}
	pthread_mutex_unlock(&names_lock);
	return name ? name->text : NULL;
}

static int same_number(void *x, void *key)
{
	return *(const uint32_t *)x == *(const uint32_t *)key;
}

static int same_pointer(void *x, void *key)
{
	return x == key;
}

static bool wants_partition(const struct listing *to, part_record_t *part)
{
	return !to->partitions || list_find_first_ro(to->partitions, same_pointer, part);
}

/* May this user see this job? PrivateData=jobs hides others' jobs from all
 * but operators, coordinators of the account and, with MCS, peers. */
static bool may_see(const struct listing *to, const job_record_t *job)
{
	if (!(slurm_conf.private_data & PRIVATE_DATA_JOBS) || job->user_id == to->uid || to->operator)
		return true;
	if (GPUB_MCS_PRIVATE_DATA() == 1)
		return !GPUB_MCS_DENIES(to->uid, job->mcs_label);
	return GPUB_IS_COORDINATOR(to->uid, job->account);
}

static bool eligible(const struct listing *to, const job_record_t *job)
{
	time_t since;

	if (!job->details)
		return false;
	since = to->settings->weights.flags & GPUB_FLAG_ACCRUE_ALWAYS ? job->details->submit_time :
									job->details->begin_time;
	return since && since <= to->now;
}

static bool wants_job(const struct listing *to, job_record_t *job)
{
	if (!(to->settings->weights.flags & GPUB_FLAG_CALCULATE_RUNNING) && !IS_JOB_PENDING(job))
		return false;
	if (IS_JOB_REVOKED(job) || !job->priority || !eligible(to, job))
		return false;
	if (to->job_ids && !list_find_first_ro(to->job_ids, same_number, &job->job_id))
		return false;
	if (to->uids && !list_find_first_ro(to->uids, same_number, &job->user_id))
		return false;
	return may_see(to, job);
}

static double sum(const double *values, uint32_t count)
{
	double total = 0;

	for (uint32_t i = 0; i < count; i++)
		total += values[i];
	return total;
}

/* The TRES columns of a job in a partition, weighted; NULL without weights. */
static double *weighted_tres(const struct listing *to, const job_record_t *job, const part_record_t *part)
{
	const struct gpub_weights *weights = &to->settings->weights;
	double *tres;

	if (!weights->tres)
		return NULL;
	tres = xcalloc(weights->tres_count, sizeof(*tres));
	tres_factors(job, part, to->settings, tres);
	for (uint32_t i = 0; i < weights->tres_count; i++)
		tres[i] *= weights->tres[i];
	return tres;
}

/*
 * The record keeps the columns of one partition, and of the others only the
 * priority. Where the columns are plain weights times factors, those of any
 * partition follow from its factors; they are right if they explain its
 * priority. Otherwise (columns packed by the library) what sets the partition
 * apart is shown under PARTITION, so that the row still adds up. By Slurm's
 * shares the columns always are plain, as sprio has them with
 * priority/multifactor.
 */
static void turn_to_partition(const struct listing *to, const job_record_t *job, const part_record_t *part,
			      uint32_t priority, gpub_slurm_factors *row)
{
	const struct gpub_weights *weights = &to->settings->weights;
	double *tres = row->priority_tres && row->tres_cnt == weights->tres_count ? weighted_tres(to, job, part) : NULL;
	double plain = part_factor(part, weights->flags) * weights->partition;
	double gap = (double)priority - job->priority;
	double explained = plain - row->priority_part;

	if (tres)
		explained += sum(tres, row->tres_cnt) - sum(row->priority_tres, row->tres_cnt);
	if (!slurm_shares_in_force() && fabs(explained - gap) > 1) {
		row->priority_part += gap;
		xfree(tres);
		return;
	}
	row->priority_part = plain;
	if (tres) {
		xfree(row->priority_tres);
		row->priority_tres = tres;
	}
}

static void add_row(struct listing *to, job_record_t *job, part_record_t *part, const uint32_t *priority)
{
	gpub_slurm_factors *row = xmalloc(sizeof(*row));

	if (job->direct_set_prio)
		row->direct_prio = priority ? *priority : job->priority;
	else
		slurm_copy_priority_factors_object(row, job->prio_factors);
	if (priority && job->prio_factors && !job->direct_set_prio)
		turn_to_partition(to, job, part, *priority, row);
	row->job_id = job->job_id;
	row->user_id = job->user_id;
	row->partition = kept_name(part->name);
	list_append(to->rows, row);
}

static int list_job(void *x, void *arg)
{
	struct listing *to = arg;
	job_record_t *job = x;
	part_record_t *part;
	ListIterator parts;
	const uint32_t *priority = *gpub_priority_array(job);

	if (!wants_job(to, job))
		return SLURM_SUCCESS;
	if (!job->part_ptr_list) {
		/* A deleted partition leaves its finished jobs without any. */
		if (job->part_ptr && wants_partition(to, job->part_ptr))
			add_row(to, job, job->part_ptr, NULL);
		return SLURM_SUCCESS;
	}
	parts = list_iterator_create(job->part_ptr_list);
	while ((part = list_next(parts))) {
		if (wants_partition(to, part))
			add_row(to, job, part, priority);
		if (priority)
			priority++;
	}
	list_iterator_destroy(parts);
	return SLURM_SUCCESS;
}

static gpub_list find_partitions(const char *csv)
{
	gpub_list found;
	char *copy, *rest, *name;
	part_record_t *part;

	if (!csv)
		return NULL;
	found = list_create(NULL);
	copy = rest = xstrdup(csv);
	while ((name = strsep(&rest, ",")))
		if (*name && (part = find_part_record(name)))
			list_append(found, part);
	xfree(copy);
	return found;
}

gpub_list factors_list(gpub_list job_ids, gpub_list uids, const char *partitions, uid_t uid)
{
	struct listing to = {
		.settings = settings_now(),
		.job_ids = job_ids,
		.uids = uids,
		.uid = uid,
		.operator = validate_operator(uid),
		.now = time(NULL),
	};

	if (!to.settings || !job_list)
		return NULL;
	to.partitions = find_partitions(partitions);
	to.rows = list_create(slurm_destroy_priority_factors_object);
	list_for_each_ro(job_list, list_job, &to);
	FREE_NULL_LIST(to.partitions);
	if (!list_count(to.rows))
		FREE_NULL_LIST(to.rows);
	return to.rows;
}
