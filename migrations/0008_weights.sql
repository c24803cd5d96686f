-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- What GPUs count for. An entry of the ledger gives the GPUs of a type a weight;
-- a run is charged for each instant by the weight in force at it, and capacity is
-- counted by the same weights. docs/weights.md tells how.

-- +goose Up

-- Entries ---------------------------------------------------------------------

ALTER TABLE gpubudget.ledger
    ADD COLUMN gpu_type text COLLATE "C",
    ADD COLUMN weight bigint;

COMMENT ON COLUMN gpubudget.ledger.gpu_type IS 'Slurm''s type of the GPUs that a weight is of, in lower case; * for all that no other entry names.';
COMMENT ON COLUMN gpubudget.ledger.weight IS 'What one GPU of the type counts for: thousandths of a GPU of weight 1. NULL takes back what was said.';

ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_weight_valid CHECK (
    CASE kind
        WHEN 'weight_set' THEN
            (gpu_type = '*' OR gpu_type ~ '^[!-~]{1,128}$' AND gpu_type !~ '[A-Z"''`,|=:;\\*]')
            AND weight BETWEEN 0 AND 1000000
        ELSE num_nonnulls(gpu_type, weight) = 0
    END);

ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_kind_valid;
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_kind_valid CHECK (
    CASE kind
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
    END);

CREATE INDEX ledger_weight ON gpubudget.ledger (cluster, gpu_type, effective_from, seq) WHERE kind = 'weight_set';

-- One more setting: what is charged.
ALTER TABLE gpubudget.ledger DROP CONSTRAINT ledger_policy_valid;
ALTER TABLE gpubudget.ledger ADD CONSTRAINT ledger_policy_valid CHECK (
    CASE setting
        WHEN 'mode' THEN value IN ('strict', 'additive')
        WHEN 'lookback' THEN value ~ '^[1-9][0-9]{1,8}s$' AND rtrim(value, 's')::bigint BETWEEN 60 AND 316224000
        WHEN 'bucket' THEN value ~ '^[1-9][0-9]{0,4}s$' AND 86400 % rtrim(value, 's')::bigint = 0
        WHEN 'refresh' THEN value ~ '^[1-9][0-9]{0,4}s$' AND rtrim(value, 's')::bigint BETWEEN 1 AND 86400
        WHEN 'min_runtime' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        WHEN 'min_runtime_cap' THEN value ~ '^(0|[1-9][0-9]{0,7})s$' AND rtrim(value, 's')::bigint <= 31622400
        WHEN 'keep_meter' THEN value ~ '^[1-9][0-9]{4,8}s$' AND rtrim(value, 's')::bigint BETWEEN 86400 AND 316224000
        WHEN 'charge' THEN value IN ('occupancy', 'utilisation', 'max')
        ELSE setting IS NULL
    END);

-- As before, and a key is of a weight too.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.accept_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
    SET jit = off
AS $$
DECLARE
    earlier gpubudget.ledger;
    is_member boolean;
