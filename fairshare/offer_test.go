// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// held is a job's piece of a node, a GPU and two CPUs with each.
func held(node int, gpus int64) fairshare.Piece {
	return fairshare.Piece{Node: node, Held: fairshare.Room{gpus, 2 * gpus}}
}

// holdings is a cluster's running jobs, for Offer.
type holdings struct {
	occupants []fairshare.Occupant
	pieces    [][]fairshare.Piece
}

func (s *holdings) job(account string, allocated bool, pieces ...fairshare.Piece) {
	o := fairshare.Occupant{Account: account, Allocated: allocated, ProtectedUntil: contractNow - hour}
	for _, p := range pieces {
		o.GPUs += p.Held[fairshare.RoomGPUs]
	}
	s.occupants, s.pieces = append(s.occupants, o), append(s.pieces, pieces)
}

func free(nodes int, gpus, cpus int64) []fairshare.Room {
	rooms := make([]fairshare.Room, nodes)
	for i := range rooms {
		rooms[i] = fairshare.Room{gpus, cpus}
	}
	return rooms
}

func TestOffer(t *testing.T) {
	r := contractRanking()
	for _, tc := range []struct {
		name string
		jobs func(*holdings)
		gpus int64
		ask  fairshare.Ask
		want []int
	}{
		{"the first to go", func(s *holdings) {
			s.job("lab", true, held(0, 1))
			s.job("ahead", true, held(1, 1))
		}, 1, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{1, 1}}, []int{1}},
		{"spare nodes too", func(s *holdings) {
			s.job("lab", true, held(0, 1))
			s.job("ahead", true, held(1, 1))
			s.job("ahead", true, held(1, 1))
		}, 1, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{1, 1}, Spare: 1}, []int{1, 0}},
		{"unallocated ones first, then the most over-served, the least progress, the smallest", func(s *holdings) {
			s.job("lab", true, held(0, 1))
			s.job("ahead", true, held(0, 3))
			s.job("ahead", true, held(0, 2))
			s.job("ahead", true, held(0, 1))
			s.occupants[3].ProtectedUntil -= 2 * hour // 3 GPU-hours since, as the one with 3 GPUs
			s.job("ahead", false, held(0, 1))
		}, 8, fairshare.Ask{Free: free(1, 0, 8), PerNode: fairshare.Room{8, 1}}, []int{4, 2, 3, 1, 0}},
		{"as many of a node as it needs", func(s *holdings) {
			for range 4 {
				s.job("ahead", true, held(0, 1))
			}
		}, 3, fairshare.Ask{Free: free(1, 1, 8), PerNode: fairshare.Room{3, 1}}, []int{0, 1}},
		{"nobody if that isn't enough", func(s *holdings) {
			s.job("ahead", false, held(0, 1))
			s.job("ahead", false, held(1, 1))
		}, 2, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{2, 1}}, nil},
		{"over several nodes if only the sum counts", func(s *holdings) {
			s.job("ahead", false, held(0, 1))
			s.job("ahead", false, held(1, 1))
		}, 2, fairshare.Ask{Free: free(2, 0, 8)}, []int{0, 1}},
		{"CPUs count", func(s *holdings) {
			s.job("ahead", true, held(0, 1))
			s.job("ahead", true, held(0, 1))
		}, 1, fairshare.Ask{Free: free(1, 1, 1), PerNode: fairshare.Room{1, 4}}, []int{0, 1}},
		{"a node that has too few is left out", func(s *holdings) {
			s.job("ahead", true, held(0, 1))
			s.job("lab", true, held(1, 1))
		}, 1, fairshare.Ask{Free: []fairshare.Room{{0, 0}, {0, 8}}, PerNode: fairshare.Room{1, 4}, Spare: 1}, []int{1}},
		{"two pieces of one node count once each", func(s *holdings) {
			s.job("ahead", true, held(0, 1), held(0, 1))
			s.job("ahead", true, held(1, 1), held(1, 2))
		}, 3, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{3, 1}}, []int{1}},
		{"R7 within a node", func(s *holdings) {
			s.job("ahead", true, held(0, 3))
			s.job("lab", true, held(1, 2))
		}, 1, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{1, 1}, Nodes: 1, MaxNodes: 1, Spare: 9}, []int{1}},
		{"R7 counts all of a job, wherever it stands", func(s *holdings) {
			s.job("ahead", true, held(0, 1), held(1, 1), held(2, 1))
		}, 1, fairshare.Ask{Free: free(1, 0, 8), PerNode: fairshare.Room{1, 1}}, nil},
		{"R7 for all nodes together", func(s *holdings) {
			s.job("ahead", true, held(0, 4))
			s.job("ahead", true, held(1, 4))
		}, 2, fairshare.Ask{Free: free(2, 0, 8), Nodes: 2, PerNode: fairshare.Room{1, 1}}, nil},
		{"R7 counts those that were evicted before", func(s *holdings) {
			s.job("ahead", true, held(0, 1))
		}, 1, fairshare.Ask{Free: free(1, 0, 8), PerNode: fairshare.Room{1, 1}, Evicted: 2}, nil},
		{"not those that are unallocated", func(s *holdings) {
			s.job("ahead", false, held(0, 8))
		}, 1, fairshare.Ask{Free: free(1, 0, 8), PerNode: fairshare.Room{1, 1}, Evicted: 2}, []int{0}},
		{"spare nodes though there is room", func(s *holdings) {
			s.job("ahead", true, held(1, 1))
		}, 1, fairshare.Ask{Free: []fairshare.Room{{1, 8}, {0, 8}}, PerNode: fairshare.Room{1, 1}, Spare: 1}, []int{0}},
		{"not in need", func(s *holdings) {
			s.job("ahead", true, held(1, 1))
		}, 1, fairshare.Ask{Free: []fairshare.Room{{1, 8}, {0, 8}}, PerNode: fairshare.Room{1, 1}, Spare: 1, InNeed: true}, nil},
		{"spare nodes in need", func(s *holdings) {
			s.job("ahead", true, held(0, 1))
			s.job("ahead", true, held(1, 1))
		}, 1, fairshare.Ask{Free: free(2, 0, 8), PerNode: fairshare.Room{1, 1}, Spare: 1, InNeed: true}, []int{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s holdings
			tc.jobs(&s)
			for i := range s.pieces { // of nodes that aren't asked for there are none
				s.pieces[i] = slices.DeleteFunc(s.pieces[i], func(p fairshare.Piece) bool { return p.Node >= len(tc.ask.Free) })
			}
			c := fairshare.DefaultContract()
			q := &fairshare.Request{Account: "behind", GPUs: tc.gpus, Allocated: true}
			got := c.Offer(r, contractNow, q, s.occupants, s.pieces, &tc.ask)
			require.Equal(t, tc.want, got) // in the order of R6
		})
	}
}

