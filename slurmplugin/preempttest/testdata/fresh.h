/* SPDX-License-Identifier: GPL-2.0-or-later */
/* fresh.h: the plugin's reading of what runs once more, with a memory of its own,
 * which remembered.c has it forget each time. */
#define gres_is_gpu fresh_gres_is_gpu
#define job_fetch fresh_job_fetch
#define placing_free fresh_placing_free
#define placing_read fresh_placing_read
#define run_start fresh_run_start
#define running_fetch fresh_running_fetch
#define running_free fresh_running_free
#define running_look fresh_running_look
#define running_runs fresh_running_runs
