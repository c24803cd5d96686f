// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"context"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Weights are what GPUs count for in a period, by what the ledger says of their
// types.
func (s *Store) Weights(ctx context.Context, cluster string, p fairshare.Period) (fairshare.GPUWeights, error) {
	rows, err := s.db.Query(ctx, `SELECT gpu_type, coalesce(weight, -1), seq, effective_from, effective_until FROM gpubudget.ledger
		WHERE cluster = $1 AND kind = 'weight_set'`, cluster)
	if err != nil {
		return nil, failed("read weights", err)
	}
	entries := map[string][]dated[fairshare.Weight]{}
	var r loadedRow
	_, err = pgx.ForEachRow(rows, []any{&r.other, &r.number, &r.seq, &r.from, &r.until}, func() error {
		entries[r.other] = append(entries[r.other], datedFrom(&r, fairshare.Weight(r.number)))
		return nil
	})
	if err != nil {
		return nil, failed("read weights", err)
	}
	weights := fairshare.GPUWeights{}
	for name, of := range entries {
		if line := clip(steps(of), p); len(line) > 0 {
			weights[name] = line
		}
	}
	return weights, nil
}

// WeightHistory is all entries that set a weight, in the order they were written.
func (s *Store) WeightHistory(ctx context.Context, cluster string) ([]Entry, error) {
	return s.Ledger(ctx, Filter{Cluster: cluster, Kinds: []Kind{WeightSet}})
}