BEGIN
    NEW.account := lower(NEW.account);
    NEW.parent := lower(NEW.parent);
    NEW.receiver := lower(NEW.receiver);
    NEW.gpu_type := lower(NEW.gpu_type);
    NEW.effective_from := date_trunc('milliseconds', NEW.effective_from);
    NEW.effective_until := date_trunc('milliseconds', NEW.effective_until);

    PERFORM gpubudget.take_turn(NEW.cluster);

    IF NEW.key IS NOT NULL THEN
        SELECT * INTO earlier FROM gpubudget.ledger l WHERE l.cluster = NEW.cluster AND l.key = NEW.key;
        IF FOUND THEN
            IF (NEW.kind, NEW.account, NEW.parent, NEW.receiver, NEW.user_name, NEW.share, NEW.amount,
                NEW.setting, NEW.value, NEW.gpu_type, NEW.weight, NEW.effective_until, coalesce(NEW.effective_from, earlier.effective_from))
               IS NOT DISTINCT FROM
               (earlier.kind, earlier.account, earlier.parent, earlier.receiver, earlier.user_name, earlier.share,
                earlier.amount, earlier.setting, earlier.value, earlier.gpu_type, earlier.weight, earlier.effective_until, earlier.effective_from)
            THEN
                RETURN NULL;
            END IF;
            RAISE EXCEPTION 'key "%" was used for another entry (number %)', NEW.key, earlier.seq
                USING ERRCODE = 'GB010',
                      DETAIL = jsonb_build_object('key', NEW.key, 'seq', earlier.seq)::text,
                      HINT = 'Use a new key for a new entry.';
        END IF;
    END IF;

    NEW.recorded_at := clock_timestamp();
    NEW.db_role := session_user;
    NEW.effective_from := coalesce(NEW.effective_from, date_trunc('milliseconds', NEW.recorded_at));

    IF NEW.kind IN ('account_add', 'account_move', 'account_close', 'share_set', 'deposit', 'transfer') THEN
        PERFORM gpubudget.require_not_root(NEW.account, NEW.kind);
        PERFORM gpubudget.require_not_root(NEW.receiver, NEW.kind);
    END IF;
    IF NEW.kind = 'account_add' THEN
        INSERT INTO gpubudget.account (cluster, name) VALUES (NEW.cluster, NEW.account) ON CONFLICT DO NOTHING;
        SELECT * INTO earlier FROM gpubudget.ledger l
        WHERE l.cluster = NEW.cluster AND l.account = NEW.account AND l.kind IN ('account_add', 'account_close')
          AND l.effective_from <= NEW.effective_from
          AND (l.effective_until IS NULL OR l.effective_until > NEW.effective_from)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1;
        IF earlier.kind = 'account_add' THEN
            RAISE EXCEPTION 'account "%" is open already, since %', NEW.account, earlier.effective_from
                USING ERRCODE = 'GB004',
                      DETAIL = jsonb_build_object('account', NEW.account, 'since', earlier.effective_from)::text,
                      HINT = 'Move it with account_move, or change its share with share_set.';
        END IF;
    ELSIF NEW.account IS NOT NULL THEN
        PERFORM gpubudget.require_open(NEW.cluster, NEW.account, NEW.effective_from);
    END IF;
    IF NEW.parent IS NOT NULL THEN
        PERFORM gpubudget.require_open(NEW.cluster, NEW.parent, NEW.effective_from);
    END IF;
    IF NEW.receiver IS NOT NULL THEN
        PERFORM gpubudget.require_open(NEW.cluster, NEW.receiver, NEW.effective_from);
    END IF;

    IF NEW.kind IN ('user_add', 'user_remove', 'user_share_set') THEN
        SELECT s.share IS NOT NULL INTO is_member
        FROM gpubudget.member_steps(NEW.cluster, NEW.account, NEW.user_name, NEW.effective_from, NEW.effective_from) s;
        IF is_member AND NEW.kind = 'user_add' THEN
            RAISE EXCEPTION 'user "%" is a member of account "%" already', NEW.user_name, NEW.account
                USING ERRCODE = 'GB004',
                      DETAIL = jsonb_build_object('account', NEW.account, 'user', NEW.user_name)::text,
                      HINT = 'Change the share with user_share_set.';
        ELSIF NOT is_member AND NEW.kind <> 'user_add' THEN
            RAISE EXCEPTION 'user "%" is no member of account "%" at %', NEW.user_name, NEW.account, NEW.effective_from
                USING ERRCODE = 'GB005',
                      DETAIL = jsonb_build_object('account', NEW.account, 'user', NEW.user_name,
                                                  'at', NEW.effective_from)::text,
                      HINT = 'Add the user with user_add first.';
        END IF;
    END IF;

    IF NEW.amount IS NOT NULL THEN
        UPDATE gpubudget.cluster c SET granted = c.granted + NEW.amount WHERE c.name = NEW.cluster;
    END IF;
    NEW.seq := gpubudget.last_seq(NEW.cluster) + 1;
    PERFORM pg_notify('gpubudget_ledger', NEW.cluster);
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- What a GPU counts for at an instant -----------------------------------------
-- fairshare.GPUWeights is the same in Go.

