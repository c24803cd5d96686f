-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What runs used and what the meters saw of it, summed up by hour and by day, so
-- that nobody who wants a sum of weeks reads millions of rows.
--
-- Thousands of agents write at a time, and many of them of the same users: so that
-- none waits for another, each adds rows to metered_delta. Now and then what is
-- there is folded into the two other tables. At every commit the sums by bucket are
-- metered_bucket and metered_delta together, and those by day metered_day and
-- metered_delta.

-- +goose Up

-- By bucket, account and user: of gpu_bucket how many rows there are, and their
-- sums; of ended runs, in buckets of an hour, the GPU time that they used, whatever
-- it counts for. What is known of no time is 0 here.
CREATE TABLE gpubudget.metered_bucket (
    cluster         text COLLATE "C" NOT NULL,
    starts_at       timestamptz NOT NULL,
    ends_at         timestamptz NOT NULL,
    account         text COLLATE "C" NOT NULL,
    user_name       text COLLATE "C" NOT NULL,
    holdings        bigint NOT NULL,
    used_ms         bigint NOT NULL,
    held_ms         bigint NOT NULL,
    part_ms         bigint NOT NULL,
    busy_ms         bigint NOT NULL,
    busy_known_ms   bigint NOT NULL,
    energy_mj       bigint NOT NULL,
    energy_known_ms bigint NOT NULL,
    PRIMARY KEY (cluster, starts_at, ends_at, account, user_name)
) WITH (fillfactor = 70);

-- The same by day (UTC): of the buckets that begin in it.
CREATE TABLE gpubudget.metered_day (
    cluster         text COLLATE "C" NOT NULL,
    day             timestamptz NOT NULL,
    account         text COLLATE "C" NOT NULL,
    user_name       text COLLATE "C" NOT NULL,
    holdings        bigint NOT NULL,
    used_ms         bigint NOT NULL,
    held_ms         bigint NOT NULL,
    part_ms         bigint NOT NULL,
    busy_ms         bigint NOT NULL,
    busy_known_ms   bigint NOT NULL,
    energy_mj       bigint NOT NULL,
    energy_known_ms bigint NOT NULL,
    PRIMARY KEY (cluster, day, account, user_name)
) WITH (fillfactor = 70);

-- What is not in them yet.
CREATE TABLE gpubudget.metered_delta (LIKE gpubudget.metered_bucket);

COMMENT ON TABLE gpubudget.metered_bucket IS 'gpu_bucket and job_run summed up; with metered_delta. Written by triggers only.';
COMMENT ON TABLE gpubudget.metered_day IS 'metered_bucket by day; with metered_delta.';
COMMENT ON TABLE gpubudget.metered_delta IS 'What gpubudget.fold_meter has not added to metered_bucket and metered_day yet.';

-- An agent's bucket lies in one day, as all have that agents ever made.
ALTER TABLE gpubudget.gpu_bucket ADD CONSTRAINT gpu_bucket_within_a_day
    CHECK ((starts_at AT TIME ZONE 'UTC')::date = ((ends_at - interval '1 millisecond') AT TIME ZONE 'UTC')::date);

-- fold_meter adds up what is in metered_delta. It does nothing if another is at it.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.fold_meter() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('gpubudget.fold_meter', 0)) THEN
        RETURN;
    END IF;
    WITH d AS (
        DELETE FROM gpubudget.metered_delta RETURNING *
    ), s AS (
        SELECT d.cluster, d.starts_at, d.ends_at, d.account, d.user_name, sum(d.holdings), sum(d.used_ms), sum(d.held_ms), sum(d.part_ms),
            sum(d.busy_ms), sum(d.busy_known_ms), sum(d.energy_mj), sum(d.energy_known_ms)
        FROM d GROUP BY 1, 2, 3, 4, 5
    ), by_bucket AS (
        INSERT INTO gpubudget.metered_bucket AS m
        SELECT * FROM s ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (cluster, starts_at, ends_at, account, user_name) DO UPDATE SET
            holdings = m.holdings + excluded.holdings, used_ms = m.used_ms + excluded.used_ms,
            held_ms = m.held_ms + excluded.held_ms, part_ms = m.part_ms + excluded.part_ms,
            busy_ms = m.busy_ms + excluded.busy_ms, busy_known_ms = m.busy_known_ms + excluded.busy_known_ms,
            energy_mj = m.energy_mj + excluded.energy_mj, energy_known_ms = m.energy_known_ms + excluded.energy_known_ms
    )
    INSERT INTO gpubudget.metered_day AS m
    SELECT d.cluster, date_trunc('day', d.starts_at, 'UTC'), d.account, d.user_name, sum(d.holdings), sum(d.used_ms), sum(d.held_ms), sum(d.part_ms),
            sum(d.busy_ms), sum(d.busy_known_ms), sum(d.energy_mj), sum(d.energy_known_ms)
    FROM d GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (cluster, day, account, user_name) DO UPDATE SET
        holdings = m.holdings + excluded.holdings, used_ms = m.used_ms + excluded.used_ms,
        held_ms = m.held_ms + excluded.held_ms, part_ms = m.part_ms + excluded.part_ms,
        busy_ms = m.busy_ms + excluded.busy_ms, busy_known_ms = m.busy_known_ms + excluded.busy_known_ms,
            energy_mj = m.energy_mj + excluded.energy_mj, energy_known_ms = m.energy_known_ms + excluded.energy_known_ms;
