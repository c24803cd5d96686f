-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- The ledger: accounts, users, shares, deposits, transfers and policy of one or
-- several clusters, as an append-only list of dated entries. See docs/ledger.md.
--
-- The rules live here and not in a program, so that they hold for every writer:
-- entries are never changed, the shares of an account's children never add up
-- to more than the account at any instant, nobody stands under himself, and
-- nobody stands under a closed account.

-- +goose Up

CREATE TABLE gpubudget.cluster (
    name       text COLLATE "C" PRIMARY KEY,
    granted    bigint NOT NULL DEFAULT 0,
    writer     xid8,
    base       bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT cluster_name_valid CHECK (name ~ '^[!-~]{1,128}$' AND name !~ '["''`,|=:;\\]'),
    -- Keeps every sum of grants far within 64 bits.
    CONSTRAINT cluster_granted_valid CHECK (granted BETWEEN 0 AND 1000000000000000000)
) WITH (fillfactor = 50);

COMMENT ON TABLE gpubudget.cluster IS 'One row per cluster, made by its first ledger entry. Writers of a cluster take turns on its row.';
COMMENT ON COLUMN gpubudget.cluster.granted IS 'Sum of all deposits and transfers, GPU-milliseconds.';
COMMENT ON COLUMN gpubudget.cluster.writer IS 'The transaction that wrote the last entry.';
COMMENT ON COLUMN gpubudget.cluster.base IS 'Number of the last entry before that transaction''s.';

CREATE TABLE gpubudget.account (
    cluster    text COLLATE "C" NOT NULL REFERENCES gpubudget.cluster,
    name       text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    PRIMARY KEY (cluster, name),
    CONSTRAINT account_name_valid CHECK (name ~ '^[!-~]{1,128}$' AND name !~ '[A-Z"''`,|=:;\\]')
);

COMMENT ON TABLE gpubudget.account IS 'Every account there ever was. A name means one account for ever; whether it is open, and under whom, the ledger says.';

CREATE TABLE gpubudget.ledger (
    cluster         text COLLATE "C" NOT NULL REFERENCES gpubudget.cluster,
    seq             bigint NOT NULL,
    recorded_at     timestamptz NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    actor           text NOT NULL,
    why             text NOT NULL DEFAULT '',
    key             text COLLATE "C",
    db_role         text NOT NULL,
    effective_from  timestamptz NOT NULL,
    effective_until timestamptz,
    account         text COLLATE "C",
    parent          text COLLATE "C",
    receiver        text COLLATE "C",
    user_name       text COLLATE "C",
    share           bigint,
    amount          bigint,
    setting         text COLLATE "C",
    value           text COLLATE "C",

    PRIMARY KEY (cluster, seq),
    FOREIGN KEY (cluster, account) REFERENCES gpubudget.account,
    FOREIGN KEY (cluster, parent) REFERENCES gpubudget.account,
    FOREIGN KEY (cluster, receiver) REFERENCES gpubudget.account,

    CONSTRAINT ledger_actor_valid CHECK (actor <> '' AND length(actor) <= 256),
    CONSTRAINT ledger_why_valid CHECK (length(why) <= 4096),
    CONSTRAINT ledger_key_valid CHECK (key <> '' AND length(key) <= 256),
    CONSTRAINT ledger_user_valid CHECK (user_name ~ '^[!-~]{1,128}$' AND user_name !~ '["''`,|=:;\\]'),
    CONSTRAINT ledger_period_valid CHECK (
        effective_from >= '1970-01-01 00:00:00Z' AND effective_from < '9999-01-01 00:00:00Z'
        AND (effective_until IS NULL
             OR effective_until > effective_from AND effective_until < '9999-01-01 00:00:00Z')),
    CONSTRAINT ledger_share_valid CHECK (
        share BETWEEN 0 AND 1000000000
        OR share = -1 AND kind IN ('user_add', 'user_share_set')),
    CONSTRAINT ledger_amount_valid CHECK (amount BETWEEN 1 AND 3600000000000000),
    CONSTRAINT ledger_parent_valid CHECK (parent <> account),
    CONSTRAINT ledger_receiver_valid CHECK (receiver <> account),
    CONSTRAINT ledger_policy_valid CHECK (
        CASE setting
            WHEN 'mode' THEN value IN ('strict', 'additive')
            WHEN 'lookback' THEN value ~ '^[1-9][0-9]{1,8}s$' AND rtrim(value, 's')::bigint BETWEEN 60 AND 316224000
            WHEN 'bucket' THEN value ~ '^[1-9][0-9]{0,4}s$' AND 86400 % rtrim(value, 's')::bigint = 0
            WHEN 'refresh' THEN value ~ '^[1-9][0-9]{0,4}s$' AND rtrim(value, 's')::bigint BETWEEN 1 AND 86400
            ELSE setting IS NULL
        END),
    -- Each kind fills its own columns and no others.
    CONSTRAINT ledger_kind_valid CHECK (
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
            ELSE false
        END)
);