-- mig_part is the part of a GPU that a MIG instance is, in millionths: the greater
-- of its compute slices / 7 and its part of the memory, by the name of its profile
-- at the end of the type. NULL if there is none. GPUs of four slices have profiles
-- of their own.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.mig_part(slices integer, memory integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN (slices, memory) IN ((1, 6), (2, 12), (4, 24), (2, 48), (4, 96)) THEN slices * 250000
    WHEN slices = 1 AND memory IN (20, 24, 35, 45) THEN 250000 -- twice the memory
    WHEN slices = 3 THEN 500000
    ELSE slices * 1000000 / 7
END;
-- +goose StatementEnd

-- weight_entry is what the ledger says of exactly this type, in millionths; NULL
-- if nothing.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.weight_entry(of_cluster text, of_type text, at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT l.weight * 1000 FROM gpubudget.ledger l
    WHERE l.cluster = of_cluster AND l.kind = 'weight_set' AND l.gpu_type = of_type
      AND l.effective_from <= at AND (l.effective_until IS NULL OR l.effective_until > at)
    ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
$$;
-- +goose StatementEnd

-- weight_names are the types whose entries say what a type counts for: the type
-- itself, the MIG profile at its end, the model before that, and all others.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.weight_names(of_type text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT array_remove(ARRAY[nullif(lower(of_type), ''), m.p[2], m.p[1], '*'], NULL)
    FROM (SELECT regexp_match(lower(of_type), '^(?:(.+)[-_:.])?(([1-7])g\.([0-9]{1,4})gb(?:[+.][a-z.]+)?)$') AS p) m
$$;
-- +goose StatementEnd

-- weight_at is what a GPU of a type counts for, in millionths.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.weight_at(of_cluster text, of_type text, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    name CONSTANT text := lower(of_type);
    known bigint := gpubudget.weight_entry(of_cluster, name, at);
    mig text[];
BEGIN
    IF known IS NOT NULL THEN
        RETURN known;
    END IF;
    IF name ~ '[1-7]g\.[0-9]' THEN
        mig := regexp_match(name, '^(?:(.+)[-_:.])?(([1-7])g\.([0-9]{1,4})gb(?:[+.][a-z.]+)?)$');
    END IF;
    IF mig IS NULL THEN
        RETURN coalesce(gpubudget.weight_entry(of_cluster, '*', at), 1000000);
    END IF;
    known := gpubudget.weight_entry(of_cluster, mig[2], at);
    IF known IS NOT NULL THEN
        RETURN known;
    END IF;
    RETURN coalesce(gpubudget.weight_entry(of_cluster, mig[1], at), gpubudget.weight_entry(of_cluster, '*', at), 1000000)
        * gpubudget.mig_part(mig[3]::integer, mig[4]::integer) / 1000000;
END
$$;
-- +goose StatementEnd

-- A holding is GPUs of one type, and parts of GPUs in millionths, or of several
-- types: then of_type lists them, as in a100:2,h100:0.5, and only that counts.

-- rate_at is what a holding counts for, in millionths of a GPU of weight 1.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.rate_at(of_cluster text, of_type text, gpus bigint, parts bigint, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF of_type NOT LIKE '%:%' THEN
        RETURN div((gpus::numeric * 1000000 + parts) * gpubudget.weight_at(of_cluster, of_type, at), 1000000)::bigint;
    END IF;
    RETURN (
        SELECT sum(div(trunc(split_part(i, ':', 2)::numeric * 1000000) * gpubudget.weight_at(of_cluster, split_part(i, ':', 1), at), 1000000))::bigint
        FROM unnest(string_to_array(of_type, ',')) i);
END
$$;
-- +goose StatementEnd

-- rate_points are the instants after one and before another at which what a holding
-- counts for may change.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.rate_points(of_cluster text, of_type text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT DISTINCT p.at
    FROM (
        SELECT DISTINCT n.name FROM unnest(string_to_array(of_type, ',')) i, unnest(gpubudget.weight_names(split_part(i, ':', 1))) n (name)
        UNION SELECT '*'
    ) n
    JOIN gpubudget.ledger l ON l.cluster = of_cluster AND l.kind = 'weight_set' AND l.gpu_type = n.name
    CROSS JOIN LATERAL (VALUES (l.effective_from), (l.effective_until)) p (at)
    WHERE p.at > from_t AND p.at < until_t
    ORDER BY 1
$$;
-- +goose StatementEnd

-- Runs ------------------------------------------------------------------------

ALTER TABLE gpubudget.job_run
    ADD COLUMN parts        bigint NOT NULL DEFAULT 0 CHECK (parts >= 0), -- of GPUs, in millionths, beside whole ones: shards, MPS
    ADD COLUMN rate         bigint CHECK (rate >= 0),  -- what it counts for when it begins, in millionths; NULL: what it holds
    ADD COLUMN rate_changes bigint[],                  -- and later: milliseconds since 1970, rate, and so on
    ADD COLUMN metered_ms   bigint NOT NULL DEFAULT 0; -- GPU time charged more, or less, than was held: by what meters saw

COMMENT ON COLUMN gpubudget.job_run.gpu_type IS 'Of what it holds; of several types a list, as a100:2,h100:0.5.';
COMMENT ON COLUMN gpubudget.job_run.rate IS 'By the weights in the ledger. This and the next are given by PostgreSQL.';

-- weigh_run sets what a run counts for, as long as it lasts.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.weigh_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rate bigint;
    point record;
    last bigint;
BEGIN
    NEW.rate := NULL;
    NEW.rate_changes := NULL;
    IF NEW.gpus = 0 AND NEW.parts = 0
        OR NEW.gpu_type NOT LIKE '%.%'
            AND NOT EXISTS (SELECT FROM gpubudget.ledger l WHERE l.cluster = NEW.cluster AND l.kind = 'weight_set') THEN
        RETURN NEW;
    END IF;
    rate := gpubudget.rate_at(NEW.cluster, NEW.gpu_type, NEW.gpus, NEW.parts, NEW.started_at);
    last := rate;
    FOR point IN
        SELECT p.at, gpubudget.rate_at(NEW.cluster, NEW.gpu_type, NEW.gpus, NEW.parts, p.at) AS rate
        FROM gpubudget.rate_points(NEW.cluster, NEW.gpu_type, NEW.started_at, coalesce(NEW.ended_at, 'infinity')) p
        ORDER BY p.at
    LOOP
        CONTINUE WHEN point.rate = last;
        last := point.rate;
        NEW.rate_changes := NEW.rate_changes || gpubudget.unix_ms(point.at) || point.rate;
    END LOOP;
    IF rate <> NEW.gpus * 1000000 + NEW.parts OR NEW.rate_changes IS NOT NULL THEN
        NEW.rate := rate;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER weigh_run BEFORE INSERT OR UPDATE OF cluster, started_at, ended_at, gpus, parts, gpu_type, rate, rate_changes ON gpubudget.job_run
    FOR EACH ROW EXECUTE FUNCTION gpubudget.weigh_run();

-- run_charged is the GPU time that a run from started to ended is charged up to at,
-- which lies between the two: what it holds times what that counts for times the
-- time not suspended, and more or less by what meters saw. Between two changes of
-- the rate that lies evenly; up to each of them it is rounded down, and then within.
-- Run.Charged is the same in Go.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_charged_slowly(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz,
    gpus bigint, parts bigint, rate bigint, rate_changes bigint[], metered_ms bigint, at timestamptz)
RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    start_ms CONSTANT bigint := gpubudget.unix_ms(started);
    end_ms CONSTANT bigint := gpubudget.unix_ms(ended);
    at_ms CONSTANT bigint := gpubudget.unix_ms(at);
    length CONSTANT bigint := end_ms - start_ms;
    held CONSTANT numeric := gpus::numeric * 1000000 + parts;
    busy bigint := length - suspended_ms;
    part numeric; -- charged of all the time, in millionths of held
    area numeric := 0; -- rate times time, up to from_ms
    before numeric := 0; -- charged up to from_ms
    total numeric;
    now_rate bigint := coalesce(rate, held);
    from_ms bigint := start_ms;
    until_ms bigint;
BEGIN
    IF at_ms <= start_ms OR held = 0 OR length <= 0 THEN
        RETURN 0;
    END IF;
    IF suspended_since < ended THEN
        busy := busy - (end_ms - gpubudget.unix_ms(greatest(suspended_since, started)));
    END IF;
    part := greatest(0, greatest(0, busy) * held + metered_ms::numeric * 1000000);
    FOR i IN 0 .. coalesce(cardinality(rate_changes), 0) BY 2 LOOP
        until_ms := CASE WHEN i + 1 < coalesce(cardinality(rate_changes), 0) THEN least(rate_changes[i + 1], end_ms) ELSE end_ms END;
        area := area + now_rate::numeric * (until_ms - from_ms);
        total := div(area * part, length * held * 1000000);
        IF at_ms < until_ms THEN
            RETURN (before + div((total - before) * (at_ms - from_ms), until_ms - from_ms))::bigint;
        END IF;
        EXIT WHEN until_ms = end_ms;
        before := total;
        from_ms := until_ms;
        now_rate := rate_changes[i + 2];
    END LOOP;
    RETURN total::bigint;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_charged(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz,
    gpus bigint, parts bigint, rate bigint, rate_changes bigint[], metered_ms bigint, at timestamptz)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN at <= started THEN 0
    WHEN rate IS NULL AND parts = 0 AND suspended_ms = 0 AND suspended_since IS NULL AND metered_ms = 0
        THEN gpus * gpubudget.unix_ms(at) - gpus * gpubudget.unix_ms(started)
    ELSE gpubudget.run_charged_slowly(started, ended, suspended_ms, suspended_since, gpus, parts, rate, rate_changes, metered_ms, at)
    END;
-- +goose StatementEnd

DROP FUNCTION gpubudget.run_buckets;

-- run_buckets splits what an ended run is charged over its buckets. Of most runs that
-- takes no more than integers: these are what run_charged comes to.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.run_buckets(
    started timestamptz, ended timestamptz, suspended_ms bigint, suspended_since timestamptz,
    gpus bigint, parts bigint, rate bigint, rate_changes bigint[], metered_ms bigint, bucket_ms bigint)
RETURNS TABLE (starts_at timestamptz, ends_at timestamptz, gpu_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT gpubudget.from_unix_ms(b.k * bucket_ms), gpubudget.from_unix_ms((b.k + 1) * bucket_ms),
        CASE WHEN rate IS NULL AND parts = 0 AND suspended_ms = 0 AND suspended_since IS NULL AND metered_ms = 0
            THEN gpus * least(b.end_ms, (b.k + 1) * bucket_ms) - gpus * greatest(b.start_ms, b.k * bucket_ms)
            ELSE gpubudget.run_charged(started, ended, suspended_ms, suspended_since, gpus, parts, rate, rate_changes, metered_ms,
                    least(ended, gpubudget.from_unix_ms((b.k + 1) * bucket_ms)))
                - gpubudget.run_charged(started, ended, suspended_ms, suspended_since, gpus, parts, rate, rate_changes, metered_ms,
                    greatest(started, gpubudget.from_unix_ms(b.k * bucket_ms)))
        END
    FROM (
        SELECT r.start_ms, r.end_ms, generate_series(r.start_ms / bucket_ms, (r.end_ms - 1) / bucket_ms) AS k
        FROM (SELECT gpubudget.unix_ms(started) AS start_ms, gpubudget.unix_ms(ended) AS end_ms) r
    ) b
$$;
-- +goose StatementEnd

-- As before, with a plan that is kept: it is asked for each run that is written.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.bucket_ms(of_cluster text, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN coalesce((
        SELECT rtrim(l.value, 's')::bigint * 1000 FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.kind = 'policy_set' AND l.setting = 'bucket'
          AND l.effective_from <= at AND (l.effective_until IS NULL OR l.effective_until > at)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1), 3600000);
END
$$;
-- +goose StatementEnd

-- As before, and it rolls up what runs are charged.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.roll_up_runs() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET jit = off -- no one knows beforehand how few buckets a run has
    SET work_mem = '16MB'
AS $$
DECLARE
    changes gpubudget.usage_bucket[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO gpubudget.usage_bucket AS u (cluster, starts_at, ends_at, account, user_name, allocated, gpu_ms, changed_by)
        SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, sum(b.gpu_ms), pg_current_xact_id()
        FROM come r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
            r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, r.bucket_ms) b
        WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
        GROUP BY 1, 2, 3, 4, 5, 6
        HAVING sum(b.gpu_ms) <> 0
        ORDER BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (cluster, starts_at, ends_at, account, user_name, allocated)
        DO UPDATE SET gpu_ms = u.gpu_ms + excluded.gpu_ms, changed_by = excluded.changed_by;
        RETURN NULL;
    END IF;

    IF TG_OP = 'UPDATE' THEN
        SELECT array_agg(ROW(c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, c.gpu_ms, NULL)::gpubudget.usage_bucket)
        INTO changes
        FROM (
            SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, sum(r.n * b.gpu_ms)::bigint AS gpu_ms
            FROM (SELECT 1 AS n, * FROM come UNION ALL SELECT -1, * FROM gone) r,
                gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
                    r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, r.bucket_ms) b
            WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
            GROUP BY 1, 2, 3, 4, 5, 6
        ) c;
    ELSE
        SELECT array_agg(ROW(c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, c.gpu_ms, NULL)::gpubudget.usage_bucket)
        INTO changes
        FROM (
            SELECT r.cluster, b.starts_at, b.ends_at, r.account, r.user_name, r.allocated, -sum(b.gpu_ms)::bigint AS gpu_ms
            FROM gone r, gpubudget.run_buckets(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
                r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, r.bucket_ms) b
            WHERE r.ended_at > r.started_at AND (r.gpus > 0 OR r.parts > 0)
            GROUP BY 1, 2, 3, 4, 5, 6
        ) c;
    END IF;
    IF changes IS NULL THEN
        RETURN NULL;
    END IF;

    INSERT INTO gpubudget.usage_bucket AS b (cluster, starts_at, ends_at, account, user_name, allocated, gpu_ms, changed_by)
    SELECT c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, c.gpu_ms, pg_current_xact_id()
    FROM unnest(changes) c
    WHERE c.gpu_ms <> 0
    ORDER BY c.cluster, c.starts_at, c.ends_at, c.account, c.user_name, c.allocated
    ON CONFLICT (cluster, starts_at, ends_at, account, user_name, allocated)
    DO UPDATE SET gpu_ms = b.gpu_ms + excluded.gpu_ms, changed_by = excluded.changed_by;

    -- Runs that have changed but not how much of them lies in the bucket: whoever
    -- has cut the bucket has to do so again.
    IF TG_OP = 'UPDATE' THEN
        UPDATE gpubudget.usage_bucket b SET changed_by = pg_current_xact_id()
        FROM unnest(changes) c
        WHERE c.gpu_ms = 0 AND b.cluster = c.cluster AND b.starts_at = c.starts_at AND b.ends_at = c.ends_at
          AND b.account = c.account AND b.user_name = c.user_name AND b.allocated = c.allocated;
    END IF;
    WITH erased AS (
        DELETE FROM gpubudget.usage_bucket b USING unnest(changes) c
        WHERE b.cluster = c.cluster AND b.starts_at = c.starts_at AND b.ends_at = c.ends_at
          AND b.account = c.account AND b.user_name = c.user_name AND b.allocated = c.allocated
          AND b.gpu_ms = 0 AND c.gpu_ms <= 0
        RETURNING b.cluster, b.starts_at, b.ends_at
    )
    INSERT INTO gpubudget.usage_erased (cluster, starts_at, ends_at, changed_by)
    SELECT DISTINCT e.cluster, e.starts_at, e.ends_at, pg_current_xact_id() FROM erased e
    ORDER BY e.cluster, e.starts_at, e.ends_at
    ON CONFLICT (cluster, starts_at, ends_at) DO UPDATE SET changed_by = excluded.changed_by;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- weigh_anew has all runs that an entry concerns charged by it, those that have
-- ended too. Writers of the cluster's runs wait meanwhile, so that none can write
-- what it has weighed by an older ledger.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.weigh_anew() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('gpubudget.usage:' || NEW.cluster, 0));
    UPDATE gpubudget.job_run r SET rate = NULL -- the trigger weigh_run says what it is
    WHERE r.cluster = NEW.cluster AND (r.gpus > 0 OR r.parts > 0)
      AND (NEW.gpu_type = '*' OR EXISTS (
          SELECT FROM unnest(string_to_array(r.gpu_type, ',')) i WHERE NEW.gpu_type = ANY (gpubudget.weight_names(split_part(i, ':', 1)))))
      AND (r.ended_at IS NULL AND r.started_at < coalesce(NEW.effective_until, 'infinity')
          OR r.ended_at IS NOT NULL AND tstzrange(r.started_at, r.ended_at) && tstzrange(NEW.effective_from, NEW.effective_until));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER weigh_anew AFTER INSERT ON gpubudget.ledger
    FOR EACH ROW WHEN (NEW.kind = 'weight_set') EXECUTE FUNCTION gpubudget.weigh_anew();
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER weigh_anew;

-- What meters saw ---------------------------------------------------------------

-- Jobs whose runs may have to be charged anew by what meters saw of them, because
-- a run has ended, or something else has become known. charge_metered does it.
CREATE TABLE gpubudget.meter_due (
    cluster text COLLATE "C" NOT NULL,
    job_id  bigint NOT NULL,
    PRIMARY KEY (cluster, job_id)
);
REVOKE ALL ON gpubudget.meter_due FROM PUBLIC;

-- charges_metered tells whether a cluster's policy says anything of what is charged.
-- Where it does not, meters make no difference, and cost next to nothing.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.charges_metered(of_cluster text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM gpubudget.ledger l WHERE l.cluster = of_cluster AND l.kind = 'policy_set' AND l.setting = 'charge')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gpubudget.charge_policy(of_cluster text, at timestamptz) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((
        SELECT l.value FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.kind = 'policy_set' AND l.setting = 'charge'
          AND l.effective_from <= at AND (l.effective_until IS NULL OR l.effective_until > at)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1), 'occupancy')
$$;
-- +goose StatementEnd

-- Notes the jobs of runs that have ended, or are other than they were. Runs with
-- the rights of the table's owner: who writes runs need not know of it.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.note_run() RETURNS trigger
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
        SELECT DISTINCT c.cluster, c.job_id FROM come c WHERE c.ended_at IS NOT NULL ORDER BY c.cluster, c.job_id
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END IF;
    INSERT INTO gpubudget.meter_due (cluster, job_id)
    SELECT DISTINCT c.cluster, c.job_id
    FROM come c JOIN gone g USING (cluster, job_id, started_at)
    WHERE c.ended_at IS NOT NULL
      AND (c.ended_at, c.restart, c.gpus, c.parts, c.suspended_ms, c.suspended_since)
        IS DISTINCT FROM (g.ended_at, g.restart, g.gpus, g.parts, g.suspended_ms, g.suspended_since)
    ORDER BY c.cluster, c.job_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER note_run_insert AFTER INSERT ON gpubudget.job_run
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.note_run();
CREATE TRIGGER note_run_update AFTER UPDATE ON gpubudget.job_run
    REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.note_run();

-- What meters tell of runs that have ended comes late.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.note_meter() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gpubudget.ledger l WHERE l.kind = 'policy_set' AND l.setting = 'charge') THEN
        RETURN NULL; -- on no cluster at all
    END IF;
    IF EXISTS (SELECT FROM (SELECT DISTINCT cluster FROM come) c WHERE gpubudget.charges_metered(c.cluster)) THEN
        INSERT INTO gpubudget.meter_due (cluster, job_id)
        SELECT c.cluster, c.job_id FROM (SELECT DISTINCT cluster, job_id FROM come) c
        WHERE EXISTS (SELECT FROM gpubudget.job_run r WHERE r.cluster = c.cluster AND r.job_id = c.job_id AND r.ended_at IS NOT NULL)
        ORDER BY c.cluster, c.job_id
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER note_meter_insert AFTER INSERT ON gpubudget.gpu_bucket
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.note_meter();
CREATE TRIGGER note_meter_update AFTER UPDATE ON gpubudget.gpu_bucket
    REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.note_meter();

-- A change of the policy concerns the runs that have ended while it holds.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.note_policy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('gpubudget.usage:' || NEW.cluster, 0));
    INSERT INTO gpubudget.meter_due (cluster, job_id)
    SELECT DISTINCT r.cluster, r.job_id FROM gpubudget.job_run r
    WHERE r.cluster = NEW.cluster AND r.ended_at >= NEW.effective_from AND r.ended_at < coalesce(NEW.effective_until, 'infinity')
    ORDER BY r.cluster, r.job_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER note_policy AFTER INSERT ON gpubudget.ledger
    FOR EACH ROW WHEN (NEW.setting = 'charge') EXECUTE FUNCTION gpubudget.note_policy();
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER note_policy;

-- charge_metered has so many jobs that are due charged by what meters saw of their
-- runs, and returns how many there were. By the policy in force when a run ended
-- it is charged, beside what it held:
--   occupancy    nothing
--   utilisation  less, by how much of that was idle
--   max          more, by how much it was at work beyond its part of the GPUs
-- A GPU that was metered counts for as much as the run holds of it: all, or its
-- part. On a GPU that others held too, what it was at work is told apart by the
-- parts that the meter gave them. Of time that several incarnations of an agent
-- have counted, each counts for so much less; suspended time lies evenly in a run.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.charge_metered(of_cluster text, at_most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    jobs bigint[];
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
    SELECT min(r.started_at), max(r.ended_at) INTO first_t, last_t FROM gpubudget.job_run r
    WHERE r.cluster = of_cluster AND r.job_id = ANY (jobs) AND r.ended_at IS NOT NULL;

    WITH run AS MATERIALIZED (
        SELECT r.job_id, r.started_at, r.ended_at, r.restart, r.metered_ms,
            gpubudget.charge_policy(of_cluster, r.ended_at) AS policy,
            (r.gpus::numeric * 1000000 + r.parts) / 1000000 AS held,
            gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(r.started_at) AS length,
            greatest(0, gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(r.started_at) - r.suspended_ms
                - CASE WHEN r.suspended_since < r.ended_at
                    THEN gpubudget.unix_ms(r.ended_at) - gpubudget.unix_ms(greatest(r.suspended_since, r.started_at)) ELSE 0 END) AS busy
        FROM gpubudget.job_run r
        WHERE r.cluster = of_cluster AND r.job_id = ANY (jobs) AND r.ended_at IS NOT NULL
    ), gpu AS (
        SELECT p.job_id, p.started_at, p.length, sum(p.ms) AS ms,
            sum(p.known * p.ms / p.held_ms) AS known, sum(p.busy * p.ms / p.held_ms) AS busy,
            sum(p.busy * p.ms / p.held_ms * p.part_ms / p.held_ms) AS own
        FROM (
            SELECT r.job_id, r.started_at, r.length, b.gpu, b.held_ms, b.part_ms, b.busy_known_ms::numeric AS known, b.busy_ms::numeric AS busy,
                gpubudget.unix_ms(least(b.held_until, r.ended_at)) - gpubudget.unix_ms(greatest(b.held_from, r.started_at)) AS ms
            FROM run r JOIN gpubudget.gpu_bucket b ON b.job_id = r.job_id AND (b.restart = r.restart OR b.source = 'process')
                AND b.held_from < r.ended_at AND b.held_until > r.started_at
            WHERE r.policy <> 'occupancy' AND b.cluster = of_cluster AND b.starts_at > first_t - interval '1 day' AND b.starts_at < last_t
              AND b.busy_ms IS NOT NULL
        ) p
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
    RETURN cardinality(jobs);
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION gpubudget.charge_metered FROM PUBLIC;

-- Whoever writes runs has them charged.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'gpubudget.job_run'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION gpubudget.charge_metered TO %s',
            CASE WHEN held.grantee = 0 THEN 'PUBLIC' ELSE held.grantee::regrole::text END);
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.charge_metered IS 'Whoever may write runs has it called again and again; it does no more than what is due.';

-- Capacity --------------------------------------------------------------------

ALTER TABLE gpubudget.capacity ADD COLUMN types text COLLATE "C" NOT NULL DEFAULT '';

COMMENT ON COLUMN gpubudget.capacity.milli_gpus IS 'GPUs that can be scheduled, in thousandths, whatever they count for.';
COMMENT ON COLUMN gpubudget.capacity.types IS 'How many of each type, as a100:16,h100:8; empty: of no type.';

-- capacity_steps is what could be scheduled, from an instant on until the next, in
-- thousandths of a GPU of weight 1.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.capacity_steps(of_cluster text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (since timestamptz, milli_gpus bigint)
LANGUAGE sql STABLE
AS $$
    SELECT p.at, gpubudget.rate_at(of_cluster, c.types, c.milli_gpus / 1000, 0, p.at) / 1000
    FROM (
        SELECT c.since, c.milli_gpus, c.types, lead(c.since, 1, 'infinity') OVER (ORDER BY c.since) AS until
        FROM gpubudget.capacity c
        WHERE c.cluster = of_cluster AND c.since < until_t
          AND c.since >= coalesce((SELECT max(l.since) FROM gpubudget.capacity l WHERE l.cluster = of_cluster AND l.since <= from_t), '-infinity')
    ) c
    CROSS JOIN LATERAL (
        SELECT greatest(c.since, from_t) AS at
        UNION ALL
        SELECT r.at FROM gpubudget.rate_points(of_cluster, c.types, greatest(c.since, from_t), least(c.until, until_t)) r
    ) p
    ORDER BY p.at
$$;
-- +goose StatementEnd
