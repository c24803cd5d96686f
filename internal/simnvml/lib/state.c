/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "state.h"

struct state *state;
static char path[4096];
static struct stat seen; /* of the state file that was read */

static int bad(int line, const char *why, const char *what)
{
	fprintf(stderr, "simnvml: %s:%d: %s '%s'\n", path, line, why, what);
	return -1;
}

static bool number(const char *s, unsigned long long *to)
{
	char *end;
	errno = 0;
	*to = strtoull(s, &end, 10);
	return !errno && end != s && !*end && *s != '-';
}

/* "40", or steps "AT:PERCENT AT:PERCENT ..." with AT in µs since 1970. */
static bool parse_load(char *s, struct load *l)
{
	l->n = 0;
	for (char *word, *rest = s; (word = strtok_r(rest, " ", &rest));) {
		if (l->n == MAX_STEPS)
			return false;
		long long at = 0;
		double percent;
		int end = 0;
		if (sscanf(word, "%lld:%lf%n", &at, &percent, &end) != 2) {
			at = 0;
			end = 0;
			if (sscanf(word, "%lf%n", &percent, &end) != 1)
				return false;
		}
		if (word[end] || (l->n && at <= l->at[l->n - 1]))
			return false;
		l->at[l->n] = at;
		l->percent[l->n++] = percent;
	}
	return l->n > 0;
}

static bool flag(const char *s, bool *to)
{
	*to = !strcmp(s, "yes");
	return *to || !strcmp(s, "no");
}

static bool text(const char *s, char *to, size_t size)
{
	return (size_t)snprintf(to, size, "%s", s) < size;
}

static bool parse_fault(struct state *s, int gpu, char *value, bool hang)
{
	if (s->faults == MAX_FAULTS)
		return false;
	struct fault *f = &s->fault[s->faults++];
	f->gpu = gpu;
	f->code = -1;
	char *code = strchr(value, ' ');
	unsigned long long c = 0;
	if (hang)
		return !code && text(value, f->call, NAME);
	if (!code)
		return false;
	*code++ = 0;
	if (!number(code, &c))
		return false;
	f->code = (int)c;
	return text(value, f->call, NAME);
}

struct key {
	const char *name;
	unsigned long long *to;
};

static bool set_number(const struct key *keys, const char *key, const char *value)
{
	for (; keys->name; keys++)
		if (!strcmp(keys->name, key))
			return number(value, keys->to);
	return false;
}

static bool set_top(struct state *s, const char *key, char *value)
{
	if (!strcmp(key, "driver"))
		return text(value, s->driver, NAME);
	if (!strcmp(key, "now"))
		return number(value, &s->now);
	return false;
}

static bool set_ecc(struct gpu *g, const char *value)
{
	return sscanf(value, "%llu %llu %llu %llu", &g->ecc[0], &g->ecc[1], &g->ecc[2], &g->ecc[3]) == 4;
}

static bool set_gpu(struct gpu *g, const char *key, char *value)
{
	if (!strcmp(key, "uuid"))
		return text(value, g->uuid, sizeof g->uuid);
	if (!strcmp(key, "pci"))
		return text(value, g->pci, sizeof g->pci);
	if (!strcmp(key, "name"))
		return text(value, g->name, sizeof g->name);
	if (!strcmp(key, "working"))
		return text(value, g->working, sizeof g->working);
	if (!strcmp(key, "utilization"))
		return parse_load(value, &g->load);
	if (!strcmp(key, "ecc"))
		return set_ecc(g, value);
	const struct { const char *name; bool *to; } flags[] = {
		{"ramp", &g->load.ramp}, {"gpm", &g->gpm}, {"lost", &g->lost},
		{"no_events", &g->no_events}, {"garbage_pids", &g->garbage},
	};
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
		if (!strcmp(flags[i].name, key))
			return flag(value, flags[i].to);
	const struct key keys[] = {
		{"minor", &g->minor}, {"memory", &g->memory}, {"memory_reserved", &g->reserved}, {"memory_used", &g->used},
		{"power", &g->power}, {"mig", &g->mig}, {"mig_pending", &g->mig_pending}, {"slices", &g->slices},
		{"sample_count", &g->ring}, {"sample_period", &g->period},
		{"sampled_until", &g->sampled_until}, {"sample_start", &g->sample_start}, {0},
	};
	return set_number(keys, key, value);
}

static bool set_instance(struct instance *i, const char *key, char *value)
{
	if (!strcmp(key, "uuid"))
		return text(value, i->uuid, sizeof i->uuid);
	if (!strcmp(key, "utilization"))
		return parse_load(value, &i->load);
	const struct key keys[] = {
		{"gi", &i->gi}, {"ci", &i->ci}, {"slices", &i->slices}, {"ci_slices", &i->ci_slices},
		{"memory", &i->memory}, {"memory_used", &i->used}, {0},
	};
	return set_number(keys, key, value);
}

static bool set_process(struct process *p, const char *key, char *value)
{
	if (!strcmp(key, "kind"))
		return (p->kind = *value) && strchr("cgm", *value);
	const struct key keys[] = {{"pid", &p->pid}, {"memory", &p->memory}, {0}};
	return set_number(keys, key, value);
}

static bool set_xid(struct xid *x, const char *key, char *value)
{
	if (!strcmp(key, "gpu"))
		return text(value, x->gpu, sizeof x->gpu);
	const struct key keys[] = {{"number", &x->number}, {"code", &x->code}, {"gi", &x->gi}, {"ci", &x->ci}, {0}};
	return set_number(keys, key, value);
}

enum section { TOP, GPU, INSTANCE, PROCESS, XID };

