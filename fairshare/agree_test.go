// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// The plugin chooses by Offer, the simulator by Victims. Of jobs on one node each, both
// choose the same ones for the same request, as long as no more nodes are offered than
// it needs. Only if those are too many for R7 does Offer go on to other nodes.
func TestOfferAndVictimsChooseTheSame(t *testing.T) {
	r := contractRanking()
	rapid.Check(t, func(t *rapid.T) {
		s, q, ask := drawNodewise(t, 1)
		c := fairshare.DefaultContract()
		c.EvictedPerGPU = rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "limit")
		offered := c.Offer(r, contractNow, q, s.occupants, s.pieces, ask)
		victims := c.Victims(r, contractNow, q, s.occupants, s.room(ask))
		if len(victims) == 0 && len(offered) > 0 {
			gpus := s.gone(offered, ^uint(0))
			require.LessOrEqual(t, float64(gpus), c.EvictedPerGPU*float64(q.GPUs), "R7")
			unlimited := c
			unlimited.EvictedPerGPU = 0
			first := unlimited.Victims(r, contractNow, q, s.occupants, s.room(ask))
			require.Greater(t, float64(s.gone(first, ^uint(0))), c.EvictedPerGPU*float64(q.GPUs), "nothing else keeps Victims from it")
			return
		}
		require.Equal(t, slices.Concat(victims), slices.Concat(offered))
	})
}

// Of jobs on several nodes they need not choose the same: one that goes makes room on
// all of its nodes. But who goes last is the same, so neither goes further down the
// order of R6 than the other.
func TestOfferAndVictimsGoEquallyFar(t *testing.T) {
	r := contractRanking()
	rapid.Check(t, func(t *rapid.T) {
		s, q, ask := drawNodewise(t, 3)
		c := fairshare.DefaultContract()
		c.EvictedPerGPU = 0
		offered := c.Offer(r, contractNow, q, s.occupants, s.pieces, ask)
		victims := c.Victims(r, contractNow, q, s.occupants, s.room(ask))
		require.Equal(t, len(victims) == 0, len(offered) == 0)
		if len(victims) > 0 {
			require.Equal(t, victims[len(victims)-1], offered[len(offered)-1])
			require.True(t, s.room(ask)(offered))
		}
	})
}

// drawNodewise is a cluster's jobs, each on at most so many nodes, and a request for as
// much on each of some nodes.
func drawNodewise(t *rapid.T, most int) (*holdings, *fairshare.Request, *fairshare.Ask) {
	nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
	var s holdings
	for range rapid.IntRange(0, 16).Draw(t, "jobs") {
		var pieces []fairshare.Piece
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, nodes-1), 1, min(most, nodes), rapid.ID).Draw(t, "on") {
			pieces = append(pieces, held(n, rapid.Int64Range(1, 4).Draw(t, "gpus")))
		}
		s.job(rapid.SampledFrom([]string{"ahead", "lab", "gone"}).Draw(t, "account"), rapid.Bool().Draw(t, "allocated"), pieces...)
		s.occupants[len(s.occupants)-1].ProtectedUntil -= hour * fairshare.Instant(rapid.IntRange(0, 3).Draw(t, "over"))
	}
	ask := &fairshare.Ask{
		Free:  free(nodes, rapid.Int64Range(0, 2).Draw(t, "free"), rapid.Int64Range(0, 8).Draw(t, "cpus")),
		Nodes: rapid.IntRange(1, 3).Draw(t, "needs"),
	}
	ask.MaxNodes = ask.Nodes
	ask.PerNode = fairshare.Room{rapid.Int64Range(1, 8).Draw(t, "gpus on each"), rapid.Int64Range(1, 8).Draw(t, "cpus on each")}
	q := &fairshare.Request{Account: "behind", GPUs: ask.PerNode[fairshare.RoomGPUs] * int64(ask.Nodes), Allocated: true}
	return &s, q, ask
}

// room tells whether a request has what it asks for on as many nodes as it needs, with
// some jobs gone.
func (s *holdings) room(ask *fairshare.Ask) func(gone []int) bool {
	return func(gone []int) bool {
		rooms := slices.Clone(ask.Free)
		for _, i := range gone {
			for _, p := range s.pieces[i] {
				for k, has := range p.Held {
					rooms[p.Node][k] += has
				}
			}
		}
		fits := 0
		for _, room := range rooms {
			if room[0] >= ask.PerNode[0] && room[1] >= ask.PerNode[1] && room[2] >= ask.PerNode[2] {
				fits++
			}
		}
		return fits >= ask.Nodes
	}
}
