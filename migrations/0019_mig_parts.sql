-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- The MIG instances of a GPU that one job holds never count for more than the GPU:
-- those of one model count by the greater of what they have of the compute slices
-- together and of the memory together. fairshare.GPUWeights is the same in Go.

-- +goose Up

-- mig_of takes a type apart that ends in a MIG profile, as in a100_1g.10gb: the
-- model before it (NULL if there is none), the profile, its slices and its GB. NULL
-- if it doesn't end in one.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.mig_of(of_type text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN lower(of_type) LIKE '%g.%' THEN
    regexp_match(lower(of_type), '^(?:(.+)[-_:.])?(([1-7])g\.([0-9]{1,4})gb(?:[-+.][a-z.]+)?)$') END;
-- +goose StatementEnd

-- mig_parts are the parts of the compute slices and of the memory of a GPU that a
-- profile of so many slices and GB stands for, in 56ths: seven slices of compute and
-- eight of memory, unless it is of a GPU of four or of two.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.mig_parts(model text, slices integer, gb integer, OUT compute integer, OUT memory integer)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    twice boolean; -- as much memory as an instance of two slices
BEGIN
    IF (slices, gb) IN ((1, 6), (2, 12), (4, 24), (2, 48), (4, 96)) THEN
        compute := slices * 14;
        memory := slices * 14;
        RETURN;
    ELSIF (slices, gb) IN ((1, 16), (2, 32)) THEN
        compute := slices * 28;
        memory := slices * 28;
        RETURN;
    END IF;
    twice := slices = 1 AND CASE gb
        WHEN 10 THEN coalesce(model LIKE '%40gb%', false)
        WHEN 24 THEN coalesce(model NOT LIKE '%gb200%', true)
        WHEN 35 THEN coalesce(model NOT LIKE '%gb300%', true)
        ELSE gb IN (20, 36, 45, 47, 67, 70)
    END;
    compute := slices * 8;
    memory := 7 * CASE WHEN twice THEN 2 WHEN slices = 3 THEN 4 WHEN slices = 7 THEN 8 ELSE slices END;
END
$$;
-- +goose StatementEnd

-- unit_at is what a GPU of a type counts for: the weight of a whole one, in
-- millionths, and what the type is of one, in 56ths of the compute slices and of the
-- memory. Of an instance that counts by its part there is the model, '' if its type
-- names none; of all else that is NULL.
-- +goose StatementBegin
CREATE FUNCTION gpubudget.unit_at(of_cluster text, of_type text, at timestamptz,
    OUT weight bigint, OUT compute integer, OUT memory integer, OUT model text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    mig text[];
BEGIN
    compute := 56;
    memory := 56;
    weight := gpubudget.weight_entry(of_cluster, lower(of_type), at);
    IF weight IS NOT NULL THEN
        RETURN;
    END IF;
    mig := gpubudget.mig_of(of_type);
    IF mig IS NULL THEN
        weight := coalesce(gpubudget.weight_entry(of_cluster, '*', at), 1000000);
        RETURN;
    END IF;
    weight := gpubudget.weight_entry(of_cluster, mig[2], at);
    IF weight IS NOT NULL THEN
        RETURN;
    END IF;
    weight := coalesce(gpubudget.weight_entry(of_cluster, mig[1], at), gpubudget.weight_entry(of_cluster, '*', at), 1000000);
    model := coalesce(mig[1], '');
    SELECT p.compute, p.memory INTO compute, memory FROM gpubudget.mig_parts(mig[1], mig[3]::integer, mig[4]::integer) p;
END
$$;
-- +goose StatementEnd

-- weight_at is what a GPU of a type counts for, in millionths.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.weight_at(of_cluster text, of_type text, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    unit record;
BEGIN
    unit := gpubudget.unit_at(of_cluster, of_type, at);
    RETURN unit.weight * greatest(unit.compute, unit.memory) / 56;
END
$$;
-- +goose StatementEnd

-- rate_at is what a holding counts for, in millionths of a GPU of weight 1.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.rate_at(of_cluster text, of_type text, gpus bigint, parts bigint, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    unit record;
BEGIN
    IF of_type NOT LIKE '%:%' THEN
        unit := gpubudget.unit_at(of_cluster, of_type, at);
        RETURN div((gpus::numeric * 1000000 + parts) * greatest(unit.compute, unit.memory) * unit.weight, 56000000)::bigint;
    END IF;
    RETURN (
        SELECT sum(p.rate)::bigint
        FROM (
            SELECT div(greatest(sum(i.amount * u.compute), sum(i.amount * u.memory)) * u.weight, 56000000) AS rate
            FROM (
                SELECT n, split_part(item, ':', 1) AS name, trunc(split_part(item, ':', 2)::numeric * 1000000) AS amount
                FROM unnest(string_to_array(of_type, ',')) WITH ORDINALITY t (item, n)
            ) i, gpubudget.unit_at(of_cluster, i.name, at) u
            GROUP BY u.model, u.weight, CASE WHEN u.model IS NULL THEN i.n END
        ) p);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gpubudget.weight_names(of_type text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT array_remove(ARRAY[nullif(lower(of_type), ''), m.p[2], m.p[1], '*'], NULL)
    FROM (SELECT gpubudget.mig_of(of_type) AS p) m
$$;
-- +goose StatementEnd

DROP FUNCTION gpubudget.mig_part;

-- Who records runs waits: none shall count in the old way after all are weighed anew.
LOCK TABLE gpubudget.job_run IN SHARE ROW EXCLUSIVE MODE;

-- Runs on instances are charged anew, those that have ended too; capacity is weighed
-- when it is read. The trigger weigh_run says what they count for.
UPDATE gpubudget.job_run SET rate = NULL WHERE gpu_type ~* '[1-7]g\.[0-9]';