static bool open_section(struct state *s, const char *name, enum section *in)
{
	if (!strcmp(name, "[gpu]") && s->gpus < MAX_GPUS) {
		*in = GPU;
		s->gpu[s->gpus++] = (struct gpu){
			.minor = ABSENT, .memory = ABSENT, .reserved = 0, .used = ABSENT, .power = ABSENT, .mig = ABSENT,
			.mig_pending = ABSENT, .slices = 7, .ring = 120, .period = 166667, .sampled_until = ABSENT, .ecc = {ABSENT, ABSENT, ABSENT, ABSENT},
		};
		return true;
	}
	if (!strcmp(name, "[instance]") && s->gpus && s->instances < MAX_INSTANCES) {
		*in = INSTANCE;
		s->instance[s->instances++] = (struct instance){.gpu = s->gpus - 1, .used = ABSENT};
		return true;
	}
	if (!strcmp(name, "[process]") && s->gpus && s->processes < MAX_PROCESSES) {
		int i = s->instances - 1;
		if (i >= 0 && s->instance[i].gpu != s->gpus - 1)
			i = -1;
		*in = PROCESS;
		s->process[s->processes++] = (struct process){.gpu = s->gpus - 1, .instance = i, .memory = ABSENT, .kind = 'c'};
		return true;
	}
	if (!strcmp(name, "[xid]") && s->xids < MAX_XIDS) {
		*in = XID;
		s->xid[s->xids++] = (struct xid){.gi = NONE, .ci = NONE};
		return true;
	}
	return false;
}

static bool set(struct state *s, enum section in, const char *key, char *value)
{
	if (in <= GPU && (!strcmp(key, "fail") || !strcmp(key, "hang")))
		return parse_fault(s, in == GPU ? s->gpus - 1 : -1, value, *key == 'h');
	switch (in) {
	case TOP:
		return set_top(s, key, value);
	case GPU:
		return set_gpu(&s->gpu[s->gpus - 1], key, value);
	case INSTANCE:
		return set_instance(&s->instance[s->instances - 1], key, value);
	case PROCESS:
		return set_process(&s->process[s->processes - 1], key, value);
	default:
		return set_xid(&s->xid[s->xids - 1], key, value);
	}
}

static char *trim(char *s)
{
	s += strspn(s, " \t");
	for (char *end = s + strlen(s); end > s && strchr(" \t\r\n", end[-1]);)
		*--end = 0;
	return s;
}

static int parse(FILE *f, struct state *s)
{
	static char line[65536];
	enum section in = TOP;
	text("550.54.15", s->driver, NAME);
	s->now = ABSENT;
	for (int n = 1; fgets(line, sizeof line, f); n++) {
		char *key = trim(line);
		if (!*key || *key == '#')
			continue;
		if (*key == '[') {
			if (!open_section(s, key, &in))
				return bad(n, "no such section, or not here, or too many:", key);
			continue;
		}
		char *value = strchr(key, '=');
		if (!value)
			return bad(n, "neither [section] nor key = value:", key);
		*value++ = 0;
		key = trim(key);
		if (!set(s, in, key, trim(value)))
			return bad(n, "no such key here, or no such value:", key);
	}
	return 0;
}

static int unreadable(void)
{
	static bool said;
	if (!said)
		fprintf(stderr, "simnvml: %s: %s\n", path, strerror(errno));
	said = true;
	return -1;
}

int refresh(void)
{
	struct stat now;
	if (stat(path, &now))
		return unreadable();
	if (now.st_ino == seen.st_ino && now.st_dev == seen.st_dev && now.st_size == seen.st_size &&
	    now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
		return state ? 0 : -1;
	FILE *f = fopen(path, "re");
	if (!f)
		return unreadable();
	fstat(fileno(f), &seen);
	struct state *fresh = calloc(1, sizeof *fresh); /* untouched pages cost nothing */
	int rc = fresh ? parse(f, fresh) : -1;
	fclose(f);
	if (rc) {
		free(fresh);
		return rc;
	}
	free(state);
	state = fresh;
	return 0;
}

int open_state(const char *name)
{
	if ((size_t)snprintf(path, sizeof path, "%s", name) >= sizeof path)
		return -1;
	free(state);
	state = NULL;
	seen = (struct stat){0};
	return refresh();
}

long long now_us(void)
{
	if (state->now != ABSENT)
		return (long long)state->now;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

double area(const struct load *l, long long t)
{
	double sum = 0;
	for (int i = 0; i < l->n && l->at[i] < t; i++) {
		long long from = l->at[i], until = i + 1 < l->n ? l->at[i + 1] : LLONG_MAX;
		double a = l->percent[i], b = a;
		if (l->ramp && i + 1 < l->n) {
			b = l->percent[i + 1];
			if (t < until)
				b = a + (b - a) * (double)(t - from) / (double)(until - from);
		}
		sum += (a + b) / 2 * (double)((t < until ? t : until) - from);
	}
	return sum;
}

double mean(const struct load *l, long long from, long long until)
{
	return until > from ? (area(l, until) - area(l, from)) / (double)(until - from) : 0;
}

struct work work_of(const struct gpu *g)
{
	struct work w = {.now = !*g->working, .since = 0};
	struct stat s;
	DIR *dir = *g->working ? opendir(g->working) : NULL;
	if (!dir)
		return w;
	for (struct dirent *e; !w.now && (e = readdir(dir));)
		w.now = *e->d_name != '.';
	if (!fstat(dirfd(dir), &s))
		w.since = s.st_mtim.tv_sec * 1000000LL + s.st_mtim.tv_nsec / 1000;
	closedir(dir);
	return w;
}

/* The folder was last changed by the one that came or went: before that it was
 * the other way round. */
bool worked(const struct work *w, long long t)
{
	return t >= w->since ? w->now : !w->now;
}
