-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What a GPU is at work while several jobs hold it is recorded too, apart from what it
-- is while one job does: whose it is nobody knows, but that it is, and that it isn't.
-- So jobs that share a GPU are charged by what meters saw of it, and what a GPU was at
-- work while one job held it alone is all that job's.

-- +goose Up

ALTER TABLE gpubudget.gpu_bucket
    ADD COLUMN shared_busy_ms       bigint,                    -- the GPU's utilisation times time, of shared_ms; busy_ms is of the rest
    ADD COLUMN shared_busy_known_ms bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT gpu_bucket_shared_busy_valid CHECK (
        shared_busy_known_ms BETWEEN 0 AND shared_ms AND (shared_busy_known_ms = 0) = (shared_busy_ms IS NULL)
        AND shared_busy_ms BETWEEN 0 AND shared_busy_known_ms);

-- record_meter takes what an agent has to tell, all or nothing: that it lives,
-- what GPUs there are (if that changed), and totals of buckets. Whatever is
-- repeated or comes late changes nothing, and of what a report has twice the later
-- holds. Times are in milliseconds since 1970.
--
-- A total only grows, told by the node that told of it first, until its holding has
-- ended. Epilog's end may be read a moment after it: so what ends a holding may take
-- back up to a minute, once.
--
-- GB020: the node's clock is more than 5 minutes off. GB021: a bucket lies in the
-- future, or more than 35 days back. GB022: something would be less, or is another
-- node's. GB023: the login may not tell of the node.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.record_meter(report jsonb) RETURNS void
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

    -- The first is found by its key, where logins are bound; the others only if it is not.
    IF NOT EXISTS (SELECT FROM gpubudget.agent_login l WHERE l.cluster = of_cluster AND l.node = of_node AND l.role = session_user)
        AND EXISTS (SELECT FROM gpubudget.agent_login l WHERE l.role = session_user OR (l.cluster = of_cluster AND l.node = of_node))
    THEN
        RAISE EXCEPTION 'the login % may not tell of node % of cluster %', session_user, of_node, of_cluster
            USING ERRCODE = 'GB023', HINT = 'The table gpubudget.agent_login has who may.';
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
        busy_ms, busy_known_ms, shared_busy_ms, shared_busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib, energy_mj, energy_known_ms,
        process_ms, process_known_ms, samples, last_busy_at, idle_since)
    SELECT DISTINCT ON (r.starts_ms, r.gpu COLLATE "C", r.job_id, coalesce(r.restart, 0), r.incarnation)
        of_cluster, gpubudget.meter_time(r.starts_ms), gpubudget.meter_time(r.ends_ms), r.gpu, r.job_id, coalesce(r.restart, 0),
        r.incarnation, r.seq, of_node, r.source, coalesce(r.user_name, ''), coalesce(r.account, ''),
        gpubudget.meter_time(r.job_started_ms), gpubudget.meter_time(r.held_from_ms), gpubudget.meter_time(r.held_until_ms),
        r.held_until_ms - r.held_from_ms, coalesce(r.ended, false), coalesce(r.shared_ms, 0), r.part_ms, r.mps_percent,
        r.busy_ms, coalesce(r.busy_known_ms, 0), r.shared_busy_ms, coalesce(r.shared_busy_known_ms, 0),
        r.memory_mib_ms, coalesce(r.memory_known_ms, 0), r.memory_max_mib,
        r.energy_mj, coalesce(r.energy_known_ms, 0), r.process_ms, coalesce(r.process_known_ms, 0), coalesce(r.samples, 0),
        gpubudget.meter_time(r.last_busy_ms), gpubudget.meter_time(r.idle_since_ms)
    FROM jsonb_to_recordset(report -> 'buckets') AS r (starts_ms bigint, ends_ms bigint, gpu text, job_id bigint, restart bigint,
        incarnation uuid, seq bigint, source text, user_name text, account text, job_started_ms bigint,
        held_from_ms bigint, held_until_ms bigint, ended boolean, shared_ms bigint, part_ms bigint, mps_percent bigint,
        busy_ms bigint, busy_known_ms bigint, shared_busy_ms bigint, shared_busy_known_ms bigint, memory_mib_ms bigint, memory_known_ms bigint, memory_max_mib bigint,
        energy_mj bigint, energy_known_ms bigint, process_ms bigint, process_known_ms bigint, samples bigint,
        last_busy_ms bigint, idle_since_ms bigint)
    ORDER BY r.starts_ms, r.gpu COLLATE "C", r.job_id, coalesce(r.restart, 0), r.incarnation, r.seq DESC
    ON CONFLICT (cluster, starts_at, gpu, job_id, restart, incarnation) DO UPDATE SET
        seq = excluded.seq, held_from = excluded.held_from, held_until = excluded.held_until, held_ms = excluded.held_ms,
        ended = excluded.ended, shared_ms = excluded.shared_ms, part_ms = excluded.part_ms, mps_percent = excluded.mps_percent,
        busy_ms = excluded.busy_ms, busy_known_ms = excluded.busy_known_ms,
        shared_busy_ms = excluded.shared_busy_ms, shared_busy_known_ms = excluded.shared_busy_known_ms,
        memory_mib_ms = excluded.memory_mib_ms, memory_known_ms = excluded.memory_known_ms, memory_max_mib = excluded.memory_max_mib, energy_mj = excluded.energy_mj,
        energy_known_ms = excluded.energy_known_ms, process_ms = excluded.process_ms, process_known_ms = excluded.process_known_ms,
        samples = excluded.samples, last_busy_at = excluded.last_busy_at, idle_since = excluded.idle_since
    WHERE CASE
        WHEN excluded.seq <= b.seq THEN false
        WHEN excluded.node = b.node AND NOT b.ended AND excluded.held_from = b.held_from
            AND (excluded.held_ms >= b.held_ms OR excluded.ended AND excluded.held_ms >= b.held_ms - 60000)
            AND least(excluded.shared_ms - b.shared_ms, excluded.part_ms - b.part_ms,
                coalesce(excluded.busy_ms, 0) - coalesce(b.busy_ms, 0), excluded.busy_known_ms - b.busy_known_ms,
                coalesce(excluded.shared_busy_ms, 0) - coalesce(b.shared_busy_ms, 0), excluded.shared_busy_known_ms - b.shared_busy_known_ms,
                coalesce(excluded.process_ms, 0) - coalesce(b.process_ms, 0), excluded.process_known_ms - b.process_known_ms,
                excluded.memory_known_ms - b.memory_known_ms, excluded.energy_known_ms - b.energy_known_ms)
                >= least(excluded.held_ms - b.held_ms, 0)
            AND (excluded.memory_known_ms = 0 OR excluded.memory_mib_ms >= coalesce(b.memory_mib_ms, 0) AND excluded.memory_max_mib >= coalesce(b.memory_max_mib, 0))
            AND (excluded.energy_known_ms = 0 OR excluded.energy_mj >= coalesce(b.energy_mj, 0))
            AND excluded.samples >= b.samples
            THEN true
        ELSE gpubudget.refuse_bucket(b.job_id, b.gpu, b.starts_at, b.node, of_node, b.ended)
    END;