// Whichever of the nodes it may use the scheduler takes, and whoever of the
// candidates there it evicts, R7 holds.
func TestR7HoldsWhateverTheSchedulerTakes(t *testing.T) {
	r := contractRanking()
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		s := drawHoldings(t, nodes)
		ask := fairshare.Ask{
			Free:  free(nodes, rapid.Int64Range(0, 2).Draw(t, "free"), rapid.Int64Range(0, 8).Draw(t, "cpus")),
			Nodes: rapid.IntRange(0, 3).Draw(t, "least"), MaxNodes: rapid.IntRange(0, 6).Draw(t, "most"),
			Spare: rapid.IntRange(0, 3).Draw(t, "spare"), Evicted: rapid.Int64Range(0, 2).Draw(t, "evicted"),
		}
		q := &fairshare.Request{Account: "behind", GPUs: rapid.Int64Range(1, 12).Draw(t, "asks"), Allocated: true}
		if rapid.Bool().Draw(t, "on each node") {
			ask.PerNode = fairshare.Room{max(q.GPUs/int64(max(ask.Nodes, 1)), 1), 1}
			q.GPUs = ask.PerNode[0] * int64(max(ask.Nodes, 1))
		}
		c := fairshare.DefaultContract()
		got := c.Offer(r, contractNow, q, s.occupants, s.pieces, &ask)
		if got == nil {
			return
		}
		gives := fairshare.Room{}
		for n := range ask.Free {
			gives[0] += ask.Free[n][0]
		}
		for _, i := range got {
			for _, p := range s.pieces[i] {
				gives[0] += p.Held[0]
			}
		}
		require.GreaterOrEqual(t, gives[0], q.GPUs, "nobody is offered for nothing")

		most := int(max(q.GPUs, 1))
		if ask.MaxNodes > 0 {
			most = min(most, ask.MaxNodes)
		}
		most = max(most, ask.Nodes, 1)
		for chosen := range uint(1) << nodes {
			if gone := s.gone(got, chosen); bits.OnesCount(chosen) <= most && gone > 0 {
				require.LessOrEqual(t, float64(gone+ask.Evicted), 2*float64(q.GPUs))
			}
		}
	})
}

