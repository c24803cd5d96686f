// SPDX-License-Identifier: GPL-2.0-or-later

package tally

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

const (
	hour   = 3600_000
	offset = 1_700_000_400_000 // of the wall clock: 20 minutes before an hour ends
)

// edge is when the first hour ends, by the clock since the boot.
const edge = hour - offset%hour

func holding(gpu string, job uint32, from, until int64) Holding {
	return Holding{ID: ID{GPU: gpu, JobID: job, From: from}, Until: until, Source: FromProlog}
}

// lookAt is a GPU that was busy for so much of the time since from, in percent.
func lookAt(from, now, percent int64) Look {
	span := (now - from) * 1000
	return Look{From: from, Busy: span * percent / 100, BusyKnown: span}
}

// all are the closed and the open buckets, each only as it was last.
func (t *Tally) all(into map[string]*Bucket) {
	for _, b := range append(t.Closed(), t.Buckets()...) {
		key := fmt.Sprintf("%d %s %d %d %s", b.Starts, b.GPU, b.JobID, b.Restart, b.Incarnation)
		if old := into[key]; old == nil || b.Seq > old.Seq {
			into[key] = b
		}
	}
}

func sum(buckets map[string]*Bucket, amount func(*Bucket) int64) (total int64) {
	for _, b := range buckets {
		total += amount(b)
	}
	return total
}

func part(b *Bucket) int64 { return b.Part }

func TestAHoldingIsCountedFromPrologToEpilog(t *testing.T) {
	tally := New("a", hour, offset, nil)
	got := map[string]*Bucket{}
	tally.Add(Round{Now: 10_000, Holdings: []Holding{holding("G", 7, 3_217, Open)}})
	tally.Add(Round{Now: 20_000, Holdings: []Holding{holding("G", 7, 3_217, Open)}})
	tally.Add(Round{Now: 30_000, Holdings: []Holding{holding("G", 7, 3_217, 24_502)}})
	tally.Add(Round{Now: 40_000, Holdings: []Holding{holding("G", 7, 3_217, 24_502)}})
	tally.all(got)
	require.Len(t, got, 1)
	for _, b := range got {
		require.Equal(t, int64(24_502-3_217), b.Held())
		require.Equal(t, fairshare.Instant(offset+3_217), b.From)
		require.Equal(t, b.Held(), b.Part)
		require.True(t, b.Ended)
		require.Nil(t, b.Busy)
		require.Zero(t, b.BusyKnown)
	}
	require.True(t, tally.Counted(holding("G", 7, 3_217, 0).ID))
	require.Empty(t, tally.Buckets())
}

func TestBucketsEndWithTheirHour(t *testing.T) {
	tally := New("a", hour, offset, nil)
	tally.Add(Round{Now: edge + hour + 5, Holdings: []Holding{holding("G", 7, edge-1000, Open)}})
	closed := tally.Closed()
	require.Len(t, closed, 2)
	require.Equal(t, []int64{1000, hour}, []int64{closed[0].Held(), closed[1].Held()})
	require.Equal(t, closed[0].Ends, closed[1].Starts)
	require.False(t, closed[0].Ended)
	open := tally.Buckets()
	require.Len(t, open, 1)
	require.Equal(t, int64(5), open[0].Held())
}

// What ends at the very edge of a bucket ends in it.
func TestAnEndAtTheEdge(t *testing.T) {
	tally := New("a", hour, offset, nil)
	tally.Add(Round{Now: edge, Holdings: []Holding{holding("G", 7, edge-5, Open)}})
	tally.Add(Round{Now: edge + 5, Holdings: []Holding{holding("G", 7, edge-5, edge)}})
	closed := tally.Closed()
	require.Len(t, closed, 1)
	require.True(t, closed[0].Ended)
	require.Equal(t, int64(5), closed[0].Held())
}