COMMENT ON TABLE gpubudget.ledger IS 'Append-only. A value at an instant is that of the entry with the greatest effective_from among those with effective_from <= instant < effective_until; the greater seq wins a tie. Corrections are new entries.';
COMMENT ON COLUMN gpubudget.ledger.seq IS 'Position in the cluster''s ledger: 1, 2, 3, ... without gaps, in order of commit. Given by Postgres.';
COMMENT ON COLUMN gpubudget.ledger.recorded_at IS 'When the entry was written. Given by Postgres.';
COMMENT ON COLUMN gpubudget.ledger.actor IS 'Who decided this, as the writer says.';
COMMENT ON COLUMN gpubudget.ledger.db_role IS 'The database role that wrote it. Given by Postgres.';
COMMENT ON COLUMN gpubudget.ledger.key IS 'Idempotency key: an entry with a key the cluster already has is not written again.';
COMMENT ON COLUMN gpubudget.ledger.effective_from IS 'In whole milliseconds; may lie in the past or the future. Now if not given.';
COMMENT ON COLUMN gpubudget.ledger.effective_until IS 'NULL: until superseded. At its end what was in force before is in force again. A grant is spread evenly over its period.';
COMMENT ON COLUMN gpubudget.ledger.account IS 'The account the entry is about; the giving one of a transfer.';
COMMENT ON COLUMN gpubudget.ledger.receiver IS 'The receiving account of a transfer.';
COMMENT ON COLUMN gpubudget.ledger.share IS 'Billionths of the parent''s GPU time. -1 for a user without a share of his own.';
COMMENT ON COLUMN gpubudget.ledger.amount IS 'GPU-milliseconds of a deposit or transfer, at most a billion GPU-hours.';

CREATE UNIQUE INDEX ledger_key ON gpubudget.ledger (cluster, key) WHERE key IS NOT NULL;
CREATE INDEX ledger_recorded ON gpubudget.ledger (cluster, recorded_at);
CREATE INDEX ledger_receiver ON gpubudget.ledger (cluster, receiver) WHERE receiver IS NOT NULL;
CREATE INDEX ledger_grants ON gpubudget.ledger (cluster, effective_until) WHERE kind IN ('deposit', 'transfer');
CREATE INDEX ledger_policy ON gpubudget.ledger (cluster, setting, effective_from, seq) WHERE kind = 'policy_set';
-- When something about an account begins or ends.
CREATE INDEX ledger_account_from ON gpubudget.ledger (cluster, account, effective_from) WHERE account IS NOT NULL;
CREATE INDEX ledger_account_until ON gpubudget.ledger (cluster, account, effective_until) WHERE effective_until IS NOT NULL;
-- The timelines of an account and of a membership: is it there, under whom, and
-- with what share?
CREATE INDEX ledger_account_open ON gpubudget.ledger (cluster, account, effective_from, seq)
    WHERE kind IN ('account_add', 'account_close');
CREATE INDEX ledger_account_parent ON gpubudget.ledger (cluster, account, effective_from, seq)
    WHERE kind IN ('account_add', 'account_move');
