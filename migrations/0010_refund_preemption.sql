-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- Refunds of what a run was charged and lost, in the ledger; and the record of
-- preemptions.

-- +goose Up

-- A refund names the run: the job and its start. It holds in the period that was
-- lost, all of the run or the last part of it.
ALTER TABLE gpubudget.ledger
    ADD COLUMN job_id         bigint,
    ADD COLUMN job_started_at timestamptz;
COMMENT ON COLUMN gpubudget.ledger.job_id IS 'The job of a refund; with job_started_at the run in job_run.';

ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_job_valid CHECK (job_id BETWEEN 1 AND 4294967295);
ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_kind_valid;
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_kind_valid CHECK (
    CASE WHEN kind = 'refund' THEN
        num_nulls(account, user_name, amount, effective_until, job_id, job_started_at) = 0
        AND num_nonnulls(parent, receiver, share, setting, value) = 0
    ELSE
        num_nonnulls(job_id, job_started_at) = 0
        AND CASE kind
            WHEN 'account_add' THEN
                num_nulls(account, parent, share) = 0
                AND num_nonnulls(receiver, user_name, amount, setting, value) = 0
            WHEN 'account_move' THEN -- without a share the account keeps the one it has
                num_nulls(account, parent) = 0
                AND num_nonnulls(receiver, user_name, amount, setting, value) = 0
            WHEN 'account_close' THEN
                account IS NOT NULL
                AND num_nonnulls(parent, receiver, user_name, share, amount, setting, value) = 0
            WHEN 'share_set' THEN
                num_nulls(account, share) = 0
                AND num_nonnulls(parent, receiver, user_name, amount, setting, value) = 0
            WHEN 'user_add' THEN
                num_nulls(account, user_name, share) = 0
                AND num_nonnulls(parent, receiver, amount, setting, value) = 0
            WHEN 'user_remove' THEN
                num_nulls(account, user_name) = 0
                AND num_nonnulls(parent, receiver, share, amount, setting, value) = 0
            WHEN 'user_share_set' THEN
                num_nulls(account, user_name, share) = 0
                AND num_nonnulls(parent, receiver, amount, setting, value) = 0
            WHEN 'deposit' THEN
                num_nulls(account, amount, effective_until) = 0
                AND num_nonnulls(parent, receiver, user_name, share, setting, value) = 0
            WHEN 'transfer' THEN
                num_nulls(account, receiver, amount, effective_until) = 0
                AND num_nonnulls(parent, user_name, share, setting, value) = 0
            WHEN 'policy_set' THEN
                num_nulls(setting, value) = 0
                AND num_nonnulls(account, parent, receiver, user_name, share, amount) = 0
            WHEN 'weight_set' THEN -- without a weight: as if nothing was said
                gpu_type IS NOT NULL
                AND num_nonnulls(account, parent, receiver, user_name, share, amount, setting, value) = 0
            ELSE false
        END
    END);

-- A run is refunded once, whatever keys are given.
CREATE UNIQUE INDEX ledger_refund ON gpubudget.ledger (cluster, job_id, job_started_at) WHERE kind = 'refund';
CREATE INDEX ledger_refunded ON gpubudget.ledger (cluster, effective_until) WHERE kind = 'refund';
-- For those that are due.
CREATE INDEX job_run_failed ON gpubudget.job_run (cluster, ended_at) WHERE end_state = 'NODE_FAIL';

-- What a run was charged from one instant to another, both within it, ended as
-- it is in the record.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_charge(r gpubudget.job_run, from_t timestamptz, until_t timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN gpubudget.run_charged(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
            r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, until_t)
         - gpubudget.run_charged(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
            r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, from_t);
END
$$;
-- +goose StatementEnd

-- A refund gives back no more than the run was charged, to who was charged, for
-- a time in which it ran.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.accept_refund() RETURNS trigger
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
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- After accept_entry, by name: that has made names and times what they are.
CREATE TRIGGER accept_refund BEFORE INSERT ON gpubudget.ledger
    FOR EACH ROW WHEN (NEW.kind = 'refund') EXECUTE FUNCTION gpubudget.accept_refund();
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER accept_refund;

-- A preemption: a run that had to give way, by which rule, and how both accounts
-- stood at that moment. A run gives way once; job_run says how it ended.
CREATE TABLE gpubudget.preemption (
    cluster         text COLLATE "C" NOT NULL,
    job_id          bigint      NOT NULL,
    started_at      timestamptz NOT NULL, -- of the run
    at              timestamptz NOT NULL,
    rule            text COLLATE "C" NOT NULL CHECK (rule ~ '^(R[0-9]+|drain)$'), -- docs/contract.md
    mode            text COLLATE "C" NOT NULL DEFAULT '', -- requeue or cancel; empty: not known
    node            text COLLATE "C" NOT NULL DEFAULT '', -- that is drained, of rule drain
    restart         bigint      NOT NULL DEFAULT 0,
    account         text COLLATE "C" NOT NULL,
    user_name       text COLLATE "C" NOT NULL,
    gpus            bigint      NOT NULL CHECK (gpus >= 0),
    allocated       boolean     NOT NULL,
    min_runtime_ms  bigint      NOT NULL DEFAULT 0,
    protected_until timestamptz,          -- NULL: it never was protected
    qos_priority    bigint      NOT NULL DEFAULT 0,
    nice            bigint      NOT NULL DEFAULT 0,
    ratio           double precision,     -- due by charged, Infinity if nothing was charged; NULL: not known
    rank            bigint,               -- 1 is the most under-served; NULL: has none
    -- Whom it gave way to; all NULL if nobody.
    for_job_id         bigint,
    for_restart        bigint,
    for_account        text COLLATE "C",
    for_user_name      text COLLATE "C",
    for_gpus           bigint CHECK (for_gpus >= 0),
    for_allocated      boolean,
    for_min_runtime_ms bigint,
    for_qos_priority   bigint,
    for_nice           bigint,
    for_ratio          double precision,
    for_rank           bigint,
    PRIMARY KEY (cluster, job_id, started_at)
);
CREATE INDEX preemption_at ON gpubudget.preemption (cluster, at);
CREATE INDEX preemption_for ON gpubudget.preemption (cluster, for_job_id) WHERE for_job_id IS NOT NULL;

REVOKE ALL ON gpubudget.preemption FROM PUBLIC;

-- Whoever writes or reads runs does the same with preemptions.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT a.grantee, a.privilege_type, a.is_grantable
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.job_run'::regclass AND a.grantee <> c.relowner
          AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON gpubudget.preemption TO %s%s', held.privilege_type,
            CASE WHEN held.grantee = 0 THEN 'PUBLIC' ELSE held.grantee::regrole::text END,
            CASE WHEN held.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$$;
-- +goose StatementEnd
