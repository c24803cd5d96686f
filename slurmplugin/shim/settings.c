/* SPDX-License-Identifier: GPL-2.0-or-later */
/* settings.c: slurm.conf's priority settings in the bridge's form. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shim.h"

static struct settings *now;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER; /* one at a time */
static bool stale;

static const struct {
	uint64_t slurm;
	uint32_t bridge;
} flag_map[] = {
	{ PRIORITY_FLAGS_ACCRUE_ALWAYS, GPUB_FLAG_ACCRUE_ALWAYS },
	{ PRIORITY_FLAGS_CALCULATE_RUNNING, GPUB_FLAG_CALCULATE_RUNNING },
	{ PRIORITY_FLAGS_DEPTH_OBLIVIOUS, GPUB_FLAG_DEPTH_OBLIVIOUS },
	{ PRIORITY_FLAGS_FAIR_TREE, GPUB_FLAG_FAIR_TREE },
	{ PRIORITY_FLAGS_INCR_ONLY, GPUB_FLAG_INCR_ONLY },
	{ PRIORITY_FLAGS_MAX_TRES, GPUB_FLAG_MAX_TRES },
	{ GPUB_SLURM_MAX_TRES_GRES, GPUB_FLAG_MAX_TRES_GRES },
	{ PRIORITY_FLAGS_NO_NORMAL_ASSOC, GPUB_FLAG_NO_NORMAL_ASSOC },
	{ PRIORITY_FLAGS_NO_NORMAL_PART, GPUB_FLAG_NO_NORMAL_PART },
	{ PRIORITY_FLAGS_NO_NORMAL_QOS, GPUB_FLAG_NO_NORMAL_QOS },
	{ PRIORITY_FLAGS_NO_NORMAL_TRES, GPUB_FLAG_NO_NORMAL_TRES },
	{ PRIORITY_FLAGS_SIZE_RELATIVE, GPUB_FLAG_SIZE_RELATIVE },
};

static uint32_t bridge_flags(uint64_t slurm)
{
	uint32_t flags = 0;

	for (size_t i = 0; i < sizeof(flag_map) / sizeof(flag_map[0]); i++)
		if (slurm & flag_map[i].slurm)
			flags |= flag_map[i].bridge;
	return flags;
}

const struct settings *settings_now(void)
{
	return __atomic_load_n(&now, __ATOMIC_ACQUIRE);
}

static int find_gpu_tres(void)
{
	slurmdb_tres_rec_t gpu = { .type = "gres", .name = "gpu" };

	return assoc_mgr_find_tres_pos(&gpu, false);
}

/* NULL if memory ran out. */
static struct settings *read_settings(void)
{
	static uint64_t generation;
	struct settings *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->weights = (struct gpub_weights){
		.generation = ++generation,
		.age = slurm_conf.priority_weight_age,
		.assoc = slurm_conf.priority_weight_assoc,
		.fairshare = slurm_conf.priority_weight_fs,
		.job_size = slurm_conf.priority_weight_js,
		.partition = slurm_conf.priority_weight_part,
		.qos = slurm_conf.priority_weight_qos,
		.max_age = slurm_conf.priority_max_age,
		.flags = bridge_flags(slurm_conf.priority_flags),
		.favor_small = slurm_conf.priority_favor_small,
		.damp_factor = GPUB_CONF_DAMP_FACTOR,
		.tres_count = slurmctld_tres_cnt,
	};
	s->tres = slurm_get_tres_weight_array(slurm_conf.priority_weight_tres, slurmctld_tres_cnt, true);
	s->weights.tres = s->tres;
	s->gpu_tres = find_gpu_tres();
	return s;
}

/* The library says in each table by which settings it was made: were they in
 * force here before it has them, none would fit any more. */
static bool load(const struct gpub_engine *e)
{
	struct settings *s = read_settings();

	if (s && e->configure(&s->weights) == GPUB_OK) {
		s->retired = now;
		__atomic_store_n(&now, s, __ATOMIC_RELEASE);
		return true;
	}
	if (s)
		xfree(s->tres);
	free(s);
	return false;
}

int settings_load(void)
{
	const struct gpub_engine *e = __atomic_load_n(&engine, __ATOMIC_ACQUIRE);
	static bool told;
	bool ok, back;

	if (!e)
		return SLURM_ERROR;
	pthread_mutex_lock(&loading);
	ok = load(e);
	back = ok && told;
	if (first_failure(&told, !ok))
		error("gpubudget: the priority settings of slurm.conf were not taken over%s",
		      now ? ": those before stay in force, and every pass tries again" : "");
	if (back)
		info("gpubudget: the priority settings of slurm.conf are taken over now");
	__atomic_store_n(&stale, !ok, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&loading);
	return ok ? SLURM_SUCCESS : SLURM_ERROR;
}

bool settings_stale(void)
{
	return __atomic_load_n(&stale, __ATOMIC_RELAXED);
}

void settings_retry(void)
{
	slurmctld_lock_t locks = { .conf = READ_LOCK };

	if (!settings_stale())
		return;
	lock_slurmctld(locks);
	settings_load();
	unlock_slurmctld(locks);
}

char *priority_parameter(const char *name)
{
	const char *p = slurm_conf.priority_params;
	size_t length = strlen(name);

	while (p && *p) {
		if (!strncasecmp(p, name, length) && p[length] == '=')
			return strndup(p + length + 1, strcspn(p + length + 1, ","));
		p += strcspn(p, ",");
		p += *p == ',';
	}
	return NULL;
}
