/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fresh.h"

#include "../../preempt/running.c"