func TestUtilisationCountsWhereItWasSeen(t *testing.T) {
	tally := New("a", hour, 0, nil)
	h := []Holding{holding("G", 7, 0, Open)}
	power, memory := int64(500_000), int64(1000)
	// A round that nobody looked at, one half busy, one idle, one unknown.
	tally.Add(Round{Now: 10_000, Holdings: h})
	look := lookAt(10_000, 20_000, 50)
	look.Power, look.Memory, look.Jobs = &power, &memory, map[uint32]JobLook{7: {}}
	tally.Add(Round{Now: 20_000, Holdings: h, Looks: map[string]Look{"G": look}})
	b := tally.Buckets()[0]
	require.Equal(t, fairshare.Instant(20_000), *b.LastBusy)
	require.Nil(t, b.IdleSince)
	require.Equal(t, []int64{5000, 10_000}, []int64{*b.Busy, b.BusyKnown})

	look = lookAt(20_000, 30_000, 0)
	look.Jobs = map[uint32]JobLook{}
	tally.Add(Round{Now: 30_000, Holdings: h, Looks: map[string]Look{"G": look}})
	b = tally.Buckets()[0]
	require.Equal(t, fairshare.Instant(20_000), *b.IdleSince)
	require.Equal(t, []int64{5000, 20_000}, []int64{*b.Busy, b.BusyKnown})
	require.Equal(t, []int64{10_000, 20_000}, []int64{*b.Process, b.ProcessKnown}, "held without a process is seen")
	require.Equal(t, []int64{1000 * 10_000, 10_000, 1000}, []int64{*b.Memory, b.MemoryKnown, *b.MemoryMax})
	require.Equal(t, []int64{500 * 10_000, 10_000}, []int64{*b.Energy, b.EnergyKnown}, "500 W for 10 s are 5000 J")
	require.Equal(t, int64(2), b.Samples)

	tally.Add(Round{Now: 40_000, Holdings: h})
	b = tally.Buckets()[0]
	require.Nil(t, b.IdleSince, "nobody knows")
	require.Equal(t, int64(20_000), b.BusyKnown)
	require.Equal(t, int64(40_000), b.Held())
}

// A sample that reaches back before the round does not make a GPU busier.
func TestMoreIsKnownThanTheRoundIsLong(t *testing.T) {
	tally := New("a", hour, 0, nil)
	h := []Holding{holding("G", 7, 0, Open)}
	look := Look{From: 0, Busy: 400_000, BusyKnown: 1_000_000}
	tally.Add(Round{Now: 500, Holdings: h, Looks: map[string]Look{"G": look}})
	b := tally.Buckets()[0]
	require.Equal(t, []int64{200, 500}, []int64{*b.Busy, b.BusyKnown})
}

// One burst long ago does not hide that a GPU has been idle since.
func TestIdleTimeTrailsOverBuckets(t *testing.T) {
	tally := New("a", hour, 0, nil)
	h := []Holding{holding("G", 7, 0, Open)}
	tally.Add(Round{Now: 10_000, Holdings: h, Looks: map[string]Look{"G": lookAt(0, 10_000, 100)}})
	for now := int64(20_000); now <= 3*hour; now += 10_000 {
		tally.Add(Round{Now: now, Holdings: h, Looks: map[string]Look{"G": lookAt(now-10_000, now, 0)}})
	}
	buckets := append(tally.Closed(), tally.Buckets()...)
	require.Len(t, buckets, 3)
	for _, b := range buckets {
		require.Equal(t, fairshare.Instant(10_000), *b.IdleSince)
		require.Equal(t, fairshare.Instant(10_000), *b.LastBusy)
	}
	require.Zero(t, *buckets[2].Busy)
	require.Equal(t, buckets[2].Held(), buckets[2].BusyKnown)
}

