// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// A Place may be used for every pass after another: it changes no priority.
func TestPlacesChangeNothing(t *testing.T) {
	type names struct{ account, user string }
	places := make(map[names]*fairshare.Place)
	size := fairshare.ClusterSize{Nodes: 100, CPUs: 6400}
	for pass := range 3 {
		r := fairshare.Rank(largeInput(20, 100+30*pass, 0))
		jobs, _ := benchmarkJobs(r)
		jobs = append(jobs, fairshare.Job{Account: "nowhere", User: "nobody", Nice: 7})
		placed := slices.Clone(jobs)
		for i := range placed {
			j := &placed[i]
			j.Nice = jobs[len(jobs)-1-i].Nice + int64(pass) // another order of other values
			jobs[i].Nice = j.Nice
			key := names{j.Account, j.User}
			if places[key] == nil {
				places[key] = &fairshare.Place{}
			}
			j.Place = places[key]
		}
		seen, seenPlaced := &fairshare.Seen{}, &fairshare.Seen{}
		for i := range jobs {
			seen.Add(&jobs[i])
			seenPlaced.Add(&placed[i])
		}
		plain := fairshare.NewStrict(r, benchmarkWeights, size, seen)
		quick := fairshare.NewStrict(r, benchmarkWeights, size, seenPlaced)
		for range 2 {
			for i := range jobs {
				var want, got fairshare.Factors
				plain.Priority(&jobs[i], &want)
				quick.Priority(&placed[i], &got)
				require.Equal(t, want, got)
			}
		}
	}
}