END
$$;
-- +goose StatementEnd

-- charge_metered has so many jobs that are due charged by what meters saw of their
-- runs, and those who shared GPUs with them; it returns how many were due. By the
-- policy in force when a run ended it is charged, beside what it held:
--   occupancy    nothing
--   utilisation  less, by how much of that was idle
--   max          more, by how much it was at work beyond its part of the GPUs
-- A GPU that was metered counts for as much as the run holds of it: all, or its
-- part. What a GPU was at work while others had parts of it too is told apart by these
-- parts, instant by instant; what it was at work while nobody else had any is the
-- run's. Of time that several incarnations of an agent have
-- counted, each counts for so much less; suspended time lies evenly in a run.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.charge_metered(of_cluster text, at_most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    jobs bigint[];
    due integer;
    first_t timestamptz;
    last_t timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM gpubudget.meter_due d WHERE d.cluster = of_cluster) THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('gpubudget.usage:' || of_cluster, 0));
    WITH taken AS (
        DELETE FROM gpubudget.meter_due d USING (
            SELECT m.job_id FROM gpubudget.meter_due m WHERE m.cluster = of_cluster ORDER BY m.job_id LIMIT at_most) AS next_ones
        WHERE d.cluster = of_cluster AND d.job_id = next_ones.job_id
        RETURNING d.job_id
    )
    SELECT array_agg(t.job_id) INTO jobs FROM taken t;
    due := cardinality(jobs);
    jobs := jobs || gpubudget.sharing_jobs(of_cluster, jobs);
    SELECT min(r.started_at), max(r.ended_at) INTO first_t, last_t FROM gpubudget.job_run r
    WHERE r.cluster = of_cluster AND r.job_id = ANY (jobs) AND r.ended_at IS NOT NULL;

    WITH run AS MATERIALIZED (
        SELECT r.job_id, r.started_at, r.ended_at, r.restart, r.metered_ms,
            gpubudget.charge_policy(of_cluster, r.ended_at) AS policy,
            (r.gpus::numeric * 1000000 + r.parts) / 1000000 AS held,
            CASE WHEN r.parts > 0 THEN gpubudget.part_of_gpu(r.gpus, r.parts, r.nodes) END AS part,
            gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(r.started_at) AS length,
            greatest(0, gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(r.started_at) - r.suspended_ms
                - CASE WHEN r.suspended_since < r.ended_at
                    THEN gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(greatest(r.suspended_since, r.started_at)) ELSE 0 END) AS busy
        FROM gpubudget.job_run r
        WHERE r.cluster = of_cluster AND r.job_id = ANY (jobs) AND r.ended_at IS NOT NULL
    ), stretch AS MATERIALIZED (
        SELECT r.job_id, r.started_at, r.length, CASE r.policy WHEN 'max' THEN r.part END AS part,
            b.gpu, b.held_ms, b.shared_ms, b.busy_known_ms::numeric + b.shared_busy_known_ms AS known,
            coalesce(b.busy_ms, 0)::numeric AS alone, coalesce(b.shared_busy_ms, 0)::numeric AS shared, t.from_t, t.until_t,
            gpubudget.unix_ms(t.until_t) - gpubudget.unix_ms(t.from_t) AS ms
        FROM run r JOIN gpubudget.gpu_bucket b ON b.job_id = r.job_id AND (b.restart = r.restart OR b.source = 'process')
            AND b.held_from < r.ended_at AND b.held_until > r.started_at
        CROSS JOIN LATERAL (SELECT greatest(b.held_from, r.started_at) AS from_t, least(b.held_until, r.ended_at) AS until_t) t
        WHERE r.policy <> 'occupancy' AND b.cluster = of_cluster AND b.starts_at > first_t - interval '1 day' AND b.starts_at < last_t
          AND (b.busy_ms IS NOT NULL OR b.shared_busy_ms IS NOT NULL)
    ), sharer AS MATERIALIZED ( -- who had how much of the GPUs of which others had parts, and when
        SELECT n.gpu, n.job_id, gpubudget.part_of_gpu(o.gpus, o.parts, o.nodes) AS part,
            greatest(n.held_from, o.started_at) AS from_t, least(n.held_until, coalesce(o.ended_at, 'infinity')) AS until_t
        FROM (SELECT DISTINCT s.gpu FROM stretch s WHERE s.part IS NOT NULL) g
        JOIN gpubudget.gpu_bucket n ON n.gpu = g.gpu
        JOIN gpubudget.job_run o ON o.cluster = of_cluster AND o.job_id = n.job_id AND (o.restart = n.restart OR n.source = 'process')
            AND o.started_at < n.held_until AND coalesce(o.ended_at, 'infinity') > n.held_from
        WHERE n.cluster = of_cluster AND n.starts_at > first_t - interval '1 day' AND n.starts_at < last_t
    ), told_apart AS ( -- how long nobody else had any, by these, and how much of the rest falls to the run
        SELECT s.*, a.alone_ms, a.shared_part FROM stretch s
        CROSS JOIN LATERAL (
            WITH other AS MATERIALIZED (
                SELECT o.job_id, o.part, greatest(o.from_t, s.from_t) AS from_t, least(o.until_t, s.until_t) AS until_t FROM sharer o
                WHERE o.gpu = s.gpu AND o.job_id <> s.job_id AND o.from_t < s.until_t AND o.until_t > s.from_t
            ), edge AS (
                SELECT e.at, lead(e.at) OVER (ORDER BY e.at) AS until FROM (
                    SELECT s.from_t UNION SELECT s.until_t UNION SELECT o.from_t FROM other o UNION SELECT o.until_t FROM other o) e (at)
            ), piece AS (
                SELECT gpubudget.unix_ms(e.until) - gpubudget.unix_ms(e.at) AS ms, (
                    SELECT sum(j.part) FROM (
                        SELECT max(o.part) AS part FROM other o WHERE o.from_t <= e.at AND o.until_t >= e.until GROUP BY o.job_id) j) AS others
                FROM edge e WHERE e.until IS NOT NULL
            )
            SELECT coalesce(sum(p.ms) FILTER (WHERE p.others IS NULL), 0) AS alone_ms,
                sum(p.ms * gpubudget.part_at_work(s.part, p.others)) FILTER (WHERE p.others IS NOT NULL)
                    / nullif(sum(p.ms) FILTER (WHERE p.others IS NOT NULL), 0) AS shared_part
            FROM piece p
        ) a
        WHERE s.part IS NOT NULL
        UNION ALL
        SELECT s.*, s.ms, 1 FROM stretch s WHERE s.part IS NULL
    ), answered AS (
        -- A holding that the meter found late may have shared what it had counted as one job's alone.
        SELECT t.*, coalesce(t.shared_part, 1) AS of_shared,
            CASE WHEN t.shared_part IS NULL OR t.alone_ms * t.held_ms::numeric >= (t.held_ms - t.shared_ms) * t.ms::numeric THEN 1
                ELSE t.shared_part + (1 - t.shared_part) * t.alone_ms * t.held_ms / ((t.held_ms - t.shared_ms) * t.ms::numeric) END AS of_alone
        FROM told_apart t
    ), gpu AS (
        SELECT p.job_id, p.started_at, p.length, sum(p.ms) AS ms,
            sum(p.known * p.ms / p.held_ms) AS known, sum((p.alone + p.shared) * p.ms / p.held_ms) AS busy,
            sum((p.alone * p.of_alone + p.shared * p.of_shared) * p.ms / p.held_ms) AS own
        FROM answered p
        GROUP BY p.job_id, p.started_at, p.length, p.gpu
    ), seen AS (
        SELECT g.job_id, g.started_at, count(*) AS gpus,
            sum(g.known * least(1, g.length / g.ms::numeric)) AS known,
            sum(g.busy * least(1, g.length / g.ms::numeric)) AS busy,
            sum(g.own * least(1, g.length / g.ms::numeric)) AS own
        FROM gpu g GROUP BY g.job_id, g.started_at
    ), charge AS (
        SELECT r.job_id, r.started_at, r.metered_ms, trunc(
            CASE
                WHEN s.gpus IS NULL THEN 0
                WHEN r.policy = 'utilisation' THEN greatest(-r.held * r.busy, least(1, r.held / s.gpus) * (s.busy - s.known) * r.busy / r.length)
                ELSE greatest(0, s.own - least(1, r.held / s.gpus) * s.known) * r.busy / r.length
            END)::bigint AS charged
        FROM run r LEFT JOIN seen s USING (job_id, started_at)
    )
    UPDATE gpubudget.job_run r SET metered_ms = c.charged
    FROM charge c
    WHERE r.cluster = of_cluster AND r.job_id = c.job_id AND r.started_at = c.started_at AND c.charged <> r.metered_ms;
    RETURN due;
END
$$;
-- +goose StatementEnd

-- Runs with parts of GPUs that were charged by max are due again.
INSERT INTO gpubudget.meter_due (cluster, job_id)
SELECT DISTINCT r.cluster, r.job_id FROM gpubudget.job_run r
WHERE r.parts > 0 AND r.ended_at IS NOT NULL AND gpubudget.charge_policy(r.cluster, r.ended_at) = 'max'
ON CONFLICT DO NOTHING;
