// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

/*
#include <stdlib.h>
#include "../shim/spankenv.c"

static char **strings(uint32_t count) { return calloc(count, sizeof(char *)); }
static void set(char **strings, uint32_t at, char *text) { strings[at] = text; }
*/
import "C"

import "unsafe"

// SpankSeconds is what the shim makes of a minimum runtime in a job's SPANK
// environment; ok is false of what is no number of seconds.
func SpankSeconds(text string) (seconds int64, ok bool) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	var s C.int64_t
	if !C.spankenv_seconds(c, &s) {
		return 0, false
	}
	return int64(s), true
}

// SpankFind is what such an environment says, and where; ok is false if nothing.
func SpankFind(env ...string) (text string, at int, ok bool) {
	all := C.strings(C.uint32_t(len(env) + 1))
	defer C.free(unsafe.Pointer(all))
	for i, variable := range env {
		c := C.CString(variable)
		defer C.free(unsafe.Pointer(c))
		C.set(all, C.uint32_t(i), c)
	}
	var place C.uint32_t
	found := C.spankenv_find(all, C.uint32_t(len(env)), &place)
	if found == nil {
		return "", 0, false
	}
	return C.GoString(found), int(place), true
}
