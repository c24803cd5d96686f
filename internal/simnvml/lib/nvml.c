/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A simulated libnvidia-ml.so.1: the calls that the meter makes, answered from
 * a text file instead of a driver. The file's format is in the comment of the
 * Go package above this folder (simnvml.go), which also writes it.
 *
 * It is compiled against the nvml.h that go-nvml carries, so that the compiler
 * holds every function here against its declaration there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include <nvml.h>

#include "state.h"

#define POLL_NS 10000000

/* What a handle points to. It stands for a UUID, not for a place in the
 * state, and is never freed: the state changes under the handles' holders. */
struct nvmlDevice_st {
	struct nvmlDevice_st *next;
	char uuid[NAME];
};

struct nvmlEventSet_st {
	int n;
	char uuid[MAX_GPUS][NAME];
	unsigned long long seen; /* number of the last event delivered */
	int changes;             /* inotify: tells of files that came into the state file's folder */
};

struct nvmlGpmSample_st {
	double area; /* percent x µs since the load's first step */
	long long at;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int clients;      /* nvmlInit less nvmlShutdown */
static int client_file = -1;
static struct nvmlDevice_st *handles;

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* ---- handles, and what every call begins with ---- */

static nvmlDevice_t handle(const char *uuid)
{
	struct nvmlDevice_st *h;
	for (h = handles; h; h = h->next)
		if (!strcmp(h->uuid, uuid))
			return (nvmlDevice_t){h};
	h = calloc(1, sizeof *h);
	if (!h)
		abort();
	snprintf(h->uuid, sizeof h->uuid, "%s", uuid);
	h->next = handles;
	handles = h;
	return (nvmlDevice_t){h};
}

struct call {
	struct gpu *gpu;           /* the device, or the device the instance is of */
	struct instance *instance; /* NULL if it is a whole device */
	int g, i;                  /* their places; i is -1 without an instance */
};

static nvmlReturn_t look_up(nvmlDevice_t device, struct call *c)
{
	*c = (struct call){.g = -1, .i = -1};
	if (!device.handle)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int g = 0; g < state->gpus; g++)
		if (!strcmp(state->gpu[g].uuid, device.handle->uuid)) {
			c->gpu = &state->gpu[c->g = g];
			return NVML_SUCCESS;
		}
	for (int i = 0; i < state->instances; i++)
		if (!strcmp(state->instance[i].uuid, device.handle->uuid)) {
			c->instance = &state->instance[c->i = i];
			c->gpu = &state->gpu[c->g = c->instance->gpu];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT; /* it is gone */
}

static const struct fault *fault(const char *call, int gpu)
{
	for (int i = 0; i < state->faults; i++) {
		const struct fault *f = &state->fault[i];
		if (!strcmp(f->call, call) && (f->gpu == -1 || f->gpu == gpu))
			return f;
	}
	return NULL;
}

/* Takes the lock, waits as long as the state says that the call hangs, and
 * returns the error that it says the call has. leave() gives the lock back. */
static nvmlReturn_t enter(const char *name, bool with_device, nvmlDevice_t device, struct call *c)
{
	pthread_mutex_lock(&lock);
	if (!clients)
		return NVML_ERROR_UNINITIALIZED;
	for (;;) {
		refresh();
		nvmlReturn_t rc = NVML_SUCCESS;
		*c = (struct call){.g = -1, .i = -1};
		if (with_device)
			rc = look_up(device, c);
		const struct fault *f = fault(name, c->g);
		if (f && f->code < 0) {
			pthread_mutex_unlock(&lock);
			nap();
			pthread_mutex_lock(&lock);
			continue;
		}
		if (rc)
			return rc;
		if (f)
			return (nvmlReturn_t)f->code;
		return c->gpu && c->gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
	}
}

static void leave(int *unused)
{
	(void)unused;
	pthread_mutex_unlock(&lock);
}

#define BEGIN(with_device, device)                                                   \
	struct call c;                                                               \
	__attribute__((cleanup(leave))) int held __attribute__((unused)) = 1;        \
	nvmlReturn_t begun = enter(__func__, with_device, device, &c);               \
	if (begun)                                                                   \
	return begun
#define BEGIN_DEVICE(device) BEGIN(true, device)
#define BEGIN_SYSTEM() BEGIN(false, (nvmlDevice_t){0})

static nvmlReturn_t give_text(const char *from, char *to, unsigned int size)
{
	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	return (unsigned int)snprintf(to, size, "%s", from) < size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t give(unsigned long long from, unsigned int *to)
{
	if (from == ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	*to = (unsigned int)from;
	return NVML_SUCCESS;
}

/* ---- start and end ---- */

/* While there is a client, the file PATH.clients is locked, as a device file
 * that is open keeps a GPU from being reset. */
static void hold_clients(void)
{
	char name[4200];
	snprintf(name, sizeof name, "%s.clients", getenv("SIMNVML_STATE"));
	client_file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (client_file >= 0)
		flock(client_file, LOCK_SH);
}

static nvmlReturn_t start(void)
{
	const char *path = getenv("SIMNVML_STATE");
	if (!path || !*path) {
		fprintf(stderr, "simnvml: SIMNVML_STATE names no state file\n");
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	return open_state(path) ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

static nvmlReturn_t init(const char *name)
{
	pthread_mutex_lock(&lock);
	nvmlReturn_t rc = clients ? NVML_SUCCESS : start();
	clients += !rc;
	pthread_mutex_unlock(&lock);
	if (rc)
		return rc;

	struct call c;
	rc = enter(name, false, (nvmlDevice_t){0}, &c);
	if (rc)
		clients--;
	else if (client_file < 0)
		hold_clients();
	pthread_mutex_unlock(&lock);
	return rc;
}

nvmlReturn_t nvmlInit_v2(void) { return init(__func__); }
nvmlReturn_t nvmlInit(void) { return init(__func__); }

nvmlReturn_t nvmlShutdown(void)
{
	BEGIN_SYSTEM();
	if (!--clients && client_file >= 0) {
		close(client_file);
		client_file = -1;
	}
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	static __thread char s[32];
	snprintf(s, sizeof s, "simulated error %d", (int)result);
	return s;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	BEGIN_SYSTEM();
	return give_text(state->driver, version, length);
}

/* The first version of a function whose arguments have stayed the same. */
#define SAME(old, new, params, args) \
	nvmlReturn_t old params { return new args; }

/* ---- identity ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	BEGIN_SYSTEM();
	return give((unsigned long long)state->gpus, count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	BEGIN_SYSTEM();
	if (index >= (unsigned int)state->gpus)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct fault *f = fault(__func__, (int)index);
	if (f && f->code >= 0)
		return (nvmlReturn_t)f->code;
	if (state->gpu[index].lost)
		return NVML_ERROR_GPU_IS_LOST;
	*device = handle(state->gpu[index].uuid);
	return NVML_SUCCESS;
}

SAME(nvmlDeviceGetCount, nvmlDeviceGetCount_v2, (unsigned int *count), (count))
SAME(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device), (index, device))

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	BEGIN_DEVICE(device);
	return give_text(device.handle->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	BEGIN_DEVICE(device);
	return give_text(c.gpu->name, name, length);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	BEGIN_DEVICE(device);
	return c.instance ? NVML_ERROR_NOT_SUPPORTED : give(c.gpu->minor, minor);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	BEGIN_DEVICE(device);
	memset(pci, 0, sizeof *pci);
	if (sscanf(c.gpu->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
		return NVML_ERROR_NOT_SUPPORTED;
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	return NVML_SUCCESS;
}

SAME(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *pci), (device, pci))
SAME(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *pci), (device, pci))

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	BEGIN_DEVICE(device);
	if (c.gpu->mig == ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = (unsigned int)c.gpu->mig;
	*pending = (unsigned int)(c.gpu->mig_pending == ABSENT ? c.gpu->mig : c.gpu->mig_pending);
	return NVML_SUCCESS;
}

/* As many places as there are slices, or more if the file has more. */
static unsigned int places(int g)
{
	unsigned int n = 0;
	for (int i = 0; i < state->instances; i++)
		n += state->instance[i].gpu == g;
	return n > state->gpu[g].slices ? n : (unsigned int)state->gpu[g].slices;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	BEGIN_DEVICE(device);
	return give(c.gpu->mig == 1 ? places(c.g) : 0, count);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	BEGIN_DEVICE(device);
	if (c.gpu->mig == ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= places(c.g))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < state->instances; i++)
		if (state->instance[i].gpu == c.g && !index--) {
			*mig = handle(state->instance[i].uuid);
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	BEGIN_DEVICE(device);
	return c.instance ? give(c.instance->gi, id) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	BEGIN_DEVICE(device);
	return c.instance ? give(c.instance->ci, id) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	BEGIN_DEVICE(device);
	if (!c.instance)
		return NVML_ERROR_NOT_SUPPORTED;
	*a = (nvmlDeviceAttributes_t){
		.gpuInstanceSliceCount = (unsigned int)c.instance->slices,
		.computeInstanceSliceCount = (unsigned int)(c.instance->ci_slices ? c.instance->ci_slices : c.instance->slices),
		.memorySizeMB = c.instance->memory >> 20,
	};
	return NVML_SUCCESS;
}

SAME(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2, (nvmlDevice_t device, nvmlDeviceAttributes_t *a), (device, a))

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
	static const unsigned int slices[] = {
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_GPU_INSTANCE_PROFILE_2_SLICE] = 2,
		[NVML_GPU_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_GPU_INSTANCE_PROFILE_4_SLICE] = 4,
		[NVML_GPU_INSTANCE_PROFILE_7_SLICE] = 7, [NVML_GPU_INSTANCE_PROFILE_8_SLICE] = 8,
		[NVML_GPU_INSTANCE_PROFILE_6_SLICE] = 6,
	};
	BEGIN_DEVICE(device);
	if (c.instance || c.gpu->mig == ABSENT || profile >= sizeof slices / sizeof *slices || slices[profile] > c.gpu->slices)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuInstanceProfileInfo_t){.id = profile, .sliceCount = slices[profile], .instanceCount = 1};
	return NVML_SUCCESS;
}

/* ---- readings ---- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	BEGIN_DEVICE(device);
	if (c.instance || c.gpu->mig == 1 || !c.gpu->load.n)
		return NVML_ERROR_NOT_SUPPORTED;
	long long now = now_us();
	struct work w = work_of(c.gpu);
	double percent = worked(&w, now) ? mean(&c.gpu->load, now - (long long)c.gpu->period, now) : 0;
	*u = (nvmlUtilization_t){.gpu = (unsigned int)lround(percent)};
	return NVML_SUCCESS;
}

/* One sample each period, at its multiples; the last `ring` of them are kept. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
				  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
	BEGIN_DEVICE(device);
	if (!count || !value_type)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct gpu *g = c.gpu;
	if (c.instance || g->mig == 1 || !g->load.n || !g->ring || type != NVML_GPU_UTILIZATION_SAMPLES)
		return NVML_ERROR_NOT_SUPPORTED;
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	unsigned long long now = (unsigned long long)now_us(), until = now < g->sampled_until ? now : g->sampled_until;
	long long period = (long long)g->period, ring = (long long)g->ring;
	long long last = (long long)until / period, first = last - ring + 1;
	if (last <= (long long)since / period)
		return NVML_ERROR_NOT_FOUND;
	if (!samples) { /* the driver too tells the size of its buffer */
		*count = (unsigned int)ring;
		return NVML_SUCCESS;
	}
	unsigned int n = 0;
	struct work w = work_of(g);
	for (long long i = 0; i < ring && n < *count; i++) {
		long long k = first + (i + (long long)g->sample_start) % ring;
		if (k <= (long long)since / period)
			continue;
		samples[n].timeStamp = (unsigned long long)(k * period);
		double percent = worked(&w, k * period) ? mean(&g->load, (k - 1) * period, k * period) : 0;
		samples[n++].sampleValue.uiVal = (unsigned int)lround(percent);
	}
	*count = n;
	return NVML_SUCCESS;
}

