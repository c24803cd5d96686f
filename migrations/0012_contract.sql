-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- The settings of who yields to whom: numbers without needless digits, of which
-- two may have decimals, a word and a duration.
ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_policy_valid;
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_policy_valid CHECK (
    CASE setting
        WHEN 'mode' THEN value IN ('strict', 'additive')
        WHEN 'lookback' THEN value ~ '^[1-9][0-9]{1,8}s$' AND rtrim(value, 's')::bigint BETWEEN 60 AND 316224000
        WHEN 'bucket' THEN value ~ '^[1-9][0-9]{0,4}s$' AND 86400 % rtrim(value, 's')::bigint = 0
        WHEN 'refresh' THEN value ~ '^[1-9][0-9]{0,4}s$' AND rtrim(value, 's')::bigint BETWEEN 1 AND 86400
        WHEN 'min_runtime' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        WHEN 'min_runtime_cap' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        WHEN 'keep_meter' THEN value ~ '^[1-9][0-9]{4,8}s$' AND rtrim(value, 's')::bigint BETWEEN 86400 AND 316224000
        WHEN 'charge' THEN value IN ('occupancy', 'utilisation', 'max')
        WHEN 'preempt_margin' THEN value ~ '^(0|[1-9][0-9]?)([.][0-9]{0,2}[1-9])?$' AND value::numeric <= 10
        WHEN 'preempt_within_account' THEN value IN ('yes', 'no')
        WHEN 'evicted_per_gpu' THEN value ~ '^(0|[1-9][0-9]{0,3})([.][0-9]{0,2}[1-9])?$' AND value::numeric <= 1000
        WHEN 'preempt_per_day' THEN value ~ '^(0|[1-9][0-9]{0,3})$' AND value::bigint <= 1000
        WHEN 'patient_gpus' THEN value ~ '^(0|[1-9][0-9]{0,6})$' AND value::bigint <= 1000000
        WHEN 'patience' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        ELSE setting IS NULL
    END);
