-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- An account can have a minimum runtime of its own for jobs that name none: a
-- policy_set with an account. All other entries stay as they are. root's is the
-- cluster's, and whether such jobs are unallocated (0s) is the cluster's to say.
-- +goose StatementBegin
DO $$
DECLARE
    others text;
BEGIN
    SELECT substr(pg_get_constraintdef(c.oid), 6) INTO STRICT others FROM pg_constraint c
    WHERE c.conrelid = 'gpubudget.ledger'::regclass AND c.conname = 'ledger_kind_valid';
    ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_kind_valid;
    EXECUTE format('ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_kind_valid CHECK (
        CASE WHEN kind = ''policy_set'' AND account IS NOT NULL THEN
            num_nulls(setting, value) = 0
            AND num_nonnulls(parent, receiver, user_name, share, amount, job_id, job_started_at) = 0
        ELSE (%s) END)', others);

    SELECT substr(pg_get_constraintdef(c.oid), 6) INTO STRICT others FROM pg_constraint c
    WHERE c.conrelid = 'gpubudget.ledger'::regclass AND c.conname = 'ledger_policy_valid';
    ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_policy_valid;
    EXECUTE format('ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_policy_valid CHECK (
        CASE WHEN kind = ''policy_set'' AND account IS NOT NULL THEN
            account <> ''root'' AND setting = ''min_runtime''
            AND CASE WHEN value ~ ''^[1-9][0-9]{0,7}s$'' THEN rtrim(value, ''s'')::bigint <= 31622400 ELSE value = ''inherit'' END
        ELSE (%s) END)', others);
END
$$;
-- +goose StatementEnd

CREATE INDEX ledger_account_policy ON gpubudget.ledger (cluster, account, effective_from, seq)
    WHERE kind = 'policy_set' AND account IS NOT NULL;