END
$$;
-- +goose StatementEnd

-- Whose a holding is, where no Prolog told or an old Slurm's did not know: as
-- slurmctld's record of the run has it.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.name_holding() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run record;
BEGIN
    SELECT r.account, r.user_name INTO run
    FROM gpubudget.job_run r
    WHERE r.cluster = NEW.cluster AND r.job_id = NEW.job_id AND r.started_at < NEW.held_until
      AND (r.restart = NEW.restart OR NEW.source = 'process')
    ORDER BY r.started_at DESC LIMIT 1;
    IF FOUND THEN
        NEW.account := run.account;
        NEW.user_name := coalesce(nullif(NEW.user_name, ''), run.user_name);
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER name_holding BEFORE INSERT OR UPDATE ON gpubudget.gpu_bucket
    FOR EACH ROW WHEN (NEW.account = '') EXECUTE FUNCTION gpubudget.name_holding();

-- Notes what a statement did to gpu_bucket. The transition tables: gone are rows as
-- they were, come as they are. One statement in a few hundred folds as well.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.sum_up_meter() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, r.starts_at, r.ends_at, r.account, r.user_name, count(*), 0, sum(r.held_ms), sum(r.part_ms), coalesce(sum(r.busy_ms), 0), sum(r.busy_known_ms),
            coalesce(sum(r.energy_mj), 0), sum(r.energy_known_ms)
        FROM come r GROUP BY 1, 2, 3, 4, 5;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, r.starts_at, r.ends_at, r.account, r.user_name, -count(*), 0, -sum(r.held_ms), -sum(r.part_ms), -coalesce(sum(r.busy_ms), 0), -sum(r.busy_known_ms),
            -coalesce(sum(r.energy_mj), 0), -sum(r.energy_known_ms)
        FROM gone r GROUP BY 1, 2, 3, 4, 5;
    ELSE
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, r.starts_at, r.ends_at, r.account, r.user_name, sum(r.n), 0, sum(r.n * r.held_ms), sum(r.n * r.part_ms),
            coalesce(sum(r.n * r.busy_ms), 0), sum(r.n * r.busy_known_ms), coalesce(sum(r.n * r.energy_mj), 0), sum(r.n * r.energy_known_ms)
        FROM (
            SELECT cluster, starts_at, ends_at, account, user_name, 1 AS n, held_ms, part_ms, busy_ms, busy_known_ms, energy_mj, energy_known_ms FROM come
            UNION ALL
            SELECT cluster, starts_at, ends_at, account, user_name, -1, held_ms, part_ms, busy_ms, busy_known_ms, energy_mj, energy_known_ms FROM gone
        ) r
        GROUP BY 1, 2, 3, 4, 5;
    END IF;
    IF random() < 0.002 THEN
        PERFORM gpubudget.fold_meter();
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER sum_up_insert AFTER INSERT ON gpubudget.gpu_bucket
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_meter();
CREATE TRIGGER sum_up_update AFTER UPDATE ON gpubudget.gpu_bucket
    REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_meter();
CREATE TRIGGER sum_up_delete AFTER DELETE ON gpubudget.gpu_bucket
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_meter();

-- run_held is the GPU time that a run from started to ended has used up to at,
-- which lies between the two, whatever it counts for: run_used, and parts of GPUs,
-- in millionths.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_held(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz, gpus bigint, parts bigint, at timestamptz)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN gpubudget.run_used(started, ended, suspended_ms, suspended_since, gpus, at)
    + CASE WHEN parts = 0 THEN 0 ELSE gpubudget.run_used(started, ended, suspended_ms, suspended_since, parts, at) / 1000000 END;
-- +goose StatementEnd