func TestASharedGPU(t *testing.T) {
	tally := New("a", hour, 0, nil)
	power, memory, mine := int64(1_000_000), int64(50_000), int64(20_000)
	look := lookAt(0, 9_000, 80)
	look.Power, look.Memory, look.Jobs = &power, &memory, map[uint32]JobLook{2: {Memory: &mine}, 3: {}}
	tally.Add(Round{Now: 9_000, Looks: map[string]Look{"G": look}, Holdings: []Holding{
		holding("G", 1, 0, Open), holding("G", 2, 0, Open), holding("G", 3, 0, Open),
	}})
	var parts []int64
	for _, b := range tally.Buckets() {
		parts = append(parts, b.Part)
		require.Equal(t, int64(9_000), b.Shared)
		require.Nil(t, b.Busy, "nobody knows whose it is")
		require.Equal(t, []int64{7_200, 9_000}, []int64{*b.SharedBusy, b.SharedBusyKnown}, "all of it")
		require.Equal(t, int64(3_000_000), *b.Energy)
		switch b.JobID {
		case 1:
			require.Equal(t, []int64{0, 0}, []int64{*b.MemoryMax, *b.Process}, "it has no process there")
		case 2:
			require.Equal(t, mine, *b.MemoryMax)
		case 3:
			require.Nil(t, b.Memory, "the driver does not say")
			require.Equal(t, int64(9_000), *b.Process)
		}
	}
	require.Equal(t, []int64{3000, 3000, 3000}, parts)
}

// What a GPU was at work while a job held it alone, and while others did too, is kept
// apart, also of what is taken back.
func TestWorkAloneAndSharedIsKeptApart(t *testing.T) {
	tally := New("a", hour, 0, nil)
	alone, shared := holding("G", 1, 0, Open), holding("G", 2, 10_000, Open)
	add := func(now, percent int64, h ...Holding) {
		tally.Add(Round{Now: now, Holdings: h, Looks: map[string]Look{"G": lookAt(now-10_000, now, percent)}})
	}
	apart := func(b *Bucket) []int64 {
		requireValid(t, b)
		return []int64{value(b.Busy), b.BusyKnown, value(b.SharedBusy), b.SharedBusyKnown}
	}
	add(10_000, 100, alone)
	add(20_000, 50, alone, shared)
	add(30_000, 0, alone, shared)
	b := tally.Buckets()
	require.Equal(t, []int64{10_000, 10_000, 5_000, 20_000}, apart(b[0]))
	require.Equal(t, []int64{0, 0, 5_000, 20_000}, apart(b[1]))
	require.Nil(t, b[0].IdleSince, "nobody knows")

	alone.Until = 29_997
	add(40_000, 80, alone, shared)
	require.Equal(t, []int64{10_000, 10_000, 5_000, 19_997}, apart(tally.Closed()[0]))
	require.Equal(t, []int64{8_000, 10_000, 5_000, 20_000}, apart(tally.Buckets()[0]))
}

func TestMPSPercentages(t *testing.T) {
	for _, tc := range []struct{ percents, want []int64 }{
		{[]int64{30}, []int64{3000}},
		{[]int64{30, 50}, []int64{3000, 5000}},
		{[]int64{80, 80}, []int64{5000, 5000}},
		{[]int64{30, 0}, []int64{5000, 5000}}, // one without: evenly
		{[]int64{0, 0, 0}, []int64{3334, 3333, 3333}},
	} {
		tally := New("a", hour, 0, nil)
		var holdings []Holding
		for i, percent := range tc.percents {
			h := holding("G", uint32(i+1), 0, Open)
			h.MPSPercent = int(percent)
			holdings = append(holdings, h)
		}
		tally.Add(Round{Now: 10_000, Holdings: holdings})
		var got []int64
		for i, b := range tally.Buckets() {
			got = append(got, b.Part)
			require.Equal(t, tc.percents[i], int64(percentOf(b)))
		}
		require.Equal(t, tc.want, got, "%v", tc.percents)
	}
}

func percentOf(b *Bucket) int {
	if b.MPSPercent == nil {
		return 0
	}
	return *b.MPSPercent
}

