/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * faults.c: to be preloaded into slurmctld by tests of what the priority plugin
 * does when it gets no memory, or its library fails. The file named by FAULTS
 * says which: the first byte, if it isn't 0, that no call of malloc and the like
 * from priority_gpubudget.so is granted, the second that the library does not take
 * settings. Nobody else meets any fault.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

enum { MEMORY, SETTINGS, KINDS };

static const volatile unsigned char *faults;

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("FAULTS");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, KINDS, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		faults = mapped;
}

static bool fails(int kind)
{
	return faults && faults[kind];
}

struct search {
	uintptr_t address;
	bool found;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;

	(void)size;
	if (!info->dlpi_name || !strstr(info->dlpi_name, "/priority_gpubudget.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_LOAD && search->address >= from && search->address < from + part->p_memsz)
			search->found = true;
	}
	return 1;
}

static bool refused(const void *caller)
{
	struct search search = { .address = (uintptr_t)caller };

	if (!fails(MEMORY))
		return false;
	dl_iterate_phdr(look_at, &search);
	if (search.found)
		errno = ENOMEM;
	return search.found;
}

void *malloc(size_t size)
{
	return refused(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	return refused(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return refused(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

/* ---- the library's gpub_configure, which the plugin finds by dlsym ---- */

static int (*real_configure)(const void *weights);

static int configure(const void *weights)
{
	return fails(SETTINGS) ? -1 : real_configure(weights);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	static void *(*real)(void *restrict, const char *restrict);
	void *found;

	if (!real)
		real = (void *(*)(void *restrict, const char *restrict))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!real)
		real = (void *(*)(void *restrict, const char *restrict))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	found = real(handle, name);
	if (!found || strcmp(name, "gpub_configure"))
		return found;
	real_configure = (int (*)(const void *))found;
	return (void *)configure;
}
