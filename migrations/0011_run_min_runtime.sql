-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- For how long a run was to be left alone when it began: the job's minimum
-- runtime; after a resize what was left of it. 0: the job was unallocated by what
-- it asked for. NULL: recorded by a release that didn't know. While a run lasts it
-- is protected until started_at plus this plus the time for which it was suspended.
ALTER TABLE gpubudget.job_run ADD COLUMN min_runtime_ms bigint CHECK (min_runtime_ms >= 0);