// Epilog has looked at its clock before the round and has written after it.
func TestWhatWasCountedBeyondTheEndIsTakenBack(t *testing.T) {
	tally := New("a", hour, 0, nil)
	look := lookAt(0, 10_000, 100)
	tally.Add(Round{Now: 10_000, Holdings: []Holding{holding("G", 7, 0, Open)}, Looks: map[string]Look{"G": look}})
	tally.Add(Round{Now: 20_000, Holdings: []Holding{holding("G", 7, 0, 9_998)}, Looks: map[string]Look{"G": lookAt(10_000, 20_000, 100)}})
	closed := tally.Closed()
	require.Len(t, closed, 1)
	b := closed[0]
	require.Equal(t, []int64{9_998, 9_998, 9_998, 9_998}, []int64{b.Held(), b.Part, *b.Busy, b.BusyKnown})
	require.Equal(t, fairshare.Instant(9_998), *b.LastBusy)
	require.True(t, b.Ended)
}

// The hour has ended between the two.
func TestWhatIsTakenBackLiesInTwoBuckets(t *testing.T) {
	tally := New("a", hour, offset, nil)
	got := map[string]*Bucket{}
	for now := int64(edge - 20_000); now <= edge; now += 10_000 {
		tally.Add(Round{Now: now, Holdings: []Holding{holding("G", 7, edge-30_000, Open)}, Looks: map[string]Look{"G": lookAt(now-10_000, now, 100)}})
	}
	tally.Add(Round{Now: edge + 3, Holdings: []Holding{holding("G", 7, edge-30_000, Open)}, Looks: map[string]Look{"G": lookAt(edge, edge+3, 100)}})
	tally.all(got)
	tally.Add(Round{Now: edge + 10_000, Holdings: []Holding{holding("G", 7, edge-30_000, edge-2)}})
	tally.all(got)
	require.Len(t, got, 2)
	for _, amount := range []func(*Bucket) int64{(*Bucket).Held, part, func(b *Bucket) int64 { return value(b.Busy) }} {
		require.Equal(t, int64(30_000-2), sum(got, amount))
	}
	for _, b := range got {
		require.True(t, b.Ended)
		requireValid(t, b)
	}
}

// Two that shared a GPU and have both ended a moment ago give back half of it each.
func TestWhatIsTakenBackOfASharedGPUIsWhatWasGiven(t *testing.T) {
	tally := New("a", hour, offset, nil)
	got := map[string]*Bucket{}
	add := func(now int64, until [2]int64) {
		tally.Add(Round{Now: now, Holdings: []Holding{holding("G", 1, edge-20_000, until[0]), holding("G", 2, edge-10_000, until[1])}})
		tally.all(got)
	}
	add(edge-10_000, [2]int64{Open, Open})
	add(edge+3, [2]int64{Open, Open})
	add(edge+10_000, [2]int64{edge - 2_000, edge - 2_000})
	require.Equal(t, int64(18_000+8_000), sum(got, (*Bucket).Held))
	require.Equal(t, int64(18_000), sum(got, part))
	for _, b := range got {
		requireValid(t, b)
	}
}

// A holding that an agent was not told of yet, since when it was started, has what
// the agent before has counted.
func TestWhatAnAgentBeforeHasCountedIsNotGivenToOthers(t *testing.T) {
	got := map[string]*Bucket{}
	first, second := holding("G", 1, 0, Open), holding("G", 2, 0, Open)
	var marks []Mark
	for i, seen := range [][]Holding{{first, second}, {first}, {second}, {first, second}} {
		tally := New(strconv.Itoa(i), hour, offset, marks)
		tally.Add(Round{Now: int64(i+1) * 10_000, Holdings: seen})
		tally.Forget()
		tally.all(got)
		marks = tally.Marks()
	}
	require.Equal(t, int64(80_000), sum(got, (*Bucket).Held))
	require.Equal(t, int64(40_000), sum(got, part))
	require.Equal(t, int64(80_000-2*10_000), sum(got, func(b *Bucket) int64 { return b.Shared }), "what was counted before it was known stays as it is")
}

