-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- From when on the amounts of a row count: not before an account asked for
-- anything. NULL, of rows that an older release wrote: from the beginning of the
-- bucket, for all that is known.
ALTER TABLE gpubudget.demand_bucket ADD COLUMN begun_at timestamptz;
ALTER TABLE gpubudget.demand_bucket ADD CONSTRAINT demand_bucket_begun_within
    CHECK (begun_at >= starts_at AND begun_at <= ends_at);
