/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * score.c: what fairshare.Strict and fairshare.Additive say of a job, worked
 * out from their numbers (fairshare.Table). Go calls nothing here and is not
 * called: a thread of Slurm that has never met the Go runtime would have to be
 * introduced to it first, which takes longer than all of this.
 *
 * To be the same to the last bit it must multiply and add in the same order.
 * A property test of fairshare compares the two.
 */
#include <stddef.h>

#include "score.h"

#define WHOLE ((double)(1LL << 53)) /* up to here floats count in whole numbers */

static double least(double a, double b)
{
	return a < b ? a : b;
}

static double most(double a, double b)
{
	return a > b ? a : b;
}

/* NaN counts as nothing. */
static double finite_number(double x)
{
	return x == x ? least(most(x, -WHOLE), WHOLE) : 0;
}

static double factor(double x)
{
	return most(finite_number(x), 0);
}

static double unit(double x)
{
	return x > 0 ? least(x, 1) : 0;
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

static double age_factor(const struct gpub_table *table, int64_t age)
{
	if (age < 0)
		return 0;
	if (age >= (int64_t)table->weights.max_age)
		return 1;
	return (double)age / (double)table->weights.max_age;
}

static double relative_size(const struct gpub_table *table, const struct score_job *job)
{
	double on_nodes = ratio((double)job->min_nodes * (double)table->cpus, (double)table->nodes);
	double cpus = most(on_nodes, (double)job->cpus);

	return ratio(cpus / (double)(job->time_limit ? job->time_limit : 1), (double)table->cpus);
}

static double part_of(const struct gpub_table *table, double of, double all)
{
	return table->weights.favor_small ? ratio(all - of, all) : ratio(of, all);
}

static double mean_size(const struct gpub_table *table, const struct score_job *job)
{
	double nodes = part_of(table, (double)job->min_nodes, (double)table->nodes);

	if (!job->cpus)
		return nodes;
	return (nodes + part_of(table, (double)job->cpus, (double)table->cpus)) / 2;
}

static double size_factor(const struct gpub_table *table, const struct score_job *job)
{
	double size;

	if (!table->weights.job_size) /* nobody asks */
		return 0;
	if (!(table->weights.flags & GPUB_FLAG_SIZE_RELATIVE))
		return unit(mean_size(table, job));
	size = unit(relative_size(table, job));
	return table->weights.favor_small ? 1 - size : size;
}

bool score_unallocated(const struct gpub_table *table, int64_t min_runtime)
{
	uint32_t kind = GPUB_UNALLOCATED_ASKED;

	if (min_runtime < 0)
		kind = GPUB_UNALLOCATED_UNSAID;
	else if (!min_runtime)
		kind = GPUB_UNALLOCATED_ZERO;
	return table->unallocated & kind;
}

/* ---- packed: fairshare.Strict ---- */

bool score_elsewhere(const struct gpub_table *table, const struct score_owner *owner, int64_t min_runtime)
{
	return table->packed && score_unallocated(table, min_runtime) &&
	       table->slots[owner->slot].unallocated != owner->slot;
}

/* A value's amount: that of the last rise that begins no later. */
static int64_t amount(const struct gpub_rise *rises, uint32_t count, int64_t value)
{
	uint32_t low = 0;

	while (count > 1) {
		uint32_t half = count / 2;

		if (rises[low + half].from <= value)
			low += half;
		count -= half;
	}
	return rises[low].amount;
}

/* Points of the weighted sum as whole steps, of those left. */
static int64_t take(const struct gpub_table *table, int64_t *left, double points)
{
	int64_t steps = (int64_t)least(most(points * table->rest_scale, 0), (double)*left);

	*left -= steps;
	return steps;
}

static void take_tres(const struct gpub_table *table, int64_t *left, const double *tres, double *columns)
{
	for (uint32_t i = 0; tres && table->weights.tres && i < table->weights.tres_count; i++) {
		double steps = (double)take(table, left, factor(table->weights.tres[i]) * factor(tres[i]));

		if (columns)
			columns[i] = steps;
	}
}

static int64_t rest(const struct gpub_table *table, const struct score_job *job, struct score *out)
{
	const struct gpub_weights *w = &table->weights;
	int64_t left = table->rest_steps - 1;

	out->age = (double)take(table, &left, (double)w->age * age_factor(table, job->age));
	out->job_size = (double)take(table, &left, (double)w->job_size * size_factor(table, job));
	out->assoc = (double)take(table, &left, (double)w->assoc * factor(job->assoc));
	out->site = take(table, &left, (double)job->site - (double)table->site_low);
	out->partition = (double)take(table, &left, (double)w->partition * factor(job->partition));
	take_tres(table, &left, job->tres, out->tres);
	return table->rest_steps - 1 - left;
}

static int64_t rest_in(const struct gpub_table *table, const struct score_part *part, const struct score *out)
{
	int64_t left = table->rest_steps - 1 - (int64_t)(out->age + out->job_size + out->assoc) - out->site;

	take(table, &left, (double)table->weights.partition * factor(part->factor));
	take_tres(table, &left, part->tres, NULL);
	return table->rest_steps - 1 - left;
}

static void pack(const struct gpub_table *table, const struct score_owner *owner, const struct score_job *job,
		 struct score *out)
{
	struct score_owner elsewhere;
	int64_t qos = 0, above;

	if (score_elsewhere(table, owner, job->min_runtime)) {
		const struct gpub_slot *slot = &table->slots[owner->slot];

		qos = slot->unallocated_base;
		elsewhere = score_owner(table, &(struct gpub_place){ .slot = slot->unallocated });
		owner = &elsewhere;
	}
	qos += amount(table->qos, table->qos_count, job->qos_priority) * owner->qos_unit;
	out->fairshare = owner->fairshare;
	out->qos = (double)qos;
	out->nice = amount(table->nice + owner->nice_first, owner->nice_count, job->nice);
	above = (int64_t)owner->fairshare + qos - out->nice;
	out->priority = (uint32_t)(above + rest(table, job, out));
	for (uint32_t i = 0; i < job->parts_count; i++)
		job->parts[i].priority = (uint32_t)(above + rest_in(table, &job->parts[i], out));
}

/* ---- added up: fairshare.Additive ---- */

/* A column as it is added up: with a band, no more than a priority has room for. */
static double within(const struct gpub_table *table, double x)
{
	double limit = table->band > 0 ? UINT32_MAX : WHOLE;

	return least(most(finite_number(x), -limit), limit);
}

/* A site factor or a nice value: with a band, what Slurm's protocol carries. */
static int64_t carried(const struct gpub_table *table, int64_t x)
{
	if (!(table->band > 0))
		return x;
	return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x;
}

static double weigh(const struct gpub_table *table, uint32_t weight, double by)
{
	return weight ? within(table, (double)weight * by) : 0;
}

static double weighted_tres(const struct gpub_table *table, const double *tres, double *columns)
{
	double sum = 0;

	for (uint32_t i = 0; tres && table->weights.tres && i < table->weights.tres_count; i++) {
		double term = within(table, table->weights.tres[i] * tres[i]);

		sum += term;
		if (columns)
			columns[i] = term;
	}
	return sum;
}

/* In Slurm's order. */
static double columns(const struct score *of, double partition, double tres)
{
	return of->age + of->assoc + of->fairshare + of->job_size + partition + of->qos + tres + (double)of->site -
	       (double)of->nice;
}

struct bounds {
	double least, most;
};

/* Of the priority of a job that has this in its column of the fair-share factor. */
static struct bounds bounds_of(const struct gpub_table *table, double fairshare)
{
	if (!(table->band > 0))
		return (struct bounds){ 1, UINT32_MAX };
	if (fairshare > 0)
		return (struct bounds){ table->band + 1, UINT32_MAX };
	return (struct bounds){ 1, table->band };
}

static uint32_t priority_of(double sum, struct bounds bounds)
{
	if (!(sum >= bounds.least))
		return (uint32_t)bounds.least;
	return (uint32_t)least(sum, bounds.most);
}

/* Takes off a column what is left to be taken, as far as it isn't beyond 0. */
static double give(double *left, double column)
{
	double part = *left < 0 ? most(least(column, 0), *left) : least(most(column, 0), *left);

	*left -= part;
	return column - part;
}

/* Where the priority was cut by a point or more, NICE takes up the difference, and
 * the other columns what it can't hold: they add up again. */
static void settle(const struct gpub_table *table, double sum, struct score *out)
{
	int64_t whole = (int64_t)(sum - (double)out->priority);
	double left, nice;

	if ((double)whole > sum - (double)out->priority)
		whole--;
	if (!whole || whole == -1)
		return;
	left = (double)whole;
	nice = least(most((double)out->nice + left, INT32_MIN), INT32_MAX);
	left -= nice - (double)out->nice;
	out->nice = (int64_t)nice;
	out->site = (int64_t)give(&left, (double)out->site);
	out->qos = give(&left, out->qos);
	out->partition = give(&left, out->partition);
	out->assoc = give(&left, out->assoc);
	out->job_size = give(&left, out->job_size);
	out->age = give(&left, out->age);
	for (uint32_t i = 0; out->tres && i < table->weights.tres_count; i++)
		out->tres[i] = give(&left, out->tres[i]);
}

static void add_up(const struct gpub_table *table, const struct score_owner *owner, const struct score_job *job,
		   struct score *out)
{
	const struct gpub_weights *w = &table->weights;
	struct bounds bounds;
	double sum;

	out->age = (double)w->age * age_factor(table, job->age);
	out->assoc = weigh(table, w->assoc, job->assoc);
	out->fairshare = score_unallocated(table, job->min_runtime) ? 0 : owner->fairshare;
	out->job_size = (double)w->job_size * size_factor(table, job);
	out->qos = weigh(table, w->qos, job->qos);
	out->site = carried(table, job->site);
	out->nice = carried(table, job->nice);
	out->partition = weigh(table, w->partition, job->partition);
	bounds = bounds_of(table, out->fairshare);
	for (uint32_t i = 0; i < job->parts_count; i++) {
		struct score_part *part = &job->parts[i];
		double others = columns(out, 0, weighted_tres(table, part->tres, NULL));

		part->priority = priority_of(weigh(table, w->partition, part->factor) + others, bounds);
	}
	sum = columns(out, out->partition, weighted_tres(table, job->tres, out->tres));
	out->priority = priority_of(sum, bounds);
	if (table->band > 0)
		settle(table, sum, out);
}

struct score_owner score_owner(const struct gpub_table *table, const struct gpub_place *place)
{
	struct score_owner owner = { .fairshare = place->fairshare };
	const struct gpub_slot *slot;

	if (!table->packed)
		return owner;
	owner.slot = place->slot < table->slot_count ? place->slot : 0;
	slot = &table->slots[owner.slot];
	owner.qos_unit = slot->qos_unit;
	owner.nice_first = slot->nice_first;
	owner.nice_count = slot->nice_count;
	return owner;
}

void score_job(const struct gpub_table *table, const struct score_owner *owner, const struct score_job *job,
	       struct score *out)
{
	for (uint32_t i = 0; out->tres && i < table->weights.tres_count; i++)
		out->tres[i] = 0;
	if (table->packed)
		pack(table, owner, job, out);
	else
		add_up(table, owner, job, out);
}
