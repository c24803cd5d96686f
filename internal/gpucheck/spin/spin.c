/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * spin SECONDS [BUSY_MS IDLE_MS]: keeps the first GPU of CUDA_VISIBLE_DEVICES at
 * work, all the time or in turns, and holds 256 MiB of its memory. It says
 * "ready" when it begins.
 *
 * It needs the driver only, no CUDA toolkit: the kernel is PTX, which the driver
 * compiles, and the driver's functions are looked up when it starts. The exit
 * status is 77 where there is no CUDA driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define HELD (256UL << 20)

/* One thread is enough: a GPU is at work while any kernel runs. */
static const char ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 nanoseconds)\n"
	"{\n"
	"	.reg .pred %p<2>;\n"
	"	.reg .u64 %rd<5>;\n"
	"	ld.param.u64 %rd1, [nanoseconds];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"again:\n"
	"	mov.u64 %rd3, %globaltimer;\n"
	"	sub.u64 %rd4, %rd3, %rd2;\n"
	"	setp.lt.u64 %p1, %rd4, %rd1;\n"
	"	@%p1 bra again;\n"
	"	ret;\n"
	"}\n";

static void *cuda;

static void *function(const char *name)
{
	void *f = dlsym(cuda, name);
	if (!f) {
		fprintf(stderr, "spin: the CUDA driver has no %s\n", name);
		exit(1);
	}
	return f;
}

/* Calls a function of the driver; ends if it fails. */
#define CALL(name, types, ...)                                                          \
	do {                                                                            \
		int (*f) types = (int (*) types)function(name);                         \
		int rc = f(__VA_ARGS__);                                                \
		if (rc) {                                                               \
			fprintf(stderr, "spin: %s: CUDA error %d\n", name, rc);         \
			return 1;                                                       \
		}                                                                       \
	} while (0)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: spin SECONDS [BUSY_MS IDLE_MS]\n");
		return 2;
	}
	double seconds = atof(argv[1]);
	long busy = argc == 4 ? atol(argv[2]) : 100, idle = argc == 4 ? atol(argv[3]) : 0;
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		fprintf(stderr, "spin: %s\n", dlerror());
		return 77;
	}
	int device;
	void *context, *module, *kernel;
	unsigned long long memory, nanoseconds = (unsigned long long)busy * 1000000;
	CALL("cuInit", (unsigned int), 0);
	CALL("cuDeviceGet", (int *, int), &device, 0);
	CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
	CALL("cuCtxSetCurrent", (void *), context);
	CALL("cuMemAlloc_v2", (unsigned long long *, size_t), &memory, HELD);
	CALL("cuModuleLoadData", (void **, const void *), &module, ptx);
	CALL("cuModuleGetFunction", (void **, void *, const char *), &kernel, module, "spin");
	puts("ready");
	fflush(stdout);
	for (double until = now() + seconds; now() < until; pause_ms(idle)) {
		void *arguments[] = {&nanoseconds};
		CALL("cuLaunchKernel",
		     (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		     kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
		CALL("cuCtxSynchronize", (void));
	}
	return 0;
}
