-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- Agents can only add to what was used: what has been told grows, is told of by one
-- node, and is final when its holding has ended. Where each node has a login of its
-- own, it can be bound to the node.

-- +goose Up

-- Which login tells of which node. A login that is here tells of no other node, and of
-- a node that is here no other login tells; the rest may tell of any of the rest.
CREATE TABLE gpubudget.agent_login (
    cluster text COLLATE "C" NOT NULL,
    node    text COLLATE "C" NOT NULL,
    role    name NOT NULL, -- that the agent logs in as
    PRIMARY KEY (cluster, node, role)
);

COMMENT ON TABLE gpubudget.agent_login IS 'Which login tells of which node; kept by hand.';

REVOKE ALL ON gpubudget.agent_login FROM PUBLIC;

-- refuse_bucket says why a bucket is not changed. It never returns.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.refuse_bucket(job bigint, gpu text, starts timestamptz, told_by text, of_node text, ended boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the bucket of job % on % at % stays as it is: %', job, gpu, starts, CASE
            WHEN told_by <> of_node THEN format('it is of node %s, and not of %s', told_by, of_node)
            WHEN ended THEN 'what was held has ended'
            ELSE 'an agent adds, and this would be less' END
        USING ERRCODE = 'GB022';
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION gpubudget.refuse_bucket FROM PUBLIC;

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
        busy_ms, busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib, energy_mj, energy_known_ms,
        process_ms, process_known_ms, samples, last_busy_at, idle_since)
    SELECT DISTINCT ON (r.starts_ms, r.gpu COLLATE "C", r.job_id, coalesce(r.restart, 0), r.incarnation)
        of_cluster, gpubudget.meter_time(r.starts_ms), gpubudget.meter_time(r.ends_ms), r.gpu, r.job_id, coalesce(r.restart, 0),
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
    ORDER BY r.starts_ms, r.gpu COLLATE "C", r.job_id, coalesce(r.restart, 0), r.incarnation, r.seq DESC
    ON CONFLICT (cluster, starts_at, gpu, job_id, restart, incarnation) DO UPDATE SET
        seq = excluded.seq, held_from = excluded.held_from, held_until = excluded.held_until, held_ms = excluded.held_ms,
        ended = excluded.ended, shared_ms = excluded.shared_ms, part_ms = excluded.part_ms, mps_percent = excluded.mps_percent,
        busy_ms = excluded.busy_ms, busy_known_ms = excluded.busy_known_ms, memory_mib_ms = excluded.memory_mib_ms,
        memory_known_ms = excluded.memory_known_ms, memory_max_mib = excluded.memory_max_mib, energy_mj = excluded.energy_mj,
        energy_known_ms = excluded.energy_known_ms, process_ms = excluded.process_ms, process_known_ms = excluded.process_known_ms,
        samples = excluded.samples, last_busy_at = excluded.last_busy_at, idle_since = excluded.idle_since
    WHERE CASE
        WHEN excluded.seq <= b.seq THEN false
        WHEN excluded.node = b.node AND NOT b.ended AND excluded.held_from = b.held_from
            AND (excluded.held_ms >= b.held_ms OR excluded.ended AND excluded.held_ms >= b.held_ms - 60000)
            AND least(excluded.shared_ms - b.shared_ms, excluded.part_ms - b.part_ms,
                coalesce(excluded.busy_ms, 0) - coalesce(b.busy_ms, 0), excluded.busy_known_ms - b.busy_known_ms,
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
