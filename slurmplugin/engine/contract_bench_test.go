// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"testing"

	"gpubudget/fairshare"
)

// BenchmarkCandidates is what an attempt to place a job costs the engine where
// 10,000 jobs of 500 accounts run, a GPU each, on 1,250 nodes.
func BenchmarkCandidates(b *testing.B) {
	const running, perNode = 10_000, 8
	for name, asked := range map[string]int64{"all may yield": 60, "all are protected": 28_800, "all are unallocated": 0} {
		b.Run(name, func(b *testing.B) {
			e, jobs := benchEngine(b), benchJobs(running)
			free := make([]fairshare.Room, running/perNode)
			occupants, pieces := make([]Occupant, running), make([]Piece, running)
			for i := range jobs {
				j := &jobs[i]
				j.State, j.Flags, j.GPUs, j.MinRuntime = Running, 0, 1, asked
				j.Start, j.End = begin.Unix()-3600-int64(i%5000), begin.Unix()+3600
				occupants[i] = Occupant{JobID: j.JobID, Start: j.Start, GPUs: 1, QOSPriority: j.QOSPriority}
				pieces[i] = Piece{uint32(i), uint32(i / perNode), fairshare.Room{1, 8}}
			}
			now := begin.UnixMilli()
			benchLook(b, e, jobs, now)
			if err := e.Rank(&Extremes{}, &Table{}); err != nil {
				b.Fatal(err)
			}
			request := Request{
				Job: Job{
					JobID: 1, ArrayTaskID: NoTask, Account: NewCString("account3"), User: NewCString("user30"),
					GPUs: 8, MinRuntime: 60, Flags: Demands, Begin: begin.Unix(),
				},
				Nodes: 1, MaxNodes: 1, PerNode: fairshare.Room{8, 8},
			}
			p := Placing{
				Request: &request, Free: &free[0], Pieces: &pieces[0], Occupants: &occupants[0],
				NodeCount: uint32(len(free)), PieceCount: running, OccupantCount: running,
			}
			b.ReportAllocs()
			for b.Loop() {
				e.Candidates(&p, now)
			}
		})
	}
}
