-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- For how long the meters' records are kept, and who may read them.

-- +goose Up

-- One more setting: how long the meters' records are kept. Agents replay up to 35
-- days.
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
        ELSE setting IS NULL
    END);

-- drop_partitions drops the partitions of gpu_bucket of the days before one, and
-- tells which. It waits for readers and writers, and they for it: for a moment, or
-- until lock_timeout. Only the schema's owner may.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.drop_partitions(before date) RETURNS TABLE (dropped date)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('gpubudget.make_partitions', 0));
    FOR dropped IN
        SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'gpubudget.gpu_bucket'::regclass AND c.relname ~ '^gpu_bucket_[0-9]{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < before
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE gpubudget.%I', 'gpu_bucket_' || to_char(dropped, 'YYYYMMDD'));
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION gpubudget.drop_partitions FROM PUBLIC;

-- Whoever reads what was used reads what was metered too.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT a.grantee, a.grantee = 0 AS everybody
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.usage_bucket'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT SELECT ON gpubudget.gpu_bucket, gpubudget.gpu, gpubudget.agent TO %s',
            CASE WHEN held.everybody THEN 'PUBLIC' ELSE held.grantee::regrole::text END);
    END LOOP;
END
$$;
-- +goose StatementEnd
