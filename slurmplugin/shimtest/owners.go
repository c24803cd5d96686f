// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

/*
#cgo CFLAGS: -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include <string.h>
#include "../shim/owners.c"

// Go may know the number of an owner only.
static int knows(const struct owners *owners, uint32_t number)
{
	return owners_standing(owners, number) != NULL;
}

static double fairshare(const struct owners *owners, uint32_t number)
{
	return owners_standing(owners, number)->fairshare;
}

static void place(struct owners *owners, uint32_t number, double at)
{
	owners_place(owners, number, &(struct score_owner){ .fairshare = at });
}
*/
import "C"

import "unsafe"

// Owners is the shim's set of owners. Free gives its memory back.
type Owners struct{ set C.struct_owners }

// None is the number of an owner that isn't there. Associations below Low have
// their own as number, other owners the numbers from there on.
const (
	None = uint32(C.OWNERS_NONE)
	Low  = uint32(C.OWNERS_LOW)
)

// Free empties the set.
func (o *Owners) Free() { C.owners_free(&o.set) }

// Count is how many there are of those that are no associations below Low.
func (o *Owners) Count() uint32 { return uint32(o.set.count) }

// FindAssoc is the number of an association; of one below Low, if it has a place.
func (o *Owners) FindAssoc(id uint32) uint32 {
	return uint32(C.owners_find_assoc(&o.set, C.uint32_t(id)))
}

// AddAssoc is the number of an association, which is given one if it has none.
func (o *Owners) AddAssoc(id uint32) uint32 {
	return uint32(C.owners_add_assoc(&o.set, C.uint32_t(id)))
}

// FindName is the number of a user who named an account; nil if he named none.
func (o *Owners) FindName(uid uint32, account *string) uint32 {
	name := cString(account)
	defer C.free(unsafe.Pointer(name))
	return uint32(C.owners_find_name(&o.set, C.uint32_t(uid), name))
}

// AddName is the number of a user who named an account, who is given one if he
// has none. Of its strings nothing is left afterwards, as of a job record's.
func (o *Owners) AddName(uid uint32, account, user *string) uint32 {
	accountName, userName := cString(account), cString(user)
	defer wipe(accountName)
	defer wipe(userName)
	return uint32(C.owners_add_name(&o.set, C.uint32_t(uid), accountName, userName))
}

// Place has the owner of a number stand somewhere.
func (o *Owners) Place(number uint32, fairshare float64) {
	C.place(&o.set, C.uint32_t(number), C.double(fairshare))
}

// Standing is where the owner of a number stands; ok is false if nobody has said.
func (o *Owners) Standing(number uint32) (fairshare float64, ok bool) {
	if C.knows(&o.set, C.uint32_t(number)) == 0 {
		return 0, false
	}
	return float64(C.fairshare(&o.set, C.uint32_t(number))), true
}

// Names are the account and the user that an owner was added with; nil for
// none.
func (o *Owners) Names(number uint32) (account, user *string) {
	owner := unsafe.Slice(o.set.all, o.set.count)[number-Low]
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
