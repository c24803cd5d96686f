// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// contested is a cluster of 32 GPUs on four nodes, where physics has used more
// than it is due and bio nothing.
type contested struct {
	*host
	slurm *slurm
	where map[uint32]int // the node of each running job
}

func contest(t *testing.T) *contested {
	t.Helper()
	c := &contested{host: warm(t), where: make(map[uint32]int)}
	t.Cleanup(c.stop)
	c.slurm = newSlurm(c.now)
	c.slurm.next = 1000
	return c
}

// run starts a job of one node.
func (c *contested) run(node int, account, user string, asked int64, gpus uint64) *simJob {
	j := c.slurm.submit(account, user, 0, gpus)
	j.asked = asked
	c.slurm.start(j)
	c.where[j.id] = node
	return j
}

// see is a pass over all jobs, some time later.
func (c *contested) see(d time.Duration) {
	c.tick(c.slurm, d)
	c.pass(c.slurm.list()...)
}

// candidates are whom a request for GPUs of one node may evict, in order, when
// there is nothing free.
func (c *contested) candidates(request *Job, change ...func(*Occupant)) []uint32 {
	return c.candidatesWith(request, 0, 0, change...)
}

// candidatesWith are the same where a node has free GPUs.
func (c *contested) candidatesWith(request *Job, node int, gpus int64, change ...func(*Occupant)) []uint32 {
	p := &Placing{Request: &Request{Job: *request, Nodes: 1, MaxNodes: 1, PerNode: fairshare.Room{int64(request.GPUs), 1}}}
	free := make([]fairshare.Room, 4)
	for i := range free {
		free[i][fairshare.RoomCPUs] = 64
	}
	free[node][fairshare.RoomGPUs] = gpus
	var occupants []Occupant
	var pieces []Piece
	for _, j := range c.slurm.jobs {
		if j.state != Running && j.state != Suspended {
			continue
		}
		o := Occupant{JobID: j.id, Start: max(j.start, j.resize), GPUs: j.gpus}
		for _, change := range change {
			change(&o)
		}
		pieces = append(pieces, Piece{uint32(len(occupants)), uint32(c.where[j.id]), fairshare.Room{int64(j.gpus), 1}})
		occupants = append(occupants, o)
	}
	if len(occupants) == 0 {
		return nil
	}
	p.Free, p.Pieces, p.Occupants = &free[0], &pieces[0], &occupants[0]
	p.NodeCount, p.PieceCount, p.OccupantCount = 4, uint32(len(pieces)), uint32(len(occupants))
	c.engine.Candidates(p, c.ms())
	ordered := make([]uint32, len(occupants)+1)
	n := 0
	for _, o := range occupants {
		if o.Order > 0 {
			ordered[o.Order] = o.JobID
			n++
		}
	}
	return ordered[1 : n+1]
}

func (c *contested) request(account, user string, asked int64, gpus uint64) *Job {
	j := c.pending(1, account, user, func(j *Job, _ *fairshare.Job) { j.MinRuntime, j.GPUs = asked, gpus })
	return &j
}

