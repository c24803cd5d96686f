-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- Which buckets have changed since a reader looked last, so that it needn't read
-- a week of them each time. docs/usage.md tells how to ask.

-- +goose Up

-- The transaction that changed a row last. Of two transactions the one with the
-- lower number may be the last to commit: a reader compares with the snapshot it
-- read before (pg_visible_in_snapshot), not with the highest number it has met.
ALTER TABLE gpubudget.usage_bucket ADD COLUMN changed_by xid8 NOT NULL DEFAULT '0';
ALTER TABLE gpubudget.usage_bucket ALTER COLUMN changed_by SET DEFAULT pg_current_xact_id();
CREATE INDEX usage_bucket_changed ON gpubudget.usage_bucket (cluster, changed_by);

-- Buckets out of which rows have vanished, and the last transaction that made any
-- vanish. A reader reads such a bucket anew.
CREATE TABLE gpubudget.usage_erased (
    cluster    text COLLATE "C" NOT NULL,
    starts_at  timestamptz NOT NULL,
    ends_at    timestamptz NOT NULL,
    changed_by xid8        NOT NULL,
    PRIMARY KEY (cluster, starts_at, ends_at)
);

-- Who works with usage_bucket works with this table too: the trigger below runs
-- with the rights of whoever writes job_run.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT a.grantee, a.privilege_type, a.grantee = 0 AS everybody
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.usage_bucket'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s ON gpubudget.usage_erased TO %s', held.privilege_type,
            CASE WHEN held.everybody THEN 'PUBLIC' ELSE held.grantee::regrole::text END);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- As before, and now it notes what it changes.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.roll_up_runs() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changes gpubudget.usage_bucket[];
BEGIN
    IF TG_OP <> 'INSERT' THEN
        SELECT array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, -b.gpu_ms, NULL)::gpubudget.usage_bucket)
        INTO changes
        FROM gone r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.bucket_ms) b
        WHERE r.ended_at > r.started_at AND r.gpus > 0;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT changes || array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, b.gpu_ms, NULL)::gpubudget.usage_bucket)
        INTO changes
        FROM come r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.bucket_ms) b
        WHERE r.ended_at > r.started_at AND r.gpus > 0;
    END IF;

    INSERT INTO gpubudget.usage_bucket AS b (cluster, starts_at, ends_at, account, user_name, allocated, gpu_ms, changed_by)
    SELECT c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, sum(c.gpu_ms), pg_current_xact_id()
    FROM unnest(changes) c
    GROUP BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
    HAVING sum(c.gpu_ms) <> 0
    ORDER BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
    ON CONFLICT (cluster, starts_at, ends_at, account, user_name, allocated)
    DO UPDATE SET gpu_ms = b.gpu_ms + excluded.gpu_ms, changed_by = excluded.changed_by;

    -- Runs that have changed but not how much of them lies in the bucket: whoever
    -- has cut the bucket has to do so again.
    IF TG_OP = 'UPDATE' THEN
        UPDATE gpubudget.usage_bucket b SET changed_by = pg_current_xact_id()
        FROM (
            SELECT c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
            FROM unnest(changes) c
            GROUP BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
            HAVING sum(c.gpu_ms) = 0
        ) c
        WHERE b.cluster = c.cluster AND b.starts_at = c.starts_at AND b.ends_at = c.ends_at
          AND b.account = c.account AND b.user_name = c.user_name AND b.allocated = c.allocated;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        WITH erased AS (
            DELETE FROM gpubudget.usage_bucket b
            USING (SELECT DISTINCT cluster, starts_at, ends_at, account, user_name, allocated FROM unnest(changes)) c
            WHERE b.cluster = c.cluster AND b.starts_at = c.starts_at AND b.ends_at = c.ends_at
              AND b.account = c.account AND b.user_name = c.user_name AND b.allocated = c.allocated
              AND b.gpu_ms = 0
            RETURNING b.cluster, b.starts_at, b.ends_at
        )
        INSERT INTO gpubudget.usage_erased (cluster, starts_at, ends_at, changed_by)
        SELECT DISTINCT e.cluster, e.starts_at, e.ends_at, pg_current_xact_id() FROM erased e
        ORDER BY e.cluster, e.starts_at, e.ends_at
        ON CONFLICT (cluster, starts_at, ends_at) DO UPDATE SET changed_by = excluded.changed_by;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