CREATE INDEX ledger_account_share ON gpubudget.ledger (cluster, account, effective_from, seq)
    WHERE kind IN ('account_add', 'account_move', 'share_set') AND share IS NOT NULL;
CREATE INDEX ledger_user_member ON gpubudget.ledger (cluster, account, user_name, effective_from, seq)
    WHERE kind IN ('user_add', 'user_remove');
CREATE INDEX ledger_user_share ON gpubudget.ledger (cluster, account, user_name, effective_from, seq)
    WHERE kind IN ('user_add', 'user_share_set');
-- Who may ever have held a part of an account.
CREATE INDEX ledger_child_accounts ON gpubudget.ledger (cluster, parent, account) WHERE parent IS NOT NULL;
CREATE INDEX ledger_child_users ON gpubudget.ledger (cluster, account, user_name)
    WHERE kind IN ('user_add', 'user_share_set') AND share > 0;

-- Nothing is ever changed -----------------------------------------------------

-- +goose StatementBegin
CREATE FUNCTION gpubudget.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of gpubudget.% is refused: it is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'GB001',
              HINT = 'Correct an entry by a new one with the same effective_from.';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON gpubudget.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON gpubudget.account
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.refuse_change();
CREATE TRIGGER refuse_change BEFORE DELETE OR TRUNCATE ON gpubudget.cluster
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.refuse_change();

-- The rows of cluster and account are written by the ledger's own trigger only.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.refuse_direct_write() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION '% of gpubudget.% is refused: it is kept by the ledger', TG_OP, TG_TABLE_NAME
            USING ERRCODE = 'GB001',
                  HINT = 'INSERT INTO gpubudget.ledger instead.';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER refuse_direct_write BEFORE INSERT ON gpubudget.account
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.refuse_direct_write();
CREATE TRIGGER refuse_direct_write BEFORE INSERT OR UPDATE ON gpubudget.cluster
    FOR EACH STATEMENT EXECUTE FUNCTION gpubudget.refuse_direct_write();

-- What is in force at an instant ----------------------------------------------

