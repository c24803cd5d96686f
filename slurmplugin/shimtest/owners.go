// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

/*
#cgo CFLAGS: -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include <string.h>
#include "../shim/owners.c"
*/
import "C"

import "unsafe"

// Owners is the shim's set of owners. Free gives its memory back.
type Owners struct{ set C.struct_owners }

// None is the place of an owner that isn't there.
const None = uint32(C.OWNERS_NONE)

// Free empties the set.
func (o *Owners) Free() { C.owners_free(&o.set) }

// Count is how many there are.
func (o *Owners) Count() uint32 { return uint32(o.set.count) }

// FindAssoc is the place of an association.
func (o *Owners) FindAssoc(id uint32) uint32 {
	return uint32(C.owners_find_assoc(&o.set, C.uint32_t(id)))
}

// AddAssoc is the place of an association, which is made if there is none.
func (o *Owners) AddAssoc(id uint32) uint32 {
	return uint32(C.owners_add_assoc(&o.set, C.uint32_t(id)))
}

// FindName is the place of a user who named an account; nil if he named none.
func (o *Owners) FindName(uid uint32, account *string) uint32 {
	name := cString(account)
	defer C.free(unsafe.Pointer(name))
	return uint32(C.owners_find_name(&o.set, C.uint32_t(uid), name))
}

// AddName is the place of a user who named an account, which is made if there
// is none. Of its strings nothing is left afterwards, as of a job record's.
func (o *Owners) AddName(uid uint32, account, user *string) uint32 {
	accountName, userName := cString(account), cString(user)
	defer wipe(accountName)
	defer wipe(userName)
	return uint32(C.owners_add_name(&o.set, C.uint32_t(uid), accountName, userName))
}

// Names are the account and the user that an owner was added with; nil for
// none.
func (o *Owners) Names(at uint32) (account, user *string) {
	owner := unsafe.Slice(o.set.all, o.set.count)[at]
	return goString(owner.account), goString(owner.user)
}

func wipe(s *C.char) {
	if s == nil {
		return
	}
	C.memset(unsafe.Pointer(s), '?', C.strlen(s))
	C.free(unsafe.Pointer(s))
}

func goString(s *C.char) *string {
	if s == nil {
		return nil
	}
	text := C.GoString(s)
	return &text
}

func cString(s *string) *C.char {
	if s == nil {
		return nil
	}
	return C.CString(*s)
}
