-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What was used. Times are timestamptz in whole milliseconds; GPU time is a
-- bigint of GPU-milliseconds. docs/usage.md tells how the tables hang together.

-- +goose Up

-- unix_ms is a time in milliseconds since 1970, exactly.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.unix_ms(at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (extract(epoch FROM at - timestamptz 'epoch') * 1000)::bigint;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gpubudget.from_unix_ms(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_timestamp(ms::double precision / 1000);
-- +goose StatementEnd

-- run_used is the GPU time that a run from started to ended has used up to at,
-- which lies between the two: GPUs times the time not suspended, suspended time
-- spread evenly over the run, rounded down. Differences of it split a run over
-- buckets without losing or making up a millisecond. Run.GPUMillis is the same
-- in Go.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_used(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz, gpus bigint, at timestamptz)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN at <= started THEN 0
    WHEN suspended_ms = 0 AND suspended_since IS NULL THEN gpus * gpubudget.unix_ms(at) - gpus * gpubudget.unix_ms(started)
    ELSE div(
        gpus::numeric
        * greatest(0, gpubudget.unix_ms(ended) - gpubudget.unix_ms(started) - suspended_ms
            - CASE WHEN suspended_since < ended
                THEN gpubudget.unix_ms(ended) - gpubudget.unix_ms(greatest(suspended_since, started)) ELSE 0 END)
        * (gpubudget.unix_ms(at) - gpubudget.unix_ms(started)),
        gpubudget.unix_ms(ended) - gpubudget.unix_ms(started))::bigint
    END;
-- +goose StatementEnd

-- buckets_at are the buckets of the given length that hold one of the instants,
-- each once. Buckets lie edge to edge from 1970 on.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.buckets_at(instants timestamptz[], bucket_ms bigint)
RETURNS TABLE (starts_at timestamptz, ends_at timestamptz)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT DISTINCT gpubudget.from_unix_ms(k * bucket_ms), gpubudget.from_unix_ms((k + 1) * bucket_ms)
    FROM (SELECT gpubudget.unix_ms(i) / bucket_ms AS k FROM unnest(instants) i) b
$$;
-- +goose StatementEnd

-- bucket_ms is the length of a bucket by the cluster's policy in force at an
-- instant; an hour if it names none. It divides a day.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.bucket_ms(of_cluster text, at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((
        SELECT rtrim(l.value, 's')::bigint * 1000 FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.kind = 'policy_set' AND l.setting = 'bucket'
          AND l.effective_from <= at AND (l.effective_until IS NULL OR l.effective_until > at)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1), 3600000)
$$;
-- +goose StatementEnd

-- A run is one stretch of a job on its GPUs: a requeue or a resize ends one and
-- begins another.
CREATE TABLE gpubudget.job_run (
    cluster         text COLLATE "C" NOT NULL,
    job_id          bigint      NOT NULL,
    started_at      timestamptz NOT NULL CHECK (started_at >= timestamptz 'epoch'),
    restart         bigint      NOT NULL DEFAULT 0,
    array_job_id    bigint      NOT NULL DEFAULT 0,          -- 0: no array
    array_task_id   bigint      NOT NULL DEFAULT 4294967295, -- 2^32-1: none
    het_job_id      bigint      NOT NULL DEFAULT 0,          -- 0: no heterogeneous job
    account         text COLLATE "C" NOT NULL,
    user_name       text COLLATE "C" NOT NULL,
    partition       text COLLATE "C" NOT NULL DEFAULT '',
    qos             text COLLATE "C" NOT NULL DEFAULT '',
    nodes           text COLLATE "C" NOT NULL DEFAULT '',
    gpus            bigint      NOT NULL CHECK (gpus >= 0),
    gpu_type        text COLLATE "C" NOT NULL DEFAULT '',
    allocated       boolean     NOT NULL, -- funded when it started: charged. Else free
    suspended_ms    bigint      NOT NULL DEFAULT 0 CHECK (suspended_ms >= 0),
    suspended_since timestamptz,          -- of a suspension that had not ended
    seen_at         timestamptz NOT NULL, -- of the sighting all of the above is from
    ended_at        timestamptz CHECK (ended_at >= started_at),
    end_state       text COLLATE "C" NOT NULL DEFAULT '',
    end_seen_at     timestamptz NOT NULL, -- of the sighting the end is from
    -- The length of the buckets it is rolled up into. It is kept with the run so
    -- that what the run put into the buckets can be taken out again exactly,
    -- whatever the policy says by then.
    bucket_ms       bigint      NOT NULL DEFAULT 3600000 CHECK (bucket_ms BETWEEN 1000 AND 86400000),
    PRIMARY KEY (cluster, job_id, started_at)
);

CREATE INDEX job_run_open ON gpubudget.job_run (cluster) WHERE ended_at IS NULL;
-- For the runs that lie across the edge of a window.
CREATE INDEX job_run_during ON gpubudget.job_run USING gist (tstzrange(started_at, ended_at)) WHERE ended_at IS NOT NULL;

-- The GPU time of ended runs by bucket, account and user: always the sum over
-- job_run, to the millisecond. Only the trigger below writes it.
CREATE TABLE gpubudget.usage_bucket (
    cluster   text COLLATE "C" NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at   timestamptz NOT NULL CHECK (ends_at > starts_at),
    account   text COLLATE "C" NOT NULL,
    user_name text COLLATE "C" NOT NULL,
    allocated boolean     NOT NULL,
    gpu_ms    bigint      NOT NULL,
    PRIMARY KEY (cluster, starts_at, ends_at, account, user_name, allocated)
);

-- run_buckets splits an ended run over its buckets.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_buckets(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz, gpus bigint, bucket_ms bigint)
RETURNS TABLE (starts_at timestamptz, ends_at timestamptz, gpu_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT b.starts_at, b.ends_at,
        gpubudget.run_used(started, ended, suspended_ms, suspended_since, gpus, least(ended, b.ends_at))
        - gpubudget.run_used(started, ended, suspended_ms, suspended_since, gpus, greatest(started, b.starts_at))
    FROM (
        SELECT gpubudget.from_unix_ms(k * bucket_ms) AS starts_at, gpubudget.from_unix_ms((k + 1) * bucket_ms) AS ends_at
        FROM generate_series(gpubudget.unix_ms(started) / bucket_ms, (gpubudget.unix_ms(ended) - 1) / bucket_ms) k
    ) b
$$;
-- +goose StatementEnd

-- Rolls up what a statement did to job_run. The transition tables: gone are
-- rows as they were, come as they are.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.roll_up_runs() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changes gpubudget.usage_bucket[];
BEGIN
    IF TG_OP <> 'INSERT' THEN
        SELECT array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, -b.gpu_ms)::gpubudget.usage_bucket)
        INTO changes
        FROM gone r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.bucket_ms) b
        WHERE r.ended_at > r.started_at AND r.gpus > 0;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT changes || array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, b.gpu_ms)::gpubudget.usage_bucket)
        INTO changes
        FROM come r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.gpus, r.bucket_ms) b
        WHERE r.ended_at > r.started_at AND r.gpus > 0;
    END IF;

    INSERT INTO gpubudget.usage_bucket AS b (cluster, starts_at, ends_at, account, user_name, allocated, gpu_ms)
    SELECT c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, sum(c.gpu_ms)
    FROM unnest(changes) c
    GROUP BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
    HAVING sum(c.gpu_ms) <> 0
    ORDER BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
    ON CONFLICT (cluster, starts_at, ends_at, account, user_name, allocated)
    DO UPDATE SET gpu_ms = b.gpu_ms + excluded.gpu_ms;

    IF TG_OP <> 'INSERT' THEN
        DELETE FROM gpubudget.usage_bucket b
        USING (SELECT DISTINCT cluster, starts_at, ends_at, account, user_name, allocated FROM unnest(changes)) c
        WHERE b.cluster = c.cluster AND b.starts_at = c.starts_at AND b.ends_at = c.ends_at
          AND b.account = c.account AND b.user_name = c.user_name AND b.allocated = c.allocated
          AND b.gpu_ms = 0;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER roll_up_insert AFTER INSERT ON gpubudget.job_run
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.roll_up_runs();
CREATE TRIGGER roll_up_update AFTER UPDATE ON gpubudget.job_run
    REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.roll_up_runs();
