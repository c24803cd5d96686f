// SPDX-License-Identifier: GPL-2.0-or-later

package slurmnode

import "syscall"

// errGone is what reading a file of a process gives that has just ended.
const errGone = syscall.ESRCH
