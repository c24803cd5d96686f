// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
)

// chargedAtOnce is how many jobs are charged anew in one transaction: writers of
// runs wait for it.
const chargedAtOnce = 500

// ChargeMetered has runs that have ended charged by what meters saw of them, as the
// cluster's policy says, if anything has become known since the last time. It
// returns how many jobs it looked at. Where all is charged by occupancy there is
// nothing to do.
func (s *Store) ChargeMetered(ctx context.Context, cluster string) (jobs int, err error) {
	for {
		var n int
		if err := s.db.QueryRow(ctx, `SELECT gpubudget.charge_metered($1, $2)`, cluster, chargedAtOnce).Scan(&n); err != nil {
			return jobs, fmt.Errorf("charge runs of %s by what meters saw: %w", cluster, err)
		}
		if jobs += n; n < chargedAtOnce {
			return jobs, nil
		}
	}
}
