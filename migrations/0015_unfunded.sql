-- SPDX-License-Identifier: GPL-2.0-or-later

-- +goose Up

-- One more setting: what becomes of a job whose account has nothing left. The
-- others stay as they are.
-- +goose StatementBegin
DO $$
DECLARE
    others text;
BEGIN
    SELECT substr(pg_get_constraintdef(c.oid), 6) INTO STRICT others FROM pg_constraint c
    WHERE c.conrelid = 'gpubudget.ledger'::regclass AND c.conname = 'ledger_policy_valid';
    ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_policy_valid;
    EXECUTE format('ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_policy_valid CHECK (
        CASE setting WHEN ''unfunded'' THEN value IN (''unallocated'', ''refuse'') ELSE (%s) END)', others);
END
$$;
-- +goose StatementEnd
