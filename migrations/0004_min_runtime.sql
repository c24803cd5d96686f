-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- Two more settings: the minimum runtime of a job that names none, and the
-- longest that a job can ask for.
ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_policy_valid;
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_policy_valid CHECK (
    CASE setting
        WHEN 'mode' THEN value IN ('strict', 'additive')
        WHEN 'lookback' THEN value ~ '^[1-9][0-9]{1,8}s$' AND rtrim(value, 's')::bigint BETWEEN 60 AND 316224000
        WHEN 'bucket' THEN value ~ '^[1-9][0-9]{0,4}s$' AND 86400 % rtrim(value, 's')::bigint = 0
        WHEN 'refresh' THEN value ~ '^[1-9][0-9]{0,4}s$' AND rtrim(value, 's')::bigint BETWEEN 1 AND 86400
        WHEN 'min_runtime' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        WHEN 'min_runtime_cap' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        ELSE setting IS NULL
    END);
