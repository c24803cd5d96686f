-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What the meters on the nodes saw: which job held which GPU from when to when,
-- and what the GPU did meanwhile. docs/agent.md tells how it comes about. Agents
-- write all of it through one function and read nothing.

-- +goose Up

-- The GPUs of each node, and the MIG instances on them.
CREATE TABLE gpubudget.gpu (
    cluster        text COLLATE "C" NOT NULL,
    node           text COLLATE "C" NOT NULL,
    uuid           text COLLATE "C" NOT NULL,
    model          text COLLATE "C" NOT NULL DEFAULT '',
    memory_mib     bigint CHECK (memory_mib >= 0),      -- NULL, here and below: not known
    pci_bus_id     text COLLATE "C" NOT NULL DEFAULT '',
    minor          bigint CHECK (minor >= 0),           -- N of /dev/nvidiaN
    gres_index     bigint CHECK (gres_index >= 0),      -- what SLURM_JOB_GPUS calls it
    parent         text COLLATE "C",                    -- of a MIG instance: the GPU it is a part of
    profile        text COLLATE "C" NOT NULL DEFAULT '', -- of a MIG instance, e.g. 3g.40gb
    compute_slices bigint CHECK (compute_slices > 0),
    memory_slices  bigint CHECK (memory_slices > 0),
    first_seen     timestamptz NOT NULL,
    last_seen      timestamptz NOT NULL,
    PRIMARY KEY (cluster, node, uuid)
);

-- The last sign of life of each node's agent.
CREATE TABLE gpubudget.agent (
    cluster     text COLLATE "C" NOT NULL,
    node        text COLLATE "C" NOT NULL,
    incarnation uuid        NOT NULL,
    boot_id     text COLLATE "C" NOT NULL,
    started_at  timestamptz NOT NULL,
    version     text COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL, -- by the server's clock
    skew_ms     bigint      NOT NULL, -- the node's clock less the server's
    sampled_at  timestamptz,          -- of the last sample; NULL: none yet
    spooled     bigint      NOT NULL, -- rows that wait on the node
    gpus        bigint      NOT NULL, -- that the driver shows, MIG instances not counted
    state       text COLLATE "C" NOT NULL, -- 'ok', or why GPUs are not measured
    PRIMARY KEY (cluster, node)
) WITH (fillfactor = 50);