func TestWhoMayBeEvicted(t *testing.T) {
	c := contest(t)
	free := c.run(0, "physics", "alice", 0, 8)
	over := c.run(1, "physics", "alice", 600, 8)
	c.run(2, "bio", "carol", 600, 1)
	c.see(time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.Equal(t, []uint32{free.id}, c.candidates(ask), "nobody who is protected")
	c.see(598 * time.Second)
	require.Equal(t, []uint32{free.id}, c.candidates(ask), "not a second before")
	c.tick(c.slurm, time.Second)
	require.Equal(t, []uint32{free.id, over.id}, c.candidates(ask), "not of its own account")
	require.Empty(t, c.candidates(c.request("bio", "carol", 0, 4)), "for an unallocated one")
	require.Empty(t, c.candidates(c.request("idle", "dora", 300, 4)), "for one that isn't funded")
	require.Equal(t, []uint32{free.id}, c.candidates(c.request("physics", "bob", 300, 4)), "for an account that is ahead")
}

func TestWhoIsUnknownKeepsHisGPUs(t *testing.T) {
	c := contest(t)
	ask := c.request("bio", "carol", 300, 4)
	c.see(time.Second)
	unseen := c.run(0, "physics", "alice", 0, 8)
	require.Empty(t, c.candidates(ask), "a run that no pass has seen")
	c.see(time.Second)
	require.Equal(t, []uint32{unseen.id}, c.candidates(ask))
	require.Empty(t, c.candidates(ask, func(o *Occupant) { o.Start++ }), "a later run of the job")
	require.Empty(t, c.candidates(ask, func(o *Occupant) { o.GPUs = 0 }), "one without GPUs")
	c.engine.slurm.inForce = true
	require.Empty(t, c.candidates(ask), "shares of Slurm's tell nobody's rank")
	c.engine.slurm.inForce = false
}

func TestSuspendedTimeProtectsNobody(t *testing.T) {
	c := contest(t)
	j := c.run(0, "physics", "alice", 600, 8)
	c.see(100 * time.Second)
	c.slurm.suspend(j)
	ask := c.request("bio", "carol", 300, 4)
	c.see(1000 * time.Second)
	require.Empty(t, c.candidates(ask), "its minimum runtime has not passed while it is suspended")
	c.slurm.resume(j)
	c.see(499 * time.Second)
	require.Empty(t, c.candidates(ask))
	c.see(time.Second)
	require.Equal(t, []uint32{j.id}, c.candidates(ask))
}

func TestAHetJobIsEvictedAsAWhole(t *testing.T) {
	c := contest(t)
	first, second := c.run(0, "physics", "alice", 0, 4), c.run(1, "physics", "alice", 600, 4)
	c.see(time.Second)
	ask := c.request("bio", "carol", 300, 4)
	het := func(o *Occupant) { o.HetJobID = first.id }
	require.Equal(t, []uint32{first.id}, c.candidates(ask))
	require.Empty(t, c.candidates(ask, het), "one component is protected")
	c.see(600 * time.Second)
	require.ElementsMatch(t, []uint32{first.id, second.id}, both(c, ask, het))
}

// both are all whose order isn't 0; components of a job share theirs.
func both(c *contested, ask *Job, het func(*Occupant)) []uint32 {
	var found []uint32
	p := &Placing{Request: &Request{Job: *ask, Nodes: 1, MaxNodes: 1, PerNode: fairshare.Room{int64(ask.GPUs), 1}}}
	free := make([]fairshare.Room, 4)
	occupants := make([]Occupant, len(c.slurm.jobs))
	pieces := make([]Piece, len(c.slurm.jobs))
	for i, j := range c.slurm.jobs {
		occupants[i] = Occupant{JobID: j.id, Start: j.start, GPUs: j.gpus}
		het(&occupants[i])
		pieces[i] = Piece{uint32(i), uint32(c.where[j.id]), fairshare.Room{int64(j.gpus), 1}}
	}
	p.Free, p.Pieces, p.Occupants = &free[0], &pieces[0], &occupants[0]
	p.NodeCount, p.PieceCount, p.OccupantCount = 4, uint32(len(pieces)), uint32(len(occupants))
	c.engine.Candidates(p, c.ms())
	for _, o := range occupants {
		if o.Order != 0 {
			found = append(found, o.JobID)
		}
	}
	return found
}

func TestAPreemptionIsNoted(t *testing.T) {
	c := contest(t)
	over := c.run(1, "physics", "alice", 600, 8)
	c.see(600 * time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.Equal(t, []uint32{over.id}, c.candidates(ask))
	c.engine.wanted.Store(false)
	c.engine.Preempted(over.id, ask.JobID, true, c.ms())
	require.True(t, c.engine.Wanted())

	noted := c.engine.takePreemptions()
	require.Len(t, noted, 1)
	p := noted[0]
	require.Equal(t, fairshare.Instant(c.ms()), p.At)
	require.Equal(t, fairshare.R3, p.Rule)
	require.True(t, p.Requeue)
	require.Equal(t, Party{
		JobID: ask.JobID, Account: "bio", User: "carol", GPUs: 4, Allocated: true, MinRuntime: 5 * time.Minute,
		Ratio: p.Request.Ratio, Rank: 1,
	}, p.Request)
	require.Equal(t, Party{
		JobID: over.id, Account: "physics", User: "alice", GPUs: 8, Allocated: true, MinRuntime: 10 * time.Minute,
		StartedAt: seconds(over.start), ProtectedUntil: fairshare.Instant(over.start+600) * 1000,
		Ratio: p.Victim.Ratio, Rank: p.Victim.Rank,
	}, p.Victim)
	require.Greater(t, p.Request.Ratio, p.Victim.Ratio)
	require.Greater(t, p.Victim.Rank, p.Request.Rank)
	require.Empty(t, c.engine.takePreemptions())
}

// A component's own minimum runtime had passed long before anybody could evict it.
func TestTheRecordHasTheProtectionOfTheWholeHetJob(t *testing.T) {
	c := contest(t)
	first, second := c.run(0, "physics", "alice", 60, 4), c.run(1, "physics", "alice", 600, 4)
	c.see(600 * time.Second)
	for _, j := range []*simJob{first, second} {
		c.engine.tracker.jobs[j.id].run.HetJobID = first.id
	}
	ask := c.request("bio", "carol", 300, 4)
	require.NotEmpty(t, both(c, ask, func(o *Occupant) { o.HetJobID = first.id }))
	c.engine.Preempted(first.id, ask.JobID, true, c.ms())
	noted := c.engine.takePreemptions()
	require.Len(t, noted, 1)
	require.Equal(t, fairshare.Instant(second.start+600)*1000, noted[0].Victim.ProtectedUntil)
	require.Equal(t, time.Minute, noted[0].Victim.MinRuntime)
}

// What was exchanged counts at once, and no longer if it came to nothing.
func TestAnExchangeCountsAtOnce(t *testing.T) {
	c := contest(t)
	over := c.run(1, "physics", "alice", 600, 8)
	c.see(600 * time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.NotEmpty(t, c.candidates(ask))
	c.engine.Preempted(over.id, ask.JobID, true, c.ms())
	load := func() int64 {
		bio, ok := c.engine.contracted().Account("bio")
		require.True(t, ok)
		return int64(bio.Load)
	}
	require.Equal(t, int64(4*300*1000), load())
	c.slurm.requeue(over)
	c.see(time.Second)
	require.Equal(t, int64(4*300*1000), load(), "the next pass doesn't know the request yet")
	c.see(3 * time.Minute)
	require.Zero(t, load(), "it was cancelled")
}

// Once the ranking knows that the one has ended and the other has run, nothing is
// counted beside it: not even if the request was so short that no pass saw it run.
func TestAnExchangeIsOverOnceItIsRanked(t *testing.T) {
	for name, ended := range map[string]bool{"it runs": false, "it has run": true} {
		t.Run(name, func(t *testing.T) {
			c := contest(t)
			over := c.run(1, "physics", "alice", 600, 8)
			c.see(600 * time.Second)
			request := c.slurm.submit("bio", "carol", 0, 4)
			request.asked = 300
			ask := c.slurm.show(request)
			require.NotEmpty(t, c.candidates(&ask))
			c.engine.Preempted(over.id, request.id, true, c.ms())
			c.slurm.requeue(over)
			c.slurm.clean(over)
			c.slurm.start(request)
			c.tick(c.slurm, time.Second)
			if ended {
				c.slurm.complete(request, Complete)
			}
			c.see(0)
			require.Same(t, c.engine.ranking, c.engine.contracted())
			require.Empty(t, c.engine.contract.asks)
			require.Empty(t, c.engine.contract.tries)
		})
	}
}

// Tasks of an array evict one after the other under one id.
func TestEachTaskOfAnArrayMayEvict(t *testing.T) {
	c := contest(t)
	var jobs []*simJob
	for node := range 4 {
		jobs = append(jobs, c.run(node, "physics", "alice", 600, 8))
	}
	c.see(600 * time.Second)
	ask := c.request("bio", "carol", 30, 4)
	for i, j := range jobs {
		ask.ArrayTasks = uint32(10 - i)
		require.Contains(t, c.candidates(ask), j.id, "task %d", i)
		c.engine.Preempted(j.id, ask.JobID, true, c.ms())
		c.slurm.requeue(j)
		c.slurm.clean(j)
		c.see(time.Second)
	}
}

func TestR7CountsWhatWasEvictedForARequestAndInADay(t *testing.T) {
	c := contest(t)
	var jobs []*simJob
	for node := range 4 {
		jobs = append(jobs, c.run(node, "physics", "alice", 600, 4))
	}
	c.see(600 * time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.Len(t, c.candidates(ask), 4, "the scheduler takes one")
	c.engine.Preempted(jobs[0].id, ask.JobID, true, c.ms())
	c.slurm.requeue(jobs[0])
	c.see(time.Second)
	require.Len(t, c.candidates(ask), 3)
	c.engine.Preempted(jobs[1].id, ask.JobID, true, c.ms())
	c.slurm.requeue(jobs[1])
	c.see(time.Second)
	require.Empty(t, c.candidates(ask), "8 GPUs for 4 are enough")

	other := c.request("bio", "carol", 300, 4)
	other.JobID = 2
	for n := range 4 {
		require.Contains(t, c.candidates(other), jobs[3].id)
		c.engine.contract.evictions[jobs[3].id] = evicted(n+1, fairshare.Instant(c.ms()))
	}
	require.NotContains(t, c.candidates(other), jobs[3].id, "four times a day are enough")
	c.see(24 * time.Hour)
	require.Contains(t, c.candidates(other), jobs[3].id)
}

// While who was told to go still runs, in his grace time, nobody else is offered.
func TestNobodyElseGoesDuringAGraceTime(t *testing.T) {
	c := contest(t)
	told := c.run(0, "physics", "alice", 0, 8)
	c.see(60 * time.Second)
	other := c.run(1, "physics", "alice", 0, 8)
	c.see(time.Second)
	ask := c.request("bio", "carol", 300, 8)
	require.Equal(t, []uint32{other.id, told.id}, c.candidates(ask), "who has lost least goes first")
	c.engine.Preempted(told.id, ask.JobID, true, c.ms())
	require.Equal(t, []uint32{told.id}, c.candidates(ask))
	c.see(time.Second)
	require.Equal(t, []uint32{told.id}, c.candidates(ask))
	another := c.request("bio", "carol", 300, 8)
	another.JobID = 2
	require.Contains(t, c.candidates(another), other.id, "for another request")
	c.slurm.requeue(told)
	c.see(time.Second)
	require.Equal(t, []uint32{other.id}, c.candidates(ask), "once it is gone")
}

func TestSpareNodes(t *testing.T) {
	for _, c := range []struct{ fruitless, want int }{
		{0, 4}, {2, 4}, {3, 8}, {6, 16}, {9, 32}, {12, 64}, {14, 64},
		{15, 64}, {16, 128}, {17, 64}, {18, 128}, {19, 64}, {20, 256}, {24, 512}, {32, 1024}, {33, 64}, {48, 1024}, {64, 1024},
	} {
		require.Equal(t, c.want, spare(c.fruitless), "after %d attempts in vain", c.fruitless)
	}
}

// A request that Slurm can't place costs what few candidates cost, on average, and
// is offered as many as ever within any 16 attempts.
func TestManyNodesAreOfferedNowAndThen(t *testing.T) {
	for from := 2 * fewAttempts * mostDoublings; from < 1000; from++ {
		sum, most := 0, 0
		for attempt := range 16 {
			sum, most = sum+spare(from+attempt), max(most, spare(from+attempt))
		}
		require.Equal(t, spareNodes<<mostDoublings, most)
		require.Equal(t, 16*3*spareNodes<<usualDoublings, sum, "thrice what most attempts offer")
	}
}
