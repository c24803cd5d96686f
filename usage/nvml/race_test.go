// SPDX-License-Identifier: GPL-2.0-or-later

//go:build race

package nvml_test

// race is set if the race detector runs, which needs memory of its own.
const race = true
