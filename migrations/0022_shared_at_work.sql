-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What a shared GPU was at work is told apart by the parts of it that its jobs have
-- by Slurm's record, their shards, and no longer by those that the meters gave them.
-- So under charge=max all its jobs together are charged for no more than what they
-- hold of it, or what it was at work if that is more.

-- +goose Up

-- part_at_work is what of a shared GPU's work falls to a job that has a part of it,
-- while others have theirs: as its part is to all of them.
CREATE FUNCTION gpubudget.part_at_work(part numeric, others numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN part / (part + others);

-- part_of_gpu is a run's part of each GPU that it is on.
CREATE FUNCTION gpubudget.part_of_gpu(gpus bigint, parts bigint, nodes text) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(1, (gpus::numeric * 1000000 + parts) / 1000000 / greatest(1, gpubudget.run_gpus(gpus, parts, nodes)));

-- sharing_jobs are other jobs that were on GPUs of these ones while they were, as far
-- as these have parts of GPUs: what falls to them depends on these.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.sharing_jobs(of_cluster text, jobs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    first_t timestamptz;
    last_t timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM gpubudget.ledger l WHERE l.cluster = of_cluster AND l.kind = 'policy_set' AND l.setting = 'charge' AND l.value = 'max') THEN
        RETURN '{}';
    END IF;
    SELECT min(r.started_at), max(coalesce(r.ended_at, 'infinity')) INTO first_t, last_t FROM gpubudget.job_run r
    WHERE r.cluster = of_cluster AND r.job_id = ANY (jobs) AND r.parts > 0;
    IF first_t IS NULL THEN
        RETURN '{}';
    END IF;
    RETURN (
        SELECT coalesce(array_agg(DISTINCT n.job_id), '{}')
        FROM gpubudget.gpu_bucket b
        JOIN gpubudget.gpu_bucket n ON n.gpu = b.gpu AND n.held_from < b.held_until AND n.held_until > b.held_from
        WHERE b.cluster = of_cluster AND b.starts_at > first_t - interval '1 day' AND b.starts_at < last_t AND b.job_id = ANY (jobs)
          AND n.cluster = of_cluster AND n.starts_at > first_t - interval '2 days' AND n.starts_at < last_t AND n.job_id <> ALL (jobs));
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION gpubudget.sharing_jobs FROM PUBLIC;

-- charge_metered has so many jobs that are due charged by what meters saw of their
-- runs, and those who shared GPUs with them; it returns how many were due. By the
-- policy in force when a run ended it is charged, beside what it held:
--   occupancy    nothing
--   utilisation  less, by how much of that was idle
--   max          more, by how much it was at work beyond its part of the GPUs
-- A GPU that was metered counts for as much as the run holds of it: all, or its
-- part. What a GPU was at work on which others had parts too is told apart by these
-- parts, instant by instant. Of time that several incarnations of an agent have
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
            b.gpu, b.held_ms, b.busy_known_ms::numeric AS known, b.busy_ms::numeric AS busy, t.from_t, t.until_t,
            gpubudget.unix_ms(t.until_t) - gpubudget.unix_ms(t.from_t) AS ms
        FROM run r JOIN gpubudget.gpu_bucket b ON b.job_id = r.job_id AND (b.restart = r.restart OR b.source = 'process')
            AND b.held_from < r.ended_at AND b.held_until > r.started_at
        CROSS JOIN LATERAL (SELECT greatest(b.held_from, r.started_at) AS from_t, least(b.held_until, r.ended_at) AS until_t) t
        WHERE r.policy <> 'occupancy' AND b.cluster = of_cluster AND b.starts_at > first_t - interval '1 day' AND b.starts_at < last_t
          AND b.busy_ms IS NOT NULL
    ), sharer AS MATERIALIZED ( -- who had how much of the GPUs of which others had parts, and when
        SELECT n.gpu, n.job_id, gpubudget.part_of_gpu(o.gpus, o.parts, o.nodes) AS part,
            greatest(n.held_from, o.started_at) AS from_t, least(n.held_until, coalesce(o.ended_at, 'infinity')) AS until_t
        FROM (SELECT DISTINCT s.gpu FROM stretch s WHERE s.part IS NOT NULL) g
        JOIN gpubudget.gpu_bucket n ON n.gpu = g.gpu
        JOIN gpubudget.job_run o ON o.cluster = of_cluster AND o.job_id = n.job_id AND (o.restart = n.restart OR n.source = 'process')
            AND o.started_at < n.held_until AND coalesce(o.ended_at, 'infinity') > n.held_from
        WHERE n.cluster = of_cluster AND n.starts_at > first_t - interval '1 day' AND n.starts_at < last_t
    ), told_apart AS (
        SELECT s.*, CASE WHEN s.part IS NULL THEN s.ms ELSE (
            WITH other AS MATERIALIZED (
                SELECT o.job_id, o.part, greatest(o.from_t, s.from_t) AS from_t, least(o.until_t, s.until_t) AS until_t FROM sharer o
                WHERE o.gpu = s.gpu AND o.job_id <> s.job_id AND o.from_t < s.until_t AND o.until_t > s.from_t
            ), edge AS (
                SELECT e.at, lead(e.at) OVER (ORDER BY e.at) AS until FROM (
                    SELECT s.from_t UNION SELECT s.until_t UNION SELECT o.from_t FROM other o UNION SELECT o.until_t FROM other o) e (at)
            )
            SELECT sum((gpubudget.unix_ms(e.until) - gpubudget.unix_ms(e.at)) * gpubudget.part_at_work(s.part, coalesce((
                SELECT sum(j.part) FROM (
                    SELECT max(o.part) AS part FROM other o WHERE o.from_t <= e.at AND o.until_t >= e.until GROUP BY o.job_id) j), 0)))
            FROM edge e WHERE e.until IS NOT NULL
        ) END AS own_ms
        FROM stretch s
    ), gpu AS (
        SELECT p.job_id, p.started_at, p.length, sum(p.ms) AS ms,
            sum(p.known * p.ms / p.held_ms) AS known, sum(p.busy * p.ms / p.held_ms) AS busy,
            sum(p.busy * p.own_ms / p.held_ms) AS own
        FROM told_apart p
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

-- Notes the jobs of runs that have ended, or are other than they were; and of runs
-- that have parts of GPUs also those that go on, since others share these. Runs with
-- the rights of the table's owner: who writes runs need not know of it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.note_run() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gpubudget.ledger l WHERE l.kind = 'policy_set' AND l.setting = 'charge') THEN
        RETURN NULL; -- on no cluster at all
    END IF;
    IF NOT EXISTS (SELECT FROM (SELECT DISTINCT cluster FROM come) c WHERE gpubudget.charges_metered(c.cluster)) THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO gpubudget.meter_due (cluster, job_id)
        SELECT DISTINCT c.cluster, c.job_id FROM come c WHERE c.ended_at IS NOT NULL OR c.parts > 0 ORDER BY c.cluster, c.job_id
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END IF;
    INSERT INTO gpubudget.meter_due (cluster, job_id)
    SELECT DISTINCT c.cluster, c.job_id
    FROM come c JOIN gone g USING (cluster, job_id, started_at)
    WHERE (c.ended_at IS NOT NULL OR c.parts > 0 OR g.parts > 0)
      AND (c.ended_at, c.restart, c.gpus, c.parts, c.nodes, c.suspended_ms, c.suspended_since)
        IS DISTINCT FROM (g.ended_at, g.restart, g.gpus, g.parts, g.nodes, g.suspended_ms, g.suspended_since)
    ORDER BY c.cluster, c.job_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Runs with parts of GPUs that were charged by max are due again.
INSERT INTO gpubudget.meter_due (cluster, job_id)
SELECT DISTINCT r.cluster, r.job_id FROM gpubudget.job_run r
WHERE r.parts > 0 AND r.ended_at IS NOT NULL AND gpubudget.charge_policy(r.cluster, r.ended_at) = 'max'
ON CONFLICT DO NOTHING;