// A job whose file could not be read for long shared the GPU with those that have
// ended meanwhile.
func TestWhoEndedWhileAFileCouldNotBeReadIsRemembered(t *testing.T) {
	got := map[string]*Bucket{}
	unread, ended := holding("G", 1, 0, Open), holding("G", 2, 0, 20_000)
	unread.MPSPercent, ended.MPSPercent = 60, 40
	tally := New("a", hour, 0, nil)
	tally.Add(Round{Now: 10_000, Holdings: []Holding{unread, ended}})
	tally.Add(Round{Now: 20_000, Holdings: []Holding{ended}})
	tally.all(got)
	tally = New("b", hour, 0, tally.Marks())
	tally.Add(Round{Now: 20_000 + 2*remembered})
	tally.Add(Round{Now: 20_000 + 2*remembered + 1, Holdings: []Holding{unread}})
	tally.all(got)
	require.Equal(t, int64(20_000+2*remembered*60/100), sum(got, part))

	tally.Forget()
	tally.Add(Round{Now: 20_000 + 3*remembered, Holdings: []Holding{unread}})
	require.Len(t, tally.Marks(), 1)
}

// However long that was, the job is counted on from where it was, while those that
// ended take up room for a day at most.
func TestAHoldingThatCouldNotBeReadForDaysIsCountedOn(t *testing.T) {
	const days = 3 * rememberedAtMost
	unread, ended := holding("G", 1, 0, Open), holding("G", 2, 10_000, 20_000)
	tally := New("b", hour, 0, []Mark{{ID: unread.ID, UpTo: 10_000}})
	tally.Add(Round{Now: 20_000, Holdings: []Holding{ended}})
	tally.Add(Round{Now: days})
	require.Equal(t, []Mark{{ID: unread.ID, UpTo: 10_000}}, tally.Marks())
	tally.Closed()
	got := map[string]*Bucket{}
	tally.Add(Round{Now: days, Holdings: []Holding{unread}})
	tally.all(got)
	require.Equal(t, int64(days-10_000), sum(got, (*Bucket).Held))
}

// An agent that was killed can't take back what it has counted beyond an end.
func TestWhatCantBeTakenBackIsNotGivenToOthers(t *testing.T) {
	got := map[string]*Bucket{}
	ended, late := holding("G", 1, 0, Open), holding("G", 2, 5_000, Open)
	tally := New("a", hour, 0, nil)
	tally.Add(Round{Now: 10_000, Holdings: []Holding{ended}})
	tally.all(got)
	tally = New("b", hour, 0, tally.Marks())
	ended.Until = 4_000
	tally.Add(Round{Now: 20_000, Holdings: []Holding{ended, late}})
	tally.all(got)
	require.Equal(t, int64(20_000), sum(got, part))
}

// Those that are found one after the other don't get again what was lost by
// rounding when others were given their parts.
func TestPartsOfThoseFoundOneAfterTheOther(t *testing.T) {
	total := func(holdings []Holding) int64 {
		tally, got := New("a", hour, 0, nil), map[string]*Bucket{}
		for i := range holdings {
			tally.Add(Round{Now: 10_000, Holdings: holdings[:i+1]})
		}
		tally.all(got)
		return sum(got, part)
	}
	with := func(h Holding, percent int) Holding { h.MPSPercent = percent; return h }
	require.Equal(t, int64(10_000), total([]Holding{
		with(holding("G", 1, 0, Open), 100), with(holding("G", 2, 0, Open), 50), with(holding("G", 3, 0, Open), 10),
	}))

	short := []Holding{with(holding("G", 1, 0, Open), 99)}
	for i := range int64(200) { // 99 % of 3 ms are 2 ms when rounded down, but of 10 s more than two thirds
		short = append(short, with(holding("G", 2, 3*i, 3*i+3), 99))
	}
	require.LessOrEqual(t, total(short), int64(10_000))
}

// A job that comes back to a GPU has two holdings, and neither replaces the
// other.
func TestAJobThatComesBack(t *testing.T) {
	tally := New("a", hour, 0, nil)
	got := map[string]*Bucket{}
	tally.Add(Round{Now: 10_000, Holdings: []Holding{holding("G", 7, 0, 4_000), holding("G", 7, 6_000, Open)}})
	tally.all(got)
	require.Len(t, got, 2)
	require.Equal(t, int64(8_000), sum(got, (*Bucket).Held))
}