CREATE TRIGGER roll_up_delete AFTER DELETE ON gpubudget.job_run
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.roll_up_runs();

-- What each account asked for, per bucket: absolute totals of each incarnation
-- of the recorder, which only grow.
CREATE TABLE gpubudget.demand_bucket (
    cluster     text COLLATE "C" NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz NOT NULL CHECK (ends_at > starts_at AND ends_at <= starts_at + interval '1 day'),
    account     text COLLATE "C" NOT NULL,
    incarnation text COLLATE "C" NOT NULL,
    pending_ms  bigint      NOT NULL CHECK (pending_ms >= 0),
    running_ms  bigint      NOT NULL CHECK (running_ms >= 0),
    seen_at     timestamptz NOT NULL, -- how far into the bucket the amounts reach
    PRIMARY KEY (cluster, starts_at, ends_at, account, incarnation)
);

-- How many GPUs could be scheduled, from since until the next row.
CREATE TABLE gpubudget.capacity (
    cluster    text COLLATE "C" NOT NULL,
    since      timestamptz NOT NULL,
    milli_gpus bigint      NOT NULL CHECK (milli_gpus >= 0),
    PRIMARY KEY (cluster, since)
);

-- The queue as it was last seen.
CREATE TABLE gpubudget.queue_seen (
    cluster text COLLATE "C" PRIMARY KEY,
    seen_at timestamptz NOT NULL
);
CREATE TABLE gpubudget.queue (
    cluster      text COLLATE "C" NOT NULL,
    account      text COLLATE "C" NOT NULL,
    user_name    text COLLATE "C" NOT NULL,
    pending_jobs bigint NOT NULL,
    pending_gpus bigint NOT NULL,
    running_jobs bigint NOT NULL,
    running_gpus bigint NOT NULL,
    PRIMARY KEY (cluster, account, user_name)
);

-- The recorder's last sign of life.
CREATE TABLE gpubudget.recorder (
    cluster     text COLLATE "C" PRIMARY KEY,
    incarnation text COLLATE "C" NOT NULL,
    host        text COLLATE "C" NOT NULL,
    version     text COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL,
    lag_ms      bigint      NOT NULL CHECK (lag_ms >= 0)
);