// What was offered before, to others on another cluster, has no bearing on an offer.
func TestMemoryOfOffersIsUsedAgain(t *testing.T) {
	r := contractRanking()
	rapid.Check(t, func(t *rapid.T) {
		var m fairshare.Offers
		for range rapid.IntRange(2, 5).Draw(t, "offers") {
			nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
			s := drawHoldings(t, nodes)
			ask := fairshare.Ask{
				Free:  free(nodes, rapid.Int64Range(0, 2).Draw(t, "free"), rapid.Int64Range(0, 8).Draw(t, "cpus")),
				Nodes: rapid.IntRange(0, 3).Draw(t, "least"), Spare: rapid.IntRange(0, 3).Draw(t, "spare"),
			}
			q := &fairshare.Request{Account: "behind", GPUs: rapid.Int64Range(1, 12).Draw(t, "asks"), Allocated: true}
			c := fairshare.DefaultContract()
			want := c.Offer(r, contractNow, q, s.occupants, s.pieces, &ask)
			require.Equal(t, want, m.Offer(&c, r, contractNow, q, s.occupants, s.pieces, &ask))
		}
	})
}

func drawHoldings(t *rapid.T, nodes int) *holdings {
	var s holdings
	for range rapid.IntRange(0, 12).Draw(t, "jobs") {
		var pieces []fairshare.Piece
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, nodes-1), 1, nodes, rapid.ID).Draw(t, "on") {
			pieces = append(pieces, held(n, rapid.Int64Range(1, 4).Draw(t, "gpus")))
		}
		s.job(rapid.SampledFrom([]string{"ahead", "lab", "gone"}).Draw(t, "account"), rapid.Bool().Draw(t, "allocated"), pieces...)
	}
	return &s
}

// gone is the GPUs of allocated jobs that go if all of some do that stand on one
// of the nodes chosen, a bit each.
func (s *holdings) gone(some []int, chosen uint) int64 {
	var gpus int64
	for _, i := range some {
		if s.occupants[i].Allocated && slices.ContainsFunc(s.pieces[i], func(p fairshare.Piece) bool { return chosen>>p.Node&1 == 1 }) {
			gpus += s.occupants[i].GPUs
		}
	}
	return gpus
}

// What is charged more counts in the account and above, and nowhere else.
func TestCharged(t *testing.T) {
	r := contractRanking()
	more := r.Charged("bench", 100*fairshare.GPUHour)
	for i := range r.Accounts {
		was, is := r.Accounts[i], more.Accounts[i]
		added := fairshare.GPUMillis(0)
		if slices.Contains([]string{"bench", "lab", "root"}, was.Name) {
			added = 100 * fairshare.GPUHour
		}
		require.Equal(t, was.Load+added, is.Load, was.Name)
		direct := fairshare.GPUMillis(0)
		if was.Name == "bench" {
			direct = added
		}
		require.Equal(t, was.Direct.Load+direct, is.Direct.Load, was.Name)
	}
	require.Same(t, r, r.Charged("nobody", fairshare.GPUHour))
}

func TestRatios(t *testing.T) {
	r := contractRanking()
	for _, tc := range []struct {
		a, b       string
		ofA, withB float64
	}{
		{"behind", "ahead", 400. / 200, 200. / 400},
		{"behind", "bench", 400. / 200, 400. / 400},
		{"lab", "bench", 200. / 100, 200. / 300},
		{"ahead", "ahead", 200. / 400, 200. / 400},
		{"poor", "behind", 0, 400. / 200},
		{"nobody", "behind", 0, 400. / 200},
		{"behind", "nobody", 400. / 200, 0},
		{"nobody", "gone", 0, 0},
	} {
		a, b := r.Ratios(tc.a, tc.b)
		require.InDelta(t, tc.ofA, a, 1e-9, "%s and %s", tc.a, tc.b)
		require.InDelta(t, tc.withB, b, 1e-9, "%s and %s", tc.a, tc.b)
	}
	b := budget(100, account("a", "root", 50, equal("u")), account("b", "root", 50, equal("v")))
	fresh, _ := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10)}).Ratios("a", "b")
	require.Equal(t, math.Inf(1), fresh)
}