-- How long a job held a GPU in a bucket, as one incarnation of the node's agent
-- has counted it so far: absolute totals, so that a write can be repeated. A
-- holding begins with Prolog and ends with Epilog; an incarnation counts one
-- stretch of it without a gap, so that held_ms is held_until - held_from. Those
-- of several incarnations lie end to end. What nobody knows is NULL and never 0;
-- the *_known_ms say how much of held_ms is known.
CREATE TABLE gpubudget.gpu_bucket (
    cluster          text COLLATE "C" NOT NULL,
    starts_at        timestamptz NOT NULL,
    ends_at          timestamptz NOT NULL,
    gpu              text COLLATE "C" NOT NULL, -- UUID of the GPU or of the MIG instance
    job_id           bigint      NOT NULL,
    restart          bigint      NOT NULL,
    incarnation      uuid        NOT NULL,
    seq              bigint      NOT NULL,      -- of two writes the greater holds
    node             text COLLATE "C" NOT NULL,
    source           text COLLATE "C" NOT NULL, -- 'prolog'; 'process': no Prolog told, the job's processes were seen there
    user_name        text COLLATE "C" NOT NULL DEFAULT '', -- this and the next as Prolog knew them
    account          text COLLATE "C" NOT NULL DEFAULT '',
    job_started_at   timestamptz,               -- Slurm's start of the run; its Prolog tells from 23.02 on
    held_from        timestamptz NOT NULL,
    held_until       timestamptz NOT NULL,
    held_ms          bigint      NOT NULL,
    ended            boolean     NOT NULL,      -- the holding ended at held_until
    shared_ms        bigint      NOT NULL DEFAULT 0, -- of held_ms, while other jobs held the GPU too
    part_ms          bigint      NOT NULL,      -- the job's part of the GPU: of all jobs together never more than the time
    mps_percent      bigint,                    -- CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, if Prolog had one
    busy_ms          bigint,                    -- utilisation times time
    busy_known_ms    bigint      NOT NULL DEFAULT 0,
    memory_mib_ms    bigint,                    -- memory in use times time
    memory_known_ms  bigint      NOT NULL DEFAULT 0,
    memory_max_mib   bigint,
    energy_mj        bigint,                    -- power times time: millijoules
    energy_known_ms  bigint      NOT NULL DEFAULT 0,
    process_ms       bigint,                    -- while the job had a process on the GPU
    process_known_ms bigint      NOT NULL DEFAULT 0,
    samples          bigint      NOT NULL DEFAULT 0,
    last_busy_at     timestamptz,               -- may lie in an earlier bucket
    idle_since       timestamptz,               -- known to be idle from then to held_until; NULL: it is not

    PRIMARY KEY (cluster, starts_at, gpu, job_id, restart, incarnation),
    CONSTRAINT gpu_bucket_within CHECK (ends_at > starts_at AND ends_at <= starts_at + interval '1 day'),
    CONSTRAINT gpu_bucket_held_within CHECK (held_from >= starts_at AND held_until >= held_from AND held_until <= ends_at),
    CONSTRAINT gpu_bucket_held_whole CHECK (held_ms = extract(epoch FROM held_until - held_from) * 1000),
    CONSTRAINT gpu_bucket_job_valid CHECK (job_id BETWEEN 1 AND 4294967295 AND restart BETWEEN 0 AND 4294967295),
    CONSTRAINT gpu_bucket_source_valid CHECK (source IN ('prolog', 'process')),
    CONSTRAINT gpu_bucket_parts_valid CHECK (
        part_ms BETWEEN 0 AND held_ms AND shared_ms BETWEEN 0 AND held_ms
        AND mps_percent BETWEEN 1 AND 100 AND samples >= 0),
    -- What is known for no time at all is NULL, and only that.
    CONSTRAINT gpu_bucket_busy_valid CHECK (
        busy_known_ms BETWEEN 0 AND held_ms AND (busy_known_ms = 0) = (busy_ms IS NULL)
        AND busy_ms BETWEEN 0 AND busy_known_ms),
    CONSTRAINT gpu_bucket_memory_valid CHECK (
        memory_known_ms BETWEEN 0 AND held_ms AND (memory_known_ms = 0) = (memory_mib_ms IS NULL)
        AND (memory_known_ms = 0) = (memory_max_mib IS NULL) AND memory_mib_ms >= 0 AND memory_max_mib >= 0),
    CONSTRAINT gpu_bucket_energy_valid CHECK (
        energy_known_ms BETWEEN 0 AND held_ms AND (energy_known_ms = 0) = (energy_mj IS NULL) AND energy_mj >= 0),
    CONSTRAINT gpu_bucket_process_valid CHECK (
        process_known_ms BETWEEN 0 AND held_ms AND (process_known_ms = 0) = (process_ms IS NULL)
        AND process_ms BETWEEN 0 AND process_known_ms),
    CONSTRAINT gpu_bucket_idle_valid CHECK (last_busy_at <= held_until AND idle_since <= held_until)
) PARTITION BY RANGE (starts_at);

-- No other index, and none that covers: an update of a row's totals stays within
-- its page (HOT) only as long as no index holds what changes.

COMMENT ON TABLE gpubudget.gpu_bucket IS 'Raw records of the meters; written by gpubudget.record_meter only. One partition a day (UTC), gpu_bucket_YYYYMMDD.';

-- make_partitions makes the partitions of so many days from a day on, where they
-- are missing, and returns how many it made. It waits for nobody who reads or
-- writes.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.make_partitions(
    first_day date DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date, days integer DEFAULT 8)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made integer := 0;
    name text;
BEGIN
    FOR n IN 0 .. days - 1 LOOP
        name := 'gpu_bucket_' || to_char(first_day + n, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('gpubudget.' || name) IS NOT NULL;
        PERFORM pg_advisory_xact_lock(hashtextextended('gpubudget.make_partitions', 0));
        CONTINUE WHEN to_regclass('gpubudget.' || name) IS NOT NULL; -- another was faster
        EXECUTE format('CREATE TABLE gpubudget.%I (LIKE gpubudget.gpu_bucket INCLUDING ALL) WITH (fillfactor = 70)', name);
        EXECUTE format('ALTER TABLE gpubudget.gpu_bucket ATTACH PARTITION gpubudget.%I FOR VALUES FROM (%L) TO (%L)',
            name, (first_day + n)::text || ' 00:00:00+00', (first_day + n + 1)::text || ' 00:00:00+00');
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
SELECT gpubudget.make_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, 9);
-- +goose StatementEnd

