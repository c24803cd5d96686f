// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

/*
#include <stdlib.h>
#include "../spank/minruntime.c"
*/
import "C"

import "unsafe"

// MinRuntimeLongest is the longest minimum runtime that can be said, in seconds.
const MinRuntimeLongest = uint64(C.LONGEST)

// MinRuntime is what the option --min-runtime takes a text for, in seconds; ok is
// false of what is no time, and then seconds is what was.
func MinRuntime(text string, was uint64) (seconds uint64, ok bool) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	s := C.uint64_t(was)
	taken := bool(C.minruntime_parse(c, &s))
	return uint64(s), taken
}

// MinRuntimeText is how it says a time.
func MinRuntimeText(seconds uint64) string {
	var out [C.MINRUNTIME_TEXT]C.char
	return C.GoString(C.minruntime_text(C.uint64_t(seconds), &out[0]))
}
