-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- A job on shards or MPS holds a part of a GPU, and its node's meter counts for how
-- long it held the GPU. So that the two can be held against each other, in the sums
-- of what runs used (metered_bucket.used_ms) a run counts each GPU that it is on,
-- whatever its part of it.

-- +goose Up

-- Who records runs waits: none shall count in the old way after the sums are right.
LOCK TABLE gpubudget.job_run IN SHARE ROW EXCLUSIVE MODE;

-- node_count is how many nodes a list of Slurm's stands for, "n[1-3,07],m": 1 if it
-- can't be read.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.node_count(nodes text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    item text;
    inside text;
    names bigint;
    total bigint := 0;
BEGIN
    IF nodes !~ '^(?:[^][,]|\[[^][]+\])+(?:,(?:[^][,]|\[[^][]+\])+)*$' THEN
        RETURN 1;
    END IF;
    FOR item IN SELECT m[1] FROM regexp_matches(nodes, '((?:[^][,]|\[[^][]*\])+)', 'g') m LOOP
        names := 1;
        FOR inside IN SELECT m[1] FROM regexp_matches(item, '\[([^]]*)\]', 'g') m LOOP
            names := names * (
                SELECT CASE WHEN bool_and(r ~ '^\d{1,9}(-\d{1,9})?$') THEN sum(CASE WHEN r ~ '^\d{1,9}(-\d{1,9})?$'
                    THEN coalesce(nullif(split_part(r, '-', 2), ''), r)::bigint - split_part(r, '-', 1)::bigint + 1 END) END
                FROM regexp_split_to_table(inside, ',') r);
            IF names IS NULL OR names NOT BETWEEN 1 AND 65536 THEN
                RETURN 1;
            END IF;
        END LOOP;
        total := total + names;
    END LOOP;
    RETURN greatest(total, 1);
END
$$;
-- +goose StatementEnd

-- run_gpus is on how many GPUs a run has whole GPUs, or parts of some, which are in
-- millionths: of one on shards at least one on each of its nodes.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_gpus(gpus bigint, parts bigint, nodes text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN gpus + CASE WHEN parts = 0 THEN 0 ELSE greatest((parts + 999999) / 1000000, gpubudget.node_count(nodes)) END;
-- +goose StatementEnd

-- OFFSET has the number of GPUs be found once for a run, and not for each hour.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.sum_up_runs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changes gpubudget.metered_delta[];
BEGIN
    IF TG_OP <> 'INSERT' THEN
        SELECT array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, -b.used_ms, 0, 0, 0, 0, 0, 0)::gpubudget.metered_delta)
        INTO changes
        FROM (SELECT *, gpubudget.run_gpus(gpus, parts, nodes) AS held FROM gone OFFSET 0) r,
            gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.held, 0) b
        WHERE r.ended_at > r.started_at AND r.held > 0;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT changes || array_agg(ROW(r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, b.used_ms, 0, 0, 0, 0, 0, 0)::gpubudget.metered_delta)
        INTO changes
        FROM (SELECT *, gpubudget.run_gpus(gpus, parts, nodes) AS held FROM come OFFSET 0) r,
            gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.held, 0) b
        WHERE r.ended_at > r.started_at AND r.held > 0;
    END IF;
    INSERT INTO gpubudget.metered_delta
    SELECT c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, 0, sum(c.used_ms), 0, 0, 0, 0, 0, 0
    FROM unnest(changes) c
    GROUP BY 1, 2, 3, 4, 5 HAVING sum(c.used_ms) <> 0;
    IF random() < 0.002 THEN
        PERFORM gpubudget.fold_meter();
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What runs with parts of GPUs count for more than before.
INSERT INTO gpubudget.metered_delta
SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, 0, sum(r.sign * b.used_ms), 0, 0, 0, 0, 0, 0
FROM (
    SELECT r.*, s.sign, CASE s.sign WHEN 1 THEN gpubudget.run_gpus(r.gpus, r.parts, r.nodes) ELSE r.gpus END AS held, CASE s.sign WHEN 1 THEN 0 ELSE r.parts END AS of
    FROM gpubudget.job_run r, (VALUES (1), (-1)) s (sign)
    WHERE r.parts > 0 AND r.ended_at > r.started_at
    OFFSET 0
) r, gpubudget.run_hours(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, r.held, r.of) b
GROUP BY 1, 2, 3, 4, 5 HAVING sum(r.sign * b.used_ms) <> 0;

COMMENT ON COLUMN gpubudget.metered_bucket.used_ms IS 'Of ended runs: time on each GPU that a run was on, whatever its part of it.';