-- run_hours is that of an ended run by hours.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_hours(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz, gpus bigint, parts bigint)
RETURNS TABLE (starts_at timestamptz, ends_at timestamptz, used_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT gpubudget.from_unix_ms(b.k * 3600000), gpubudget.from_unix_ms((b.k + 1) * 3600000),
        CASE WHEN parts = 0 AND suspended_ms = 0 AND suspended_since IS NULL
            THEN gpus * least(b.end_ms, (b.k + 1) * 3600000) - gpus * greatest(b.start_ms, b.k * 3600000)
            ELSE gpubudget.run_held(started, ended, suspended_ms, suspended_since, gpus, parts,
                    least(ended, gpubudget.from_unix_ms((b.k + 1) * 3600000)))
                - gpubudget.run_held(started, ended, suspended_ms, suspended_since, gpus, parts,
                    greatest(started, gpubudget.from_unix_ms(b.k * 3600000)))
        END
    FROM (
        SELECT r.start_ms, r.end_ms, generate_series(r.start_ms / 3600000, (r.end_ms - 1) / 3600000) AS k
        FROM (SELECT gpubudget.unix_ms(started) AS start_ms, gpubudget.unix_ms(ended) AS end_ms) r
    ) b
$$;
-- +goose StatementEnd

-- Notes what a statement did to job_run, with the rights of the tables' owner: who
-- writes runs need not know of meters.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.sum_up_runs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET work_mem = '16MB' AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, sum(b.used_ms), 0, 0, 0, 0, 0, 0
        FROM come r, gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.parts) b
        WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(b.used_ms) <> 0;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, -sum(b.used_ms), 0, 0, 0, 0, 0, 0
        FROM gone r, gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.parts) b
        WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(b.used_ms) <> 0;
    ELSE
        INSERT INTO gpubudget.metered_delta
        SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, sum(r.n * b.used_ms), 0, 0, 0, 0, 0, 0
        FROM (SELECT 1 AS n, * FROM come UNION ALL SELECT -1, * FROM gone) r,
            gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.parts) b
        WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(r.n * b.used_ms) <> 0;
    END IF;
    IF random() < 0.002 THEN
        PERFORM gpubudget.fold_meter();
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER sum_up_insert AFTER INSERT ON gpubudget.job_run
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_runs();
CREATE TRIGGER sum_up_update AFTER UPDATE ON gpubudget.job_run
    REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_runs();
CREATE TRIGGER sum_up_delete AFTER DELETE ON gpubudget.job_run
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.sum_up_runs();

-- What is there already: the triggers hold off those who write.
INSERT INTO gpubudget.metered_delta
SELECT r.cluster, r.starts_at, r.ends_at, r.account, r.user_name, count(*), 0, sum(r.held_ms), sum(r.part_ms), coalesce(sum(r.busy_ms), 0), sum(r.busy_known_ms),
            coalesce(sum(r.energy_mj), 0), sum(r.energy_known_ms)
FROM gpubudget.gpu_bucket r GROUP BY 1, 2, 3, 4, 5;
INSERT INTO gpubudget.metered_delta
SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, sum(b.used_ms), 0, 0, 0, 0, 0, 0
FROM gpubudget.job_run r, gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.parts) b
WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
GROUP BY 1, 2, 3, 4, 5;
UPDATE gpubudget.gpu_bucket SET account = '' WHERE account = '';
-- +goose StatementBegin
SELECT gpubudget.fold_meter();
-- +goose StatementEnd

-- As before, and what was metered on these days leaves the sums.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.drop_partitions(before date) RETURNS TABLE (dropped date)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first timestamptz;
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
        first := dropped::timestamp AT TIME ZONE 'UTC';
        INSERT INTO gpubudget.metered_delta
        SELECT m.cluster, m.starts_at, m.ends_at, m.account, m.user_name, -sum(m.holdings), 0, -sum(m.held_ms), -sum(m.part_ms),
            -sum(m.busy_ms), -sum(m.busy_known_ms), -sum(m.energy_mj), -sum(m.energy_known_ms)
        FROM (SELECT * FROM gpubudget.metered_bucket UNION ALL SELECT * FROM gpubudget.metered_delta) m
        WHERE m.starts_at >= first AND m.starts_at < first + interval '1 day'
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(m.holdings) <> 0;
        RETURN NEXT;
    END LOOP;
    PERFORM gpubudget.fold_meter();
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION gpubudget.fold_meter FROM PUBLIC;

-- Whoever reads what was metered reads its sums.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT a.grantee, a.grantee = 0 AS everybody
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.gpu_bucket'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT SELECT ON gpubudget.metered_bucket, gpubudget.metered_day, gpubudget.metered_delta TO %s',
            CASE WHEN held.everybody THEN 'PUBLIC' ELSE held.grantee::regrole::text END);
    END LOOP;
END
$$;
-- +goose StatementEnd