-- meter_time is a time of a report: milliseconds since 1970.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.meter_time(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN timestamptz 'epoch' + ms * interval '1 millisecond';
-- +goose StatementEnd

-- record_meter takes what an agent has to tell, all or nothing: that it lives,
-- what GPUs there are (if that changed), and totals of buckets. Whatever is
-- repeated or comes late changes nothing. Times are in milliseconds since 1970.
--
-- GB020: the node's clock is more than 5 minutes off. GB021: a bucket lies in the
-- future, or more than 35 days back.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.record_meter(report jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_cluster text := report ->> 'cluster';
    of_node text := report ->> 'node';
    now_at timestamptz := clock_timestamp();
    off_ms bigint := (report ->> 'sent_ms')::bigint - gpubudget.unix_ms(now_at);
    today date := (now_at AT TIME ZONE 'UTC')::date;
    bad record;
    day date;
BEGIN
    IF of_cluster IS NULL OR of_node IS NULL OR off_ms IS NULL
        OR of_cluster !~ '^[!-~]{1,128}$' OR of_node !~ '^[!-~]{1,255}$' THEN
        RAISE EXCEPTION 'a report names its cluster, its node and its time' USING ERRCODE = '22023';
    END IF;
    IF abs(off_ms) > 300000 THEN
        RAISE EXCEPTION 'the clock of node % is % s % that of the database', of_node,
            trim_scale(round(abs(off_ms) / 1000.0, 1)), CASE WHEN off_ms > 0 THEN 'ahead of' ELSE 'behind' END
            USING ERRCODE = 'GB020', HINT = 'Set the clock of the one that is wrong; 5 minutes are tolerated.';
    END IF;

    INSERT INTO gpubudget.agent AS a
        (cluster, node, incarnation, boot_id, started_at, version, seen_at, skew_ms, sampled_at, spooled, gpus, state)
    SELECT of_cluster, of_node, r.incarnation, r.boot_id, gpubudget.meter_time(r.started_ms), r.version, now_at, off_ms,
        gpubudget.meter_time(r.sampled_ms), r.spooled, r.gpus, r.state
    FROM (SELECT (a ->> 'incarnation')::uuid AS incarnation, a ->> 'boot_id' AS boot_id, (a ->> 'started_ms')::bigint AS started_ms,
            a ->> 'version' AS version, (a ->> 'sampled_ms')::bigint AS sampled_ms, (a ->> 'spooled')::bigint AS spooled,
            (a ->> 'gpus')::bigint AS gpus, a ->> 'state' AS state
        FROM (SELECT report -> 'agent') AS x (a)) AS r
    ON CONFLICT (cluster, node) DO UPDATE SET
        incarnation = excluded.incarnation, boot_id = excluded.boot_id, started_at = excluded.started_at, version = excluded.version,
        seen_at = excluded.seen_at, skew_ms = excluded.skew_ms, sampled_at = excluded.sampled_at, spooled = excluded.spooled,
        gpus = excluded.gpus, state = excluded.state
    WHERE excluded.seen_at >= a.seen_at;

    INSERT INTO gpubudget.gpu AS g (cluster, node, uuid, model, memory_mib, pci_bus_id, minor, gres_index,
        parent, profile, compute_slices, memory_slices, first_seen, last_seen)
    SELECT of_cluster, of_node, r.uuid, coalesce(r.model, ''), r.memory_mib, coalesce(r.pci_bus_id, ''), r.minor, r.gres_index,
        r.parent, coalesce(r.profile, ''), r.compute_slices, r.memory_slices, now_at, now_at
    FROM jsonb_to_recordset(report -> 'gpus') AS r (uuid text, model text, memory_mib bigint, pci_bus_id text, minor bigint,
        gres_index bigint, parent text, profile text, compute_slices bigint, memory_slices bigint)
    ON CONFLICT (cluster, node, uuid) DO UPDATE SET
        model = excluded.model, memory_mib = excluded.memory_mib, pci_bus_id = excluded.pci_bus_id, minor = excluded.minor,
        gres_index = excluded.gres_index, parent = excluded.parent, profile = excluded.profile,
        compute_slices = excluded.compute_slices, memory_slices = excluded.memory_slices, last_seen = excluded.last_seen
    WHERE excluded.last_seen >= g.last_seen;

    SELECT r.gpu, r.job_id, gpubudget.meter_time(r.starts_ms) AS starts_at INTO bad
    FROM jsonb_to_recordset(report -> 'buckets') AS r (gpu text, job_id bigint, starts_ms bigint)
    WHERE r.starts_ms < gpubudget.unix_ms(now_at) - 35 * 86400000::bigint OR r.starts_ms > gpubudget.unix_ms(now_at) + 300000
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the bucket of job % on % at % is not of the last 35 days', bad.job_id, bad.gpu, bad.starts_at
            USING ERRCODE = 'GB021';
    END IF;
    IF to_regclass('gpubudget.gpu_bucket_' || to_char(today + 2, 'YYYYMMDD')) IS NULL THEN
        PERFORM gpubudget.make_partitions(today);
    END IF;
    FOR day IN
        SELECT DISTINCT (gpubudget.meter_time(r.starts_ms) AT TIME ZONE 'UTC')::date
        FROM jsonb_to_recordset(report -> 'buckets') AS r (starts_ms bigint) ORDER BY 1
    LOOP
        PERFORM gpubudget.make_partitions(day, 1);
    END LOOP;

    -- In the order of the key, so that two writers can't deadlock.
    INSERT INTO gpubudget.gpu_bucket AS b (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source,
        user_name, account, job_started_at, held_from, held_until, held_ms, ended, shared_ms, part_ms, mps_percent,
        busy_ms, busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib, energy_mj, energy_known_ms,
        process_ms, process_known_ms, samples, last_busy_at, idle_since)
    SELECT of_cluster, gpubudget.meter_time(r.starts_ms), gpubudget.meter_time(r.ends_ms), r.gpu, r.job_id, coalesce(r.restart, 0),
        r.incarnation, r.seq, of_node, r.source, coalesce(r.user_name, ''), coalesce(r.account, ''),
        gpubudget.meter_time(r.job_started_ms), gpubudget.meter_time(r.held_from_ms), gpubudget.meter_time(r.held_until_ms),
        r.held_until_ms - r.held_from_ms, coalesce(r.ended, false), coalesce(r.shared_ms, 0), r.part_ms, r.mps_percent,
        r.busy_ms, coalesce(r.busy_known_ms, 0), r.memory_mib_ms, coalesce(r.memory_known_ms, 0), r.memory_max_mib,
        r.energy_mj, coalesce(r.energy_known_ms, 0), r.process_ms, coalesce(r.process_known_ms, 0), coalesce(r.samples, 0),
        gpubudget.meter_time(r.last_busy_ms), gpubudget.meter_time(r.idle_since_ms)
    FROM jsonb_to_recordset(report -> 'buckets') AS r (starts_ms bigint, ends_ms bigint, gpu text, job_id bigint, restart bigint,
        incarnation uuid, seq bigint, source text, user_name text, account text, job_started_ms bigint,
        held_from_ms bigint, held_until_ms bigint, ended boolean, shared_ms bigint, part_ms bigint, mps_percent bigint,
        busy_ms bigint, busy_known_ms bigint, memory_mib_ms bigint, memory_known_ms bigint, memory_max_mib bigint,
        energy_mj bigint, energy_known_ms bigint, process_ms bigint, process_known_ms bigint, samples bigint,
        last_busy_ms bigint, idle_since_ms bigint)
    ORDER BY r.starts_ms, r.gpu COLLATE "C", r.job_id, r.restart, r.incarnation
    ON CONFLICT (cluster, starts_at, gpu, job_id, restart, incarnation) DO UPDATE SET
        seq = excluded.seq, held_from = excluded.held_from, held_until = excluded.held_until, held_ms = excluded.held_ms,
        ended = excluded.ended, shared_ms = excluded.shared_ms, part_ms = excluded.part_ms, mps_percent = excluded.mps_percent,
        busy_ms = excluded.busy_ms, busy_known_ms = excluded.busy_known_ms, memory_mib_ms = excluded.memory_mib_ms,
        memory_known_ms = excluded.memory_known_ms, memory_max_mib = excluded.memory_max_mib, energy_mj = excluded.energy_mj,
        energy_known_ms = excluded.energy_known_ms, process_ms = excluded.process_ms, process_known_ms = excluded.process_known_ms,
        samples = excluded.samples, last_busy_at = excluded.last_busy_at, idle_since = excluded.idle_since
    WHERE excluded.seq > b.seq;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.record_meter IS 'The one thing that an agent may do: add to what was used.';

REVOKE ALL ON gpubudget.gpu, gpubudget.agent, gpubudget.gpu_bucket FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION gpubudget.record_meter, gpubudget.make_partitions FROM PUBLIC;

-- The role that agents' roles are members of. Roles belong to the server and not
-- to a database, and making one takes a right that the schema's owner may lack:
-- then whoever has it makes it, and docs/agent.md has the two grants.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'gpubudget_agent') THEN
        BEGIN
            CREATE ROLE gpubudget_agent NOLOGIN;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- another database's migration was faster
            WHEN insufficient_privilege THEN NULL;
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gpubudget_agent') THEN
        GRANT USAGE ON SCHEMA gpubudget TO gpubudget_agent;
        GRANT EXECUTE ON FUNCTION gpubudget.record_meter TO gpubudget_agent;
    END IF;
END
$$;
-- +goose StatementEnd