static nvmlReturn_t memory(const struct call *c, unsigned long long *total, unsigned long long *reserved, unsigned long long *used)
{
	*total = c->instance ? c->instance->memory : c->gpu->memory;
	*used = c->instance ? c->instance->used : c->gpu->used;
	*reserved = c->instance ? 0 : c->gpu->reserved;
	return *total == ABSENT || *used == ABSENT ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
	BEGIN_DEVICE(device);
	unsigned long long reserved;
	nvmlReturn_t rc = memory(&c, &m->total, &reserved, &m->used);
	m->used += reserved;
	m->free = m->total - m->used;
	return rc;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	BEGIN_DEVICE(device);
	if (m->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t rc = memory(&c, &m->total, &m->reserved, &m->used);
	m->free = m->total - m->used - m->reserved;
	return rc;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	BEGIN_DEVICE(device);
	return c.instance ? NVML_ERROR_NOT_SUPPORTED : give(c.gpu->power, milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *errors)
{
	BEGIN_DEVICE(device);
	if (c.instance || type > NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter > NVML_AGGREGATE_ECC)
		return NVML_ERROR_INVALID_ARGUMENT;
	*errors = c.gpu->ecc[2 * counter + type];
	return *errors == ABSENT ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* ---- processes ---- */

static bool listed(const struct process *p, const struct call *c, char kind)
{
	return p->kind == kind && p->gpu == c->g && (c->i < 0 || p->instance == c->i);
}

/*
 * Writes the processes of a kind into rows of the given size, the room being
 * *count rows. With garbage the rows are written 32 bytes apart wherever the
 * caller's are 24, as the drivers 535.43 to 535.86 did, but not beyond the
 * caller's memory.
 */
static nvmlReturn_t list(const struct call *c, char kind, unsigned int *count, void *rows, size_t size)
{
	unsigned int n = 0, room = *count;
	for (int i = 0; i < state->processes; i++)
		n += listed(&state->process[i], c, kind);
	*count = n;
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	size_t stride = c->gpu->garbage && size == sizeof(nvmlProcessInfo_t) ? 32 : size, at = 0;
	if (rows)
		memset(rows, 0, room * size);
	for (int i = 0; i < state->processes; i++) {
		const struct process *p = &state->process[i];
		if (!listed(p, c, kind))
			continue;
		nvmlProcessInfo_t row = {.pid = (unsigned int)p->pid, .usedGpuMemory = p->memory, .gpuInstanceId = NONE, .computeInstanceId = NONE};
		if (p->instance >= 0) {
			row.gpuInstanceId = (unsigned int)state->instance[p->instance].gi;
			row.computeInstanceId = (unsigned int)state->instance[p->instance].ci;
		}
		if (at + size <= room * size)
			memcpy((char *)rows + at, &row, size);
		at += stride;
	}
	return NVML_SUCCESS;
}

#define LIST(function, kind, row)                                                          \
	nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, row *rows)         \
	{                                                                                  \
		BEGIN_DEVICE(device);                                                      \
		return list(&c, kind, count, rows, sizeof *rows);                          \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, 'c', nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c', nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 'g', nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g', nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'm', nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm', nvmlProcessInfo_t)

/* ---- GPM ---- */

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	BEGIN_DEVICE(device);
	support->isSupportedDevice = c.gpu->gpm;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	BEGIN_SYSTEM();
	sample->handle = calloc(1, sizeof *sample->handle);
	return sample->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	BEGIN_SYSTEM();
	free(sample.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
	BEGIN_DEVICE(device);
	if (!c.gpu->gpm)
		return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < state->instances; i++) {
		const struct instance *in = &state->instance[i];
		if (in->gpu == c.g && in->gi == gi && in->load.n) {
			*sample.handle = (struct nvmlGpmSample_st){.at = now_us(), .area = area(&in->load, now_us())};
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	BEGIN_SYSTEM();
	if (get->version != NVML_GPM_METRICS_GET_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	long long passed = get->sample2.handle->at - get->sample1.handle->at;
	if (passed <= 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < get->numMetrics; i++) {
		nvmlGpmMetric_t *m = &get->metrics[i];
		m->nvmlReturn = m->metricId == NVML_GPM_METRIC_GRAPHICS_UTIL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		if (!m->nvmlReturn)
			m->value = (get->sample2.handle->area - get->sample1.handle->area) / (double)passed;
	}
	return NVML_SUCCESS;
}

/* ---- events ---- */

static unsigned long long last_xid(void)
{
	unsigned long long last = 0;
	for (int i = 0; i < state->xids; i++)
		if (state->xid[i].number > last)
			last = state->xid[i].number;
	return last;
}

/* The real wait sleeps in the kernel, so this one does too: whoever measures
 * what the meter costs must not measure us. */
static int watch_folder(void)
{
	char folder[4200];
	snprintf(folder, sizeof folder, "%s", getenv("SIMNVML_STATE"));
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (fd >= 0 && inotify_add_watch(fd, dirname(folder), IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	BEGIN_SYSTEM();
	int fd = watch_folder();
	if (fd < 0)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	set->handle = calloc(1, sizeof *set->handle);
	if (!set->handle) {
		close(fd);
		return NVML_ERROR_MEMORY;
	}
	set->handle->seen = last_xid();
	set->handle->changes = fd;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	BEGIN_SYSTEM();
	close(set.handle->changes);
	free(set.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	BEGIN_DEVICE(device);
	*types = c.gpu->no_events ? 0 : nvmlEventTypeXidCriticalError;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	BEGIN_DEVICE(device);
	if (c.gpu->no_events || types != nvmlEventTypeXidCriticalError)
		return NVML_ERROR_NOT_SUPPORTED;
	struct nvmlEventSet_st *s = set.handle;
	if (!s || s->n == MAX_GPUS)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(s->uuid[s->n++], NAME, "%s", device.handle->uuid);
	return NVML_SUCCESS;
}

/* The oldest event that the set has not seen, if it is of a GPU of the set. */
static const struct xid *next_xid(const struct nvmlEventSet_st *set)
{
	const struct xid *next = NULL;
	for (int i = 0; i < state->xids; i++) {
		const struct xid *x = &state->xid[i];
		bool ours = false;
		for (int g = 0; g < set->n; g++)
			ours |= !strcmp(set->uuid[g], x->gpu);
		if (ours && x->number > set->seen && (!next || x->number < next->number))
			next = x;
	}
	return next;
}

static bool has_lost(const struct nvmlEventSet_st *set)
{
	for (int n = 0; n < set->n; n++)
		for (int g = 0; g < state->gpus; g++)
			if (state->gpu[g].lost && !strcmp(state->gpu[g].uuid, set->uuid[n]))
				return true;
	return false;
}

/* Events that are there come first. Then, if a GPU of the set is lost, the wait
 * fails at once, each time. */
static nvmlReturn_t take_xid(nvmlEventSet_t set, nvmlEventData_t *data)
{
	const struct xid *x = next_xid(set.handle);
	if (!x)
		return has_lost(set.handle) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
	set.handle->seen = x->number;
	*data = (nvmlEventData_t){
		.device = handle(x->gpu), .eventType = nvmlEventTypeXidCriticalError, .eventData = x->code,
		.gpuInstanceId = (unsigned int)x->gi, .computeInstanceId = (unsigned int)x->ci,
	};
	return NVML_SUCCESS;
}

/* Waits until a file has come into the folder, or for the time that is left. */
static void wait_for_change(int fd, long long left_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, (int)left_ms) > 0) {
		char events[4096] __attribute__((aligned(8)));
		while (read(fd, events, sizeof events) > 0)
			;
	}
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	for (long long until = t.tv_sec * 1000LL + t.tv_nsec / 1000000 + timeout_ms;;) {
		{
			BEGIN_SYSTEM();
			nvmlReturn_t rc = take_xid(set, data);
			if (rc != NVML_ERROR_TIMEOUT)
				return rc;
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
		long long left = until - t.tv_sec * 1000LL - t.tv_nsec / 1000000;
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		wait_for_change(set.handle->changes, left);
	}
}

SAME(nvmlEventSetWait, nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms), (set, data, timeout_ms))