// A holding that nobody tells of any more has ended, and takes up no room.
func TestAHoldingThatVanishes(t *testing.T) {
	tally := New("a", hour, 0, nil)
	tally.Add(Round{Now: 10_000, Holdings: []Holding{holding("G", 7, 0, Open)}})
	tally.Add(Round{Now: 20_000})
	closed := tally.Closed()
	require.Len(t, closed, 1)
	require.Equal(t, int64(10_000), closed[0].Held())
	require.True(t, closed[0].Ended)
	tally.Add(Round{Now: 20_001 + remembered})
	require.Empty(t, tally.Marks())
}

// One that was missing for a round and comes back is counted on from where it was,
// and what it was counted before stays.
func TestAHoldingThatVanishesAndComesBack(t *testing.T) {
	tally := New("a", hour, 0, nil)
	got := map[string]*Bucket{}
	h := []Holding{holding("G", 7, 0, Open)}
	tally.Add(Round{Now: 10_000, Holdings: h, Looks: map[string]Look{"G": lookAt(0, 10_000, 100)}})
	tally.all(got)
	tally.Add(Round{Now: 20_000})
	tally.all(got)
	tally.Add(Round{Now: 30_000, Holdings: h, Looks: map[string]Look{"G": lookAt(20_000, 30_000, 100)}})
	tally.all(got)
	require.Len(t, got, 2)
	require.Equal(t, int64(30_000), sum(got, (*Bucket).Held))
	require.Equal(t, int64(20_000), sum(got, func(b *Bucket) int64 { return *b.Busy }))
}

// A file that can't be removed tells for ever of a holding that has ended.
func TestAHoldingThatEndedLongAgoCountsOnce(t *testing.T) {
	tally := New("b", hour, 0, []Mark{{ID: holding("G", 7, 0, 0).ID, UpTo: 10_000}})
	got := map[string]*Bucket{}
	for now := int64(20_000); now < 4*remembered; now += 10_000 {
		tally.Add(Round{Now: now, Holdings: []Holding{holding("G", 7, 0, 15_000)}})
		tally.all(got)
	}
	require.Equal(t, int64(5_000), sum(got, (*Bucket).Held))
}

// After the clock was set nothing is lost and nothing counts twice.
func TestTheClockIsSet(t *testing.T) {
	tally := New("a", hour, offset, nil)
	got := map[string]*Bucket{}
	h := []Holding{holding("G", 7, 0, Open)}
	tally.Add(Round{Now: 10_000, Holdings: h, Looks: map[string]Look{"G": lookAt(0, 10_000, 0)}})
	tally.all(got)
	tally.Rebase("b", offset-2*hour)
	tally.Add(Round{Now: 20_000, Holdings: h, Looks: map[string]Look{"G": lookAt(10_000, 20_000, 0)}})
	tally.all(got)
	require.Len(t, got, 2)
	require.Equal(t, int64(20_000), sum(got, (*Bucket).Held))
	b := tally.Buckets()[0]
	require.Equal(t, fairshare.Instant(offset-2*hour), *b.IdleSince, "still since the job began")
	require.Equal(t, fairshare.Instant(offset-2*hour+10_000), b.From)
}

// world is a random history of a node and how its agents saw it.
type world struct {
	holdings []Holding // with their true ends
	visible  []int64   // when the file of each could first be read
	told     []int64   // when its end could be read
	blinks   bool      // one may be missing for a round
	calm     bool      // no agent is killed, and no clock is set
	end      int64
}

func drawWorld(t *rapid.T) world { return drawWorldOf(t, "G", "H") }