-- +goose StatementBegin
CREATE FUNCTION gpubudget.account_steps(of_cluster text, of_account text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (t timestamptz, parent text, share bigint)
LANGUAGE sql STABLE AS $$
    SELECT point.t, parentage.parent, shareholding.share
    FROM (
        SELECT from_t AS t
        UNION
        SELECT l.effective_from FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_move', 'account_close', 'share_set')
          AND l.effective_from > from_t AND l.effective_from < until_t
        UNION
        SELECT l.effective_until FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_move', 'account_close', 'share_set')
          AND l.effective_until > from_t AND l.effective_until < until_t
    ) point
    LEFT JOIN LATERAL (
        SELECT l.kind FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_close')
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) existence ON true
    LEFT JOIN LATERAL (
        SELECT l.parent FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_move')
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) parentage ON existence.kind = 'account_add'
    LEFT JOIN LATERAL (
        SELECT l.share FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_move', 'share_set') AND l.share IS NOT NULL
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) shareholding ON existence.kind = 'account_add'
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.account_steps IS 'An account''s parent and share at from_t and at each instant before until_t at which an entry of its begins or ends; both NULL while it is not open. root has none.';

-- +goose StatementBegin
CREATE FUNCTION gpubudget.member_steps(of_cluster text, of_account text, of_user text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (t timestamptz, share bigint)
LANGUAGE sql STABLE AS $$
    SELECT point.t, shareholding.share
    FROM (
        SELECT from_t AS t
        UNION
        SELECT p.t FROM gpubudget.ledger l CROSS JOIN LATERAL (VALUES (l.effective_from), (l.effective_until)) p (t)
        WHERE l.cluster = of_cluster AND l.account = of_account AND l.user_name = of_user
          AND l.kind IN ('user_add', 'user_remove')
          AND p.t > from_t AND p.t < until_t
        UNION
        SELECT p.t FROM gpubudget.ledger l CROSS JOIN LATERAL (VALUES (l.effective_from), (l.effective_until)) p (t)
        WHERE l.cluster = of_cluster AND l.account = of_account AND l.user_name = of_user
          AND l.kind IN ('user_add', 'user_share_set')
          AND p.t > from_t AND p.t < until_t
        UNION
        SELECT p.t FROM gpubudget.ledger l CROSS JOIN LATERAL (VALUES (l.effective_from), (l.effective_until)) p (t)
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_close') AND l.kind = 'account_close'
          AND p.t > from_t AND p.t < until_t
    ) point
    LEFT JOIN LATERAL (
        SELECT l.kind, l.effective_from, l.seq FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account AND l.user_name = of_user
          AND l.kind IN ('user_add', 'user_remove')
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) membership ON true
    -- Closing an account ends its memberships.
    LEFT JOIN LATERAL (
        SELECT l.effective_from, l.seq FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account
          AND l.kind IN ('account_add', 'account_close') AND l.kind = 'account_close'
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) closing ON true
    LEFT JOIN LATERAL (
        SELECT l.share FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.account = of_account AND l.user_name = of_user
          AND l.kind IN ('user_add', 'user_share_set')
          AND l.effective_from <= point.t AND (l.effective_until IS NULL OR l.effective_until > point.t)
        ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1
    ) shareholding ON membership.kind = 'user_add'
        AND (closing.seq IS NULL
             OR (membership.effective_from, membership.seq) > (closing.effective_from, closing.seq))
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.member_steps IS 'A user''s share of an account (-1: equal part) at from_t and at each instant before until_t at which an entry about it begins or ends; NULL while he is no member.';

-- +goose StatementBegin
CREATE FUNCTION gpubudget.account_segments(of_cluster text, of_account text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (from_t timestamptz, until_t timestamptz, parent text)
LANGUAGE sql STABLE AS $$
    SELECT s.t, coalesce(lead(s.t) OVER (ORDER BY s.t), $4), s.parent
    FROM gpubudget.account_steps($1, $2, $3, $4) s
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.account_segments IS 'account_steps as stretches of time.';

-- +goose StatementBegin
CREATE FUNCTION gpubudget.holdings(of_cluster text, of_parent text, from_t timestamptz, until_t timestamptz)
RETURNS TABLE (t timestamptz, account text, user_name text, share bigint)
LANGUAGE sql STABLE AS $$
    SELECT s.t, child.account, NULL::text, CASE WHEN s.parent = of_parent THEN s.share ELSE 0 END
    FROM (SELECT DISTINCT l.account FROM gpubudget.ledger l
          WHERE l.cluster = of_cluster AND l.parent = of_parent) child
    CROSS JOIN LATERAL gpubudget.account_steps(of_cluster, child.account, from_t, until_t) s
    UNION ALL
    SELECT s.t, NULL::text, child.user_name, greatest(s.share, 0)
    FROM (SELECT DISTINCT l.user_name FROM gpubudget.ledger l
          WHERE l.cluster = of_cluster AND l.account = of_parent
            AND l.kind IN ('user_add', 'user_share_set') AND l.share > 0) child
    CROSS JOIN LATERAL gpubudget.member_steps(of_cluster, of_parent, child.user_name, from_t, until_t) s
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.holdings IS 'What child accounts and users with a share of their own hold of an account, at from_t and whenever it may change before until_t.';

-- What an entry must fulfil when it is written --------------------------------

-- +goose StatementBegin
CREATE FUNCTION gpubudget.require_open(of_cluster text, of_account text, at timestamptz) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entry gpubudget.ledger;
    opens timestamptz;
BEGIN
    IF of_account = 'root' THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM gpubudget.account a WHERE a.cluster = of_cluster AND a.name = of_account) THEN
        RAISE EXCEPTION 'unknown account "%"', of_account
            USING ERRCODE = 'GB002',
                  DETAIL = jsonb_build_object('account', of_account)::text,
                  HINT = 'Add it with an account_add entry first.';
    END IF;
    SELECT * INTO entry FROM gpubudget.ledger l
    WHERE l.cluster = of_cluster AND l.account = of_account AND l.kind IN ('account_add', 'account_close')
      AND l.effective_from <= at AND (l.effective_until IS NULL OR l.effective_until > at)
    ORDER BY l.effective_from DESC, l.seq DESC LIMIT 1;
    IF entry.kind = 'account_add' THEN
        RETURN;
    END IF;
    SELECT min(l.effective_from) INTO opens FROM gpubudget.ledger l
    WHERE l.cluster = of_cluster AND l.account = of_account AND l.kind IN ('account_add', 'account_close')
      AND l.kind = 'account_add' AND l.effective_from > at;
    RAISE EXCEPTION 'account "%" is not open at %', of_account, at
        USING ERRCODE = 'GB003',
              DETAIL = jsonb_build_object('account', of_account, 'at', at,
                                          'since', entry.effective_from, 'opens', opens)::text,
              HINT = 'Open it again with an account_add entry, or choose another date.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.require_open IS 'Raises GB002 if the account is unknown, GB003 if it is not open at the instant.';

-- +goose StatementBegin
CREATE FUNCTION gpubudget.require_not_root(of_account text, kind text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF of_account = 'root' THEN
        RAISE EXCEPTION '% of account root is refused: root always holds the whole cluster', kind
            USING ERRCODE = 'GB009',
                  DETAIL = jsonb_build_object('kind', kind)::text,
                  HINT = 'Write the entry for an account below root.';
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gpubudget.last_seq(of_cluster text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((SELECT l.seq FROM gpubudget.ledger l WHERE l.cluster = of_cluster ORDER BY l.seq DESC LIMIT 1), 0);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION gpubudget.last_seq IS 'Number of the cluster''s last entry, 0 if there is none.';

-- The cluster's writers take turns from here to the end of their transactions.
-- The row is updated once by each, so that at REPEATABLE READ and above a
-- writer whose snapshot is older than the last entry fails here.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.take_turn(of_cluster text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own CONSTANT xid8 := pg_current_xact_id();
    last_writer xid8;
BEGIN
    SELECT c.writer INTO last_writer FROM gpubudget.cluster c WHERE c.name = of_cluster FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO gpubudget.cluster (name) VALUES (of_cluster) ON CONFLICT DO NOTHING;
        SELECT c.writer INTO last_writer FROM gpubudget.cluster c WHERE c.name = of_cluster FOR NO KEY UPDATE;
        INSERT INTO gpubudget.account (cluster, name) VALUES (of_cluster, 'root') ON CONFLICT DO NOTHING;
    END IF;
    IF last_writer IS DISTINCT FROM own THEN
        UPDATE gpubudget.cluster c SET writer = own, base = gpubudget.last_seq(of_cluster) WHERE c.name = of_cluster;
    END IF;
END
$$;
-- +goose StatementEnd

-- Runs as the tables' owner, so that a writer needs INSERT on the ledger only.
-- Its queries are small, many, and best served by the indexes, whatever the
-- planner thinks of tables it has no statistics of yet.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.accept_entry() RETURNS trigger
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
    NEW.effective_from := date_trunc('milliseconds', NEW.effective_from);
    NEW.effective_until := date_trunc('milliseconds', NEW.effective_until);

    PERFORM gpubudget.take_turn(NEW.cluster);

    IF NEW.key IS NOT NULL THEN
        SELECT * INTO earlier FROM gpubudget.ledger l WHERE l.cluster = NEW.cluster AND l.key = NEW.key;
        IF FOUND THEN
            IF (NEW.kind, NEW.account, NEW.parent, NEW.receiver, NEW.user_name, NEW.share, NEW.amount,
                NEW.setting, NEW.value, NEW.effective_until, coalesce(NEW.effective_from, earlier.effective_from))
               IS NOT DISTINCT FROM
               (earlier.kind, earlier.account, earlier.parent, earlier.receiver, earlier.user_name, earlier.share,
                earlier.amount, earlier.setting, earlier.value, earlier.effective_until, earlier.effective_from)
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

CREATE TRIGGER accept_entry BEFORE INSERT ON gpubudget.ledger
    FOR EACH ROW EXECUTE FUNCTION gpubudget.accept_entry();

-- What a transaction's entries must fulfil together ---------------------------

-- Every account that an entry since base puts somewhere stands under open
-- accounts up to root for as long as it does.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.check_parents(of_cluster text, base bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad record;
BEGIN
    WITH RECURSIVE changed AS (
        SELECT l.account, min(l.effective_from) AS from_t, max(coalesce(l.effective_until, 'infinity')) AS until_t
        FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.seq > base AND l.kind IN ('account_add', 'account_move')
        GROUP BY l.account
    ), up AS (
        SELECT ARRAY[c.account] AS path, s.from_t, s.until_t, s.parent, s.parent = c.account AS cyclic
        FROM changed c
        CROSS JOIN LATERAL gpubudget.account_segments(of_cluster, c.account, c.from_t, c.until_t) s
        WHERE s.parent IS NOT NULL
        UNION ALL
        SELECT up.path || up.parent, s.from_t, s.until_t, s.parent, coalesce(s.parent = ANY (up.path || up.parent), false)
        FROM up
        CROSS JOIN LATERAL gpubudget.account_segments(of_cluster, up.parent, up.from_t, up.until_t) s
        WHERE up.parent <> 'root' AND NOT up.cyclic
    )
    SELECT * INTO bad FROM up WHERE up.cyclic OR up.parent IS NULL ORDER BY up.from_t, up.path LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF bad.cyclic THEN
        RAISE EXCEPTION 'account "%" would stand under itself at %: %', bad.parent, bad.from_t,
                        array_to_string(bad.path || bad.parent, ' under ')
            USING ERRCODE = 'GB007',
                  DETAIL = jsonb_build_object('at', bad.from_t, 'path', bad.path || bad.parent)::text,
                  HINT = 'Move one of these accounts elsewhere first.';
    END IF;
    RAISE EXCEPTION 'account "%" would stand under "%", which is closed at %',
                    bad.path[cardinality(bad.path) - 1], bad.path[cardinality(bad.path)], bad.from_t
        USING ERRCODE = 'GB003',
              DETAIL = jsonb_build_object('account', bad.path[cardinality(bad.path)], 'at', bad.from_t,
                                          'child', bad.path[cardinality(bad.path) - 1])::text,
              HINT = 'End the entry before that date, or choose another parent.';
END
$$;
-- +goose StatementEnd

-- An account that an entry since base closes has no open account under it for
-- as long as it is closed.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.check_closings(of_cluster text, base bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad record;
BEGIN
    WITH closed AS (
        SELECT l.account, min(l.effective_from) AS from_t, max(coalesce(l.effective_until, 'infinity')) AS until_t
        FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.seq > base AND l.kind = 'account_close'
        GROUP BY l.account
    )
    SELECT c.account, child.account AS child, own.from_t INTO bad
    FROM closed c
    CROSS JOIN LATERAL (SELECT DISTINCT l.account FROM gpubudget.ledger l
                        WHERE l.cluster = of_cluster AND l.parent = c.account) child
    CROSS JOIN LATERAL gpubudget.account_segments(of_cluster, child.account, c.from_t, c.until_t) s
    CROSS JOIN LATERAL gpubudget.account_segments(of_cluster, c.account, s.from_t, s.until_t) own
    WHERE s.parent = c.account AND own.parent IS NULL
    ORDER BY own.from_t, c.account, child.account LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'account "%" can''t be closed: account "%" is open under it at %', bad.account, bad.child, bad.from_t
            USING ERRCODE = 'GB008',
                  DETAIL = jsonb_build_object('account', bad.account, 'child', bad.child, 'at', bad.from_t)::text,
                  HINT = 'Close or move the accounts under it first.';
    END IF;
END
$$;
-- +goose StatementEnd

-- No account whose children an entry since base touches gives away more than
-- itself, at any instant the entries are about.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.check_shares(of_cluster text, base bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad record;
    held jsonb;
BEGIN
    WITH changed AS (
        SELECT l.account, l.user_name IS NOT NULL AS is_user,
               min(l.effective_from) AS from_t, max(coalesce(l.effective_until, 'infinity')) AS until_t
        FROM gpubudget.ledger l
        WHERE l.cluster = of_cluster AND l.seq > base
          AND l.kind IN ('account_add', 'account_move', 'share_set', 'user_add', 'user_share_set')
        GROUP BY l.account, is_user
    ), touched AS (
        SELECT parents.parent, min(parents.from_t) AS from_t, max(parents.until_t) AS until_t
        FROM (
            SELECT c.account AS parent, c.from_t, c.until_t FROM changed c WHERE c.is_user
            UNION ALL
            SELECT s.parent, c.from_t, c.until_t
            FROM changed c
            CROSS JOIN LATERAL gpubudget.account_steps(of_cluster, c.account, c.from_t, c.until_t) s
            WHERE NOT c.is_user AND s.parent IS NOT NULL
        ) parents
        GROUP BY parents.parent
    )
    SELECT touched.parent, total.t, total.share INTO bad
    FROM touched
    CROSS JOIN LATERAL (
        SELECT step.t, sum(sum(step.change)) OVER (ORDER BY step.t) AS share
        FROM (
            SELECT h.t, coalesce(h.share, 0)
                        - coalesce(lag(h.share) OVER (PARTITION BY h.account, h.user_name ORDER BY h.t), 0) AS change
            FROM gpubudget.holdings(of_cluster, touched.parent, touched.from_t, touched.until_t) h
        ) step
        GROUP BY step.t
    ) total
    WHERE total.share > 1000000000
    ORDER BY total.t, touched.parent LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('account', h.account, 'user', h.user_name, 'share', h.share))
                     ORDER BY h.share DESC, h.account, h.user_name)
    INTO held
    FROM gpubudget.holdings(of_cluster, bad.parent, bad.t, bad.t) h
    WHERE h.share > 0;
    RAISE EXCEPTION 'the children of account "%" would hold % %% of it at %', bad.parent, trim_scale(bad.share / 10000000), bad.t
        USING ERRCODE = 'GB006',
              DETAIL = jsonb_build_object('parent', bad.parent, 'at', bad.t, 'total', bad.share, 'holders', held)::text,
              HINT = 'Lower the share of one of them first, or in the same transaction.';
END
$$;
-- +goose StatementEnd

-- The checks run once per transaction and cluster, for its last entry; nobody
-- else can have written one after it yet.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.check_entries() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
    SET jit = off
AS $$
DECLARE
    base bigint;
    changed record;
BEGIN
    IF NEW.seq < gpubudget.last_seq(NEW.cluster) THEN
        RETURN NULL;
    END IF;
    SELECT c.base INTO STRICT base FROM gpubudget.cluster c WHERE c.name = NEW.cluster;
    SELECT bool_or(l.kind IN ('account_add', 'account_move')) AS placed,
           bool_or(l.kind = 'account_close') AS closed,
           bool_or(l.kind IN ('account_add', 'account_move', 'share_set', 'user_add', 'user_share_set')) AS shared
    INTO STRICT changed
    FROM gpubudget.ledger l WHERE l.cluster = NEW.cluster AND l.seq > base;
    IF changed.placed THEN
        PERFORM gpubudget.check_parents(NEW.cluster, base);
    END IF;
    IF changed.closed THEN
        PERFORM gpubudget.check_closings(NEW.cluster, base);
    END IF;
    IF changed.shared THEN
        PERFORM gpubudget.check_shares(NEW.cluster, base);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE CONSTRAINT TRIGGER check_entries AFTER INSERT ON gpubudget.ledger
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION gpubudget.check_entries();

-- The triggers fire for every session, a replica's (session_replication_role)
-- too.
ALTER TABLE gpubudget.cluster ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE gpubudget.cluster ENABLE ALWAYS TRIGGER refuse_direct_write;
ALTER TABLE gpubudget.account ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE gpubudget.account ENABLE ALWAYS TRIGGER refuse_direct_write;
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER accept_entry;
ALTER TABLE gpubudget.ledger ENABLE ALWAYS TRIGGER check_entries;

REVOKE ALL ON gpubudget.cluster, gpubudget.account, gpubudget.ledger FROM PUBLIC;
