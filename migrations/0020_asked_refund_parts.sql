-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- The minimum runtimes that waiting jobs ask for, which no command of Slurm's
-- shows; and where in its time a refund lies, if what the run counted for has
-- changed while it ran.

-- +goose Up

-- Only jobs that wait and ask for a time: all others get what the policy says.
CREATE TABLE gpubudget.job_asked (
    cluster        text COLLATE "C" NOT NULL,
    job_id         bigint NOT NULL CHECK (job_id BETWEEN 1 AND 4294967295),
    min_runtime_ms bigint NOT NULL CHECK (min_runtime_ms >= 0),
    PRIMARY KEY (cluster, job_id)
);

REVOKE ALL ON gpubudget.job_asked FROM PUBLIC;

-- Whoever writes or reads the queue does the same with this.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT a.grantee, a.privilege_type, a.is_grantable
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.queue'::regclass AND a.grantee <> c.relowner
          AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON gpubudget.job_asked TO %s%s', held.privilege_type,
            CASE WHEN held.grantee = 0 THEN 'PUBLIC' ELSE held.grantee::regrole::text END,
            CASE WHEN held.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Between the beginning of a refund, these instants and its end it lies evenly. It
-- takes out of each what the run was charged there. Entries of earlier releases
-- have none, and lie evenly over all their time.
ALTER TABLE gpubudget.ledger ADD COLUMN amount_parts bigint[];
COMMENT ON COLUMN gpubudget.ledger.amount_parts IS
    'Of a refund, by PostgreSQL: milliseconds since 1970, how much of the amount lies before, and so on; NULL: it lies evenly.';
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_parts_valid CHECK (amount_parts IS NULL OR kind = 'refund');

-- refund_parts are the parts of a refund of so much of what a run was charged in
-- that time.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.refund_parts(run gpubudget.job_run, from_t timestamptz, until_t timestamptz, amount bigint, charged bigint) RETURNS bigint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(p.part ORDER BY c.at_ms, p.n)
    FROM (
        SELECT run.rate_changes[i] AS at_ms FROM generate_series(1, coalesce(cardinality(run.rate_changes), 0), 2) i
    ) c
    CROSS JOIN LATERAL (VALUES
        (1, c.at_ms),
        (2, CASE WHEN charged > 0 THEN
            div(gpubudget.run_charge(run, from_t, gpubudget.from_unix_ms(c.at_ms))::numeric * amount, charged)::bigint ELSE 0 END)
    ) p (n, part)
    WHERE c.at_ms > gpubudget.unix_ms(from_t) AND c.at_ms < gpubudget.unix_ms(until_t)
$$;
-- +goose StatementEnd

-- refund_pieces are the stretches of time in which a refund lies evenly.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.refund_pieces(from_t timestamptz, until_t timestamptz, amount bigint, parts bigint[])
RETURNS TABLE (starts_at timestamptz, ends_at timestamptz, gpu_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT
        CASE WHEN k = 0 THEN from_t ELSE gpubudget.from_unix_ms(parts[2 * k - 1]) END,
        CASE WHEN k = n THEN until_t ELSE gpubudget.from_unix_ms(parts[2 * k + 1]) END,
        CASE WHEN k = n THEN amount ELSE parts[2 * k + 2] END - CASE WHEN k = 0 THEN 0 ELSE parts[2 * k] END
    FROM (SELECT coalesce(cardinality(parts), 0) / 2 AS n) c, generate_series(0, n) k
$$;
-- +goose StatementEnd

-- As before, and it has the refund lie where the charge lies.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.accept_refund() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run gpubudget.job_run;
    earlier bigint;
    problem text;
    charged bigint;
BEGIN
    SELECT l.seq INTO earlier FROM gpubudget.ledger l
    WHERE l.cluster = NEW.cluster AND l.kind = 'refund' AND l.job_id = NEW.job_id AND l.job_started_at = NEW.job_started_at;
    SELECT * INTO run FROM gpubudget.job_run r
    WHERE r.cluster = NEW.cluster AND r.job_id = NEW.job_id AND r.started_at = NEW.job_started_at;
    problem := CASE
        WHEN earlier IS NOT NULL THEN 'refunded'
        WHEN run.job_id IS NULL THEN 'unknown'
        WHEN run.ended_at IS NULL THEN 'running'
        WHEN NOT run.allocated THEN 'unallocated'
        WHEN run.account <> NEW.account OR run.user_name <> NEW.user_name THEN 'owner'
        WHEN NEW.effective_from < run.started_at OR NEW.effective_until > run.ended_at THEN 'period'
    END;
    IF problem IS NULL THEN
        charged := gpubudget.run_charge(run, NEW.effective_from, NEW.effective_until);
        IF NEW.amount > charged + 1 THEN -- roundings of two edges
            problem := 'amount';
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the refund of job % (run of %) is refused: %', NEW.job_id, NEW.job_started_at, problem
            USING ERRCODE = 'GB011',
                  DETAIL = jsonb_strip_nulls(jsonb_build_object('job', NEW.job_id, 'at', NEW.job_started_at,
                      'problem', problem, 'seq', earlier, 'charged', charged))::text,
                  HINT = 'gpubudget refund works out what there is to refund.';
    END IF;
    NEW.amount_parts := gpubudget.refund_parts(run, NEW.effective_from, NEW.effective_until, NEW.amount, charged);
    RETURN NEW;
END
$$;
-- +goose StatementEnd