func drawWorldOf(t *rapid.T, gpus ...string) world {
	w := world{end: rapid.Int64Range(1, 400_000).Draw(t, "end")}
	for i := range rapid.IntRange(0, 12).Draw(t, "holdings") {
		from := rapid.Int64Range(0, w.end).Draw(t, "from")
		until := rapid.OneOf(rapid.Just(Open), rapid.Int64Range(from, w.end)).Draw(t, "until")
		h := holding(rapid.SampledFrom(gpus).Draw(t, "gpu"), uint32(i%5+1), from, until)
		h.Restart = uint32(i / 5)
		h.MPSPercent = rapid.SampledFrom([]int{0, 0, 0, 10, 50, 100}).Draw(t, "percent")
		w.holdings = append(w.holdings, h)
		w.visible = append(w.visible, from+rapid.SampledFrom([]int64{0, 0, 0, 1, 3000}).Draw(t, "late"))
		w.told = append(w.told, until)
	}
	return w
}

// seenAt is what an agent could read at an instant.
func (w *world) seenAt(now int64) (seen []Holding) {
	for i, h := range w.holdings {
		if w.visible[i] > now && now < w.end {
			continue
		}
		if h.From > now {
			continue
		}
		if w.told[i] > now && (h.Until > now || now < w.end) {
			h.Until = Open
		}
		seen = append(seen, h)
	}
	return seen
}

// run has agents count the history, one after the other, that are killed and
// started again and whose clocks are set at random.
func (w *world) run(t *rapid.T) (got map[string]*Bucket) {
	got = map[string]*Bucket{}
	length := rapid.SampledFrom([]int64{1000, 60_000, hour}).Draw(t, "bucket")
	off := rapid.Int64Range(0, 100*hour).Draw(t, "offset")
	tally := New("0", length, off, nil)
	last := int64(0)
	for n := 1; last < w.end; n++ {
		now := min(w.end, last+rapid.Int64Range(0, 30_000).Draw(t, "round"))
		looks := map[string]Look{}
		for _, gpu := range []string{"G", "H"} {
			if rapid.Bool().Draw(t, "looked") {
				l := lookAt(max(0, now-rapid.Int64Range(0, 20_000).Draw(t, "span")), now, rapid.Int64Range(0, 100).Draw(t, "busy"))
				power := rapid.Int64Range(0, 1_000_000).Draw(t, "power")
				l.Power, l.Memory, l.Jobs = &power, &power, map[uint32]JobLook{1: {Memory: &power}, 2: {}}
				looks[gpu] = l
			}
		}
		seen := w.seenAt(now)
		if w.blinks && now < w.end && len(seen) > 0 && rapid.IntRange(0, 4).Draw(t, "blink") == 0 {
			i := rapid.IntRange(0, len(seen)-1).Draw(t, "missing")
			seen = slices.Delete(seen, i, i+1)
		}
		tally.Add(Round{Now: now, Holdings: seen, Looks: looks})
		last = now
		tally.all(got)
		if w.calm {
			continue
		}
		switch rapid.IntRange(0, 9).Draw(t, "event") {
		case 0:
			tally = New(strconv.Itoa(n), length, off, tally.Marks())
		case 1:
			off = rapid.Int64Range(0, 100*hour).Draw(t, "offset")
			tally.Rebase(strconv.Itoa(n), off)
			tally.all(got)
		case 2:
			tally.Forget()
		}
	}
	return got
}

// Whatever happens to agents, each holding is counted to the millisecond, and
// the parts of all jobs never add up to more than the time.
func TestNothingIsLostAndNothingCountsTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.blinks = true
		w.requireCounted(t, w.run(t))
	})
}

// So it is on a GPU that many share and that is held almost always, which is when
// parts that are given twice show.
func TestNothingCountsTwiceOnACrowdedGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorldOf(t, "G")
		w.blinks = true
		base := holding("G", 9, 0, Open)
		base.MPSPercent = rapid.SampledFrom([]int{0, 60, 100}).Draw(t, "base")
		w.holdings, w.visible, w.told = append(w.holdings, base), append(w.visible, 0), append(w.told, Open)
		w.requireCounted(t, w.run(t))
	})
}

