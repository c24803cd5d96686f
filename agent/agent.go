// SPDX-License-Identifier: GPL-2.0-or-later

// Package agent is the meter of a node: it turns what Prolog and Epilog wrote
// into exact times, looks at the GPUs, keeps both on disk and hands them to the
// database.
package agent