// So it is if ends are read after a look that counted beyond them. This needs an agent
// that is there all the time: what another has counted can't be taken back. And those
// who shared a GPU must all have a percentage, or none: with some of each, one that is
// found late in a moment that was taken back from another may be given what a third
// had of it.
func TestNothingCountsTwiceOfWhatIsTakenBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorldOf(t, "G")
		w.calm = true
		percents := []int{0}
		if rapid.Bool().Draw(t, "percentages") {
			percents = []int{7, 33, 50, 80, 100}
		}
		for i := range w.holdings {
			w.holdings[i].MPSPercent = rapid.SampledFrom(percents).Draw(t, "percent")
			if until := w.holdings[i].Until; until != Open {
				w.told[i] = until + rapid.Int64Range(0, 900).Draw(t, "told late")
			}
		}
		w.requireCounted(t, w.run(t))
	})
}

func (w *world) requireCounted(t *rapid.T, got map[string]*Bucket) {
	held, parts := map[string]int64{}, map[string]int64{}
	for _, b := range got {
		held[fmt.Sprintf("%s %d.%d", b.GPU, b.JobID, b.Restart)] += b.Held()
		parts[b.GPU] += b.Part
		requireValid(t, b)
	}
	for _, h := range w.holdings {
		require.Equal(t, min(h.Until, w.end)-h.From, held[fmt.Sprintf("%s %d.%d", h.GPU, h.JobID, h.Restart)], "%+v", h)
	}
	for gpu, part := range parts {
		require.LessOrEqual(t, part, w.covered(gpu))
	}
}

// With nobody late and no percentages the parts are all of the time.
func TestPartsAreAllOfTheTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for i := range w.holdings {
			w.holdings[i].MPSPercent, w.visible[i] = 0, w.holdings[i].From
		}
		parts := map[string]int64{}
		for _, b := range w.run(t) {
			parts[b.GPU] += b.Part
		}
		for _, gpu := range []string{"G", "H"} {
			require.Equal(t, w.covered(gpu), parts[gpu])
		}
	})
}

// covered is for how long anybody held a GPU.
func (w *world) covered(gpu string) (total int64) {
	var of []Holding
	for _, h := range w.holdings {
		if h.GPU == gpu {
			of = append(of, h)
		}
	}
	slices.SortFunc(of, func(a, b Holding) int { return int(a.From - b.From) })
	upTo := int64(0)
	for _, h := range of {
		until := min(h.Until, w.end)
		total += max(0, until-max(h.From, upTo))
		upTo = max(upTo, until)
	}
	return total
}

// requireValid is what Postgres insists on.
func requireValid(t require.TestingT, b *Bucket) {
	held := b.Held()
	require.GreaterOrEqual(t, b.From, b.Starts)
	require.LessOrEqual(t, b.Until, b.Ends)
	for _, of := range []struct {
		name          string
		known, amount int64
		isNil         bool
	}{
		{"busy", b.BusyKnown, value(b.Busy), b.Busy == nil},
		{"shared busy", b.SharedBusyKnown, value(b.SharedBusy), b.SharedBusy == nil},
		{"process", b.ProcessKnown, value(b.Process), b.Process == nil},
		{"memory", b.MemoryKnown, 0, b.Memory == nil || b.MemoryMax == nil},
		{"energy", b.EnergyKnown, 0, b.Energy == nil},
		{"part", held, b.Part, false},
		{"shared", held, b.Shared, false},
	} {
		require.Equal(t, of.known == 0 && of.name != "part" && of.name != "shared", of.isNil, "%s of %+v", of.name, b)
		require.LessOrEqual(t, of.amount, of.known, of.name)
		require.LessOrEqual(t, of.known, held, of.name)
		require.GreaterOrEqual(t, of.amount, int64(0), of.name)
	}
	require.LessOrEqual(t, b.SharedBusyKnown, b.Shared)
	require.LessOrEqual(t, b.SharedBusyKnown+b.BusyKnown, held)
	for _, at := range []*fairshare.Instant{b.LastBusy, b.IdleSince} {
		require.True(t, at == nil || *at <= b.Until)
	}
}

func TestUUIDsAreUUIDs(t *testing.T) {
	require.Regexp(t, "^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", UUID("x"))
	require.NotEqual(t, UUID("x"), UUID("y"))
}
