// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// soakLag is how old the ranking may be that an eviction went by, and what it
	// knew: the agents, the store and the pass take their time.
	soakLag = 5 * time.Second
	// soakSeen is the age from which a run is known to the plugin, whatever the machine is at.
	soakSeen = 10 * time.Second
	// soakAhead is what a run is counted in advance, GPU by GPU, with a lookback of a week.
	soakAhead = 10 * time.Minute
	// soakMargin and soakPerGPU, soakPerDay are the policy's defaults.
	soakMargin, soakPerGPU, soakPerDay = 0.1, 2, 4
)

// soakRun is a run by Slurm's accounting; end is zero while it lasts.
type soakRun struct {
	soakJob
	id          uint32
	het         uint32 // of a component: the het job
	array       bool   // a task of one
	reservation string
	state       string
	nodes       []string // each stands for as many GPUs; of a het job one may be there twice
	start, end  time.Time
	suspended   time.Duration
	free        int     // GPUs of a het job's unallocated components
	least       float64 // GPU seconds that a het job's smallest component is protected for; 0 of others
}

func (r *soakRun) String() string {
	return fmt.Sprintf("job %d of %s (%s to %s)", r.id, r.account, r.start.Format(time.TimeOnly), r.end.Format(time.TimeOnly))
}

func (r *soakRun) evicted() bool { return r.state == "PREEMPTED" }

// holds tells whether the run is there at an instant.
func (r *soakRun) holds(at time.Time) bool {
	return !r.start.After(at) && (r.end.IsZero() || r.end.After(at))
}

// on is how many GPUs it has on a node; all soak jobs are spread evenly.
func (r *soakRun) on(node string) (gpus int) {
	for _, n := range r.nodes {
		if n == node {
			gpus += r.gpus / len(r.nodes)
		}
	}
	return gpus
}

// charged is how many GPUs it is charged for.
func (r *soakRun) charged() float64 { return float64(r.gpus - r.free) }

// promised is the least that it may have been counted for as a request: the components
// of a het job ask one by one.
func (r *soakRun) promised() float64 {
	if r.het != 0 {
		return r.least
	}
	return float64(r.gpus) * r.min.Seconds()
}

// soakJudge finds in runs where the rules of the contract were broken.
type soakJudge struct {
	runs   []soakRun          // the oldest first
	shares map[string]float64 // of the accounts
	until  time.Time          // when the records were read

	elsewhere []string // GPUs of allocated jobs that another took than who may have asked for them, who ran elsewhere
}

// table is what it judges by, for who wants to know.
func (j *soakJudge) table() string {
	var text strings.Builder
	for i := range j.runs {
		r := &j.runs[i]
		fmt.Fprintf(&text, "%v %s on %v: %d GPUs, minimum %v, nice %d\n", r, r.state, r.nodes, r.gpus, r.min, r.nice)
	}
	return text.String()
}

func (j *soakJudge) broken() []string {
	found := append(j.parts(), j.limits()...)
	found = append(found, j.madeWay(true)...)
	found = append(found, j.madeWay(false)...)
	return append(found, j.spared()...)
}

// parts puts the runs of het jobs in the place of those of their components, and
// finds where not all of these made way. The first runs of all components are one, the
// second ones, and so on.
func (j *soakJudge) parts() (found []string) {
	type turn struct {
		het   uint32
		count int
	}
	counts, places := make(map[uint32]int), make(map[turn]int)
	var runs []soakRun
	for _, r := range j.runs {
		if r.het == 0 {
			runs = append(runs, r)
			continue
		}
		r.least = float64(r.gpus) * r.min.Seconds()
		if !r.allocated() {
			r.free = r.gpus
		}
		at := turn{r.het, counts[r.id]}
		counts[r.id]++
		place, known := places[at]
		if !known {
			places[at] = len(runs)
			runs = append(runs, r)
			continue
		}
		whole := &runs[place]
		if whole.evicted() != r.evicted() && j.until.Sub(r.start) >= slack {
			found = append(found, fmt.Sprintf("het: of job %d one component is %s and another %s", r.het, whole.state, r.state))
		}
		whole.join(&r)
	}
	j.runs = runs
	return found
}

// join adds a component to a run of a het job: the longest protection counts.
func (r *soakRun) join(other *soakRun) {
	r.id = r.het
	r.gpus, r.free = r.gpus+other.gpus, r.free+other.free
	r.nodes = slices.Concat(r.nodes, other.nodes)
	r.min = max(r.min, other.min)
	r.least = min(r.least, other.least)
	if other.start.Before(r.start) {
		r.start = other.start
	}
	switch {
	case r.evicted() && !other.evicted(): // it is that one that is looked at
	case other.evicted() && !r.evicted():
		r.state, r.end = other.state, other.end
	case r.end.IsZero() || other.end.IsZero():
		r.end = time.Time{}
	case other.end.After(r.end):
		r.end = other.end
	}
}

// limits are R2, and R7 for one job.
func (j *soakJudge) limits() (found []string) {
	last, times := make(map[uint32]time.Time), make(map[uint32]int)
	for i := range j.runs {
		r := &j.runs[i]
		if !r.evicted() || !r.allocated() {
			continue
		}
		// Slurm's accounting has whole seconds: a run that began at .9 may have
		// lasted a second less by it.
		if r.end.Sub(r.start)-r.suspended < r.min-time.Second {
			found = append(found, fmt.Sprintf("R2: %v had a minimum runtime of %v", r, r.min))
		}
		if before, again := last[r.id]; again && r.end.Sub(before) < r.min {
			found = append(found, fmt.Sprintf("R2: %v was preempted twice within a protected window", r))
		}
		last[r.id] = r.end
		if times[r.id]++; times[r.id] > soakPerDay {
			found = append(found, fmt.Sprintf("R7: %v was preempted for the %dth time", r, times[r.id]))
		}
	}
	return found
}

// madeWay finds for each GPU of those that made way a run that may have asked for
// it, and none for which more made way than may. Which of several that began there
// and then it was, accounting doesn't say: any way to assign them will do.
func (j *soakJudge) madeWay(allocated bool) (found []string) {
	m := takers{room: make(map[int]int), of: make(map[int][]int)}
	for i := range j.runs {
		m.room[i] = soakPerGPU * j.runs[i].gpus
	}
	for i := range j.runs {
		v := &j.runs[i]
		if !v.evicted() || v.allocated() != allocated || j.until.Sub(v.end) < slack {
			continue // who is to run for it may not be there yet
		}
		for range v.gpus {
			m.may = append(m.may, j.mayTake(v, v.nodes))
			if m.place(len(m.may)-1, make(map[int]bool)) {
				continue
			}
			m.may[len(m.may)-1] = j.mayTake(v, nil)
			if !j.taken(v) || !m.place(len(m.may)-1, make(map[int]bool)) {
				found = append(found, j.wrong(v))
				break
			}
			j.elsewhere = append(j.elsewhere, j.wrong(v))
		}
	}
	return found
}

// began are the runs that began soon after one on any of these nodes, or on any there is.
func (j *soakJudge) began(v *soakRun, nodes []string) (found []int) {
	for i := range j.runs {
		r := &j.runs[i]
		after := r.start.Sub(v.end)
		there := nodes == nil || slices.ContainsFunc(r.nodes, func(n string) bool { return slices.Contains(nodes, n) })
		if after >= 0 && after <= slack && there {
			found = append(found, i)
		}
	}
	return found
}

// mayTake are those of them to which it had to yield.
func (j *soakJudge) mayTake(v *soakRun, nodes []string) []int {
	return slices.DeleteFunc(j.began(v, nodes), func(i int) bool { return j.refuses(v, &j.runs[i]) != "" })
}

// taken tells whether an allocated run began where an allocated one made way: not
// always does who asked for it get there first.
func (j *soakJudge) taken(v *soakRun) bool {
	return v.allocated() && slices.ContainsFunc(j.began(v, v.nodes), func(i int) bool { return j.runs[i].allocated() })
}

// refuses is the rule by which a run doesn't yield to another, if there is one.
func (j *soakJudge) refuses(v, r *soakRun) string {
	switch {
	case v.reservation != "" && r.reservation != v.reservation:
		return "reservation"
	case !r.allocated():
		return "R5"
	case !v.allocated():
		return "" // R1
	case r.account == v.account && r.nice >= v.nice:
		return "R4"
	case r.account != v.account && !j.behind(r, v):
		return "R3"
	}
	return ""
}

// wrong says why nobody may have taken what a run gave up.
func (j *soakJudge) wrong(v *soakRun) string {
	began := j.began(v, v.nodes)
	if len(began) == 0 {
		return fmt.Sprintf("%v made way for nobody", v)
	}
	rules := make(map[string]bool)
	var rivals []string
	for _, i := range began {
		rule := j.refuses(v, &j.runs[i])
		switch {
		case rule == "" && v.allocated():
			rule = "R7" // more than it may evict
		case rule == "":
			rule = "R6" // more than it needs
		}
		rules[rule] = true
		rivals = append(rivals, rule+" of "+j.runs[i].String())
	}
	order := []string{"R7", "R6", "R3", "R4", "R5", "reservation"} // who might have been it goes first
	rule := order[slices.IndexFunc(order, func(rule string) bool { return rules[rule] })]
	return fmt.Sprintf("%s: %v made way: %s", rule, v, strings.Join(rivals, ", "))
}

// behind is R3: it goes by what was known when one made way, so it lets pass what
// any ranking of the last seconds can have allowed.
func (j *soakJudge) behind(r, v *soakRun) bool {
	least, _ := j.counted(r.account, v.end)
	_, most := j.counted(v.account, v.end)
	mine := least + r.promised()
	theirs := most - v.charged()*soakAhead.Seconds()
	return j.shares[r.account]*theirs > (1+soakMargin)*j.shares[v.account]*mine
}

// counted are the least and the most GPU seconds that an account is ranked by at an
// instant: what it was charged, and what is counted in advance for what runs.
func (j *soakJudge) counted(account string, at time.Time) (least, most float64) {
	var before, now float64
	for i := range j.runs {
		if r := &j.runs[i]; r.account == account && r.allocated() {
			before += r.charged() * max(r.lasted(at.Add(-soakLag))-r.suspended, 0).Seconds()
			now += r.charged() * r.lasted(at.Add(time.Second)).Seconds()
		}
	}
	few, many := j.running(account, at)
	for t := at.Add(-soakLag); !t.After(at.Add(time.Second)); t = t.Add(time.Second) {
		surely, maybe := j.running(account, t)
		few, many = min(few, surely), max(many, maybe)
	}
	ahead := soakAhead.Seconds()
	return before + ahead*float64(few), now + ahead*float64(many)
}

func (r *soakRun) lasted(at time.Time) time.Duration {
	if !r.end.IsZero() && r.end.Before(at) {
		at = r.end
	}
	return max(at.Sub(r.start), 0)
}

// running is how many GPUs an account has by allocated runs, those that begin or end
// in that second, or were suspended at some time, left out or counted in.
func (j *soakJudge) running(account string, at time.Time) (surely, maybe int) {
	for i := range j.runs {
		r := &j.runs[i]
		if r.account != account || !r.allocated() || r.start.After(at) || !r.end.IsZero() && r.end.Before(at) {
			continue
		}
		maybe += r.gpus - r.free
		if r.start.Before(at) && !r.end.Equal(at) && r.suspended == 0 {
			surely += r.gpus - r.free
		}
	}
	return surely, maybe
}

// spared is R6: on each of its nodes an allocated run that made way had beside it
// unallocated ones that stayed, and would have done instead.
func (j *soakJudge) spared() (found []string) {
	for i := range j.runs {
		v := &j.runs[i]
		if !v.evicted() || !v.allocated() || j.until.Sub(v.end) < soakLag {
			continue
		}
		if !slices.ContainsFunc(v.nodes, func(n string) bool { return j.stayed(n, v) < v.on(n) }) {
			found = append(found, fmt.Sprintf("R6: %v made way while unallocated jobs stayed on %s", v, strings.Join(v.nodes, ",")))
		}
	}
	return found
}

// stayed is how many GPUs of a node unallocated runs have that were known as another
// made way, and go on. For whom that was, they must have had to yield as well: who is
// in a reservation doesn't to all.
func (j *soakJudge) stayed(node string, v *soakRun) (gpus int) {
	for i := range j.runs {
		u := &j.runs[i]
		if u.allocated() || u.reservation != "" && u.reservation != v.reservation {
			continue
		}
		if u.holds(v.end.Add(-soakSeen)) && u.holds(v.end.Add(soakLag)) {
			gpus += u.on(node)
		}
	}
	return gpus
}

// takers assigns GPUs to those that may have taken them.
type takers struct {
	may  [][]int       // by GPU
	room map[int]int   // how many each may take
	of   map[int][]int // GPUs of each
}

// place finds one for a GPU, by moving others if it has to.
func (m *takers) place(gpu int, asked map[int]bool) bool {
	for _, taker := range m.may[gpu] {
		if asked[taker] {
			continue
		}
		asked[taker] = true
		if len(m.of[taker]) < m.room[taker] {
			m.of[taker] = append(m.of[taker], gpu)
			return true
		}
		for i, other := range m.of[taker] {
			if m.place(other, asked) {
				m.of[taker][i] = gpu
				return true
			}
		}
	}
	return false
}

// Each rule that the soak is judged by can be broken, and is found to be.
func TestSoakJudge(t *testing.T) {
	epoch := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	// run is one of a GPU on n1 with a minimum runtime of 10 seconds, of seconds start to end.
	run := func(id uint32, account string, start, end int, change ...func(*soakRun)) soakRun {
		r := soakRun{id: id, soakJob: soakJob{account: account, gpus: 1, min: 10 * time.Second}, state: "COMPLETED", nodes: []string{"n1"}, start: second(start)}
		if end > 0 {
			r.end = second(end)
		}
		for _, f := range change {
			f(&r)
		}
		return r
	}
	gone := func(r *soakRun) { r.state = "PREEMPTED" }
	free := func(r *soakRun) { r.min = 0 }
	nice := func(r *soakRun) { r.nice = 100 }
	long := func(r *soakRun) { r.min = time.Minute }
	wide := func(r *soakRun) { r.gpus, r.nodes = 2, []string{"n1", "n2"} }
	away := func(r *soakRun) { r.nodes = []string{"n2"} }
	kept := func(r *soakRun) { r.reservation = "kept" }
	paused := func(r *soakRun) { r.suspended = 8 * time.Second }
	// component is one of het job 7.
	component := func(r *soakRun) { r.het = 7 }
	short := func(r *soakRun) { r.min = time.Second }
	// Of equal shares, tin has three GPUs and gold none; job 1 of tin makes way at 30.
	held := []soakRun{run(11, "tin", 0, 0), run(12, "tin", 0, 0)}
	victim, taker := run(1, "tin", 0, 30, gone), run(2, "gold", 32, 0)
	tests := []struct {
		name string
		runs []soakRun
		want string // how what is found begins; nothing is broken without
	}{
		{"to who is behind", []soakRun{victim, taker}, ""},
		{"two GPUs for one", []soakRun{run(1, "tin", 0, 30, gone, wide), taker}, ""},
		{"to a lower nice", []soakRun{run(1, "tin", 0, 30, gone, nice), run(2, "tin", 32, 0)}, ""},
		{"unallocated for allocated", []soakRun{run(1, "tin", 0, 5, gone, free), run(2, "tin", 7, 0)}, ""},
		{"to who begins in the same second", []soakRun{run(21, "gold", 0, 0), run(5, "tin", 0, 0), run(6, "tin", 0, 0), victim, run(2, "gold", 30, 0)}, ""},
		{"nobody runs for it yet", []soakRun{run(1, "tin", 0, 95, gone)}, ""},
		{
			"both have one each, if the first takes the second's",
			[]soakRun{run(1, "tin", 0, 30, gone, wide), run(3, "tin", 0, 30, gone), run(4, "tin", 0, 30, gone), taker, run(5, "gold", 32, 0, away)}, "",
		},
		{
			"to who runs elsewhere, as another was there first",
			[]soakRun{run(1, "tin", 0, 30, gone, nice), run(2, "tin", 31, 0, nice), run(3, "tin", 35, 0, away)}, "",
		},
		{"within its minimum runtime", []soakRun{run(1, "tin", 0, 30, gone, long), taker}, "R2: job 1"},
		{
			"twice within a window",
			[]soakRun{victim, run(1, "tin", 30, 39, gone), taker, run(3, "gold", 40, 0)}, "R2: job 1",
		},
		{
			"too often",
			[]soakRun{
				victim, run(1, "tin", 31, 42, gone), run(1, "tin", 43, 54, gone), run(1, "tin", 55, 66, gone), run(1, "tin", 67, 78, gone),
				taker, run(3, "gold", 43, 44), run(4, "gold", 55, 56), run(5, "gold", 67, 68), run(6, "gold", 79, 80),
			}, "R7: job 1",
		},
		{"three GPUs for one", []soakRun{victim, run(3, "tin", 0, 30, gone), run(4, "tin", 0, 30, gone), taker}, "R7: job 4"},
		{"for nobody", []soakRun{victim}, "job 1 of tin"},
		{"for who runs elsewhere", []soakRun{victim, run(2, "gold", 32, 0, away)}, "job 1 of tin"},
		{"for who came too late", []soakRun{victim, run(2, "gold", 50, 0)}, "job 1 of tin"},
		{
			"for who is ahead",
			[]soakRun{run(21, "gold", 0, 0), run(22, "gold", 0, 0), run(23, "gold", 0, 0), victim, taker}, "R3: job 1",
		},
		{"for who is no further behind than the margin", []soakRun{run(21, "gold", 0, 0), run(22, "gold", 0, 0), victim, taker}, "R3: job 1"},
		{"for the same account", []soakRun{victim, run(2, "tin", 32, 0)}, "R4: job 1"},
		{"for a higher nice", []soakRun{victim, run(2, "tin", 32, 0, nice)}, "R4: job 1"},
		{"for an unallocated one", []soakRun{victim, run(2, "gold", 32, 0, free)}, "R5: job 1"},
		{"unallocated for unallocated", []soakRun{run(1, "tin", 0, 30, gone, free), run(2, "gold", 32, 0, free)}, "R5: job 1"},
		{
			"three unallocated for one GPU",
			[]soakRun{run(1, "tin", 0, 30, gone, free), run(3, "tin", 0, 30, gone, free), run(4, "tin", 0, 30, gone, free), taker}, "R6: job 4",
		},
		{"beside an unallocated one", []soakRun{run(5, "gold", 10, 50, free), victim, taker}, "R6: job 1"},
		{"beside one that is too young", []soakRun{run(5, "gold", 25, 50, free), victim, taker}, ""},
		{"beside one that goes, too", []soakRun{run(5, "gold", 10, 33, free), victim, taker}, ""},
		{"a het job as a whole", []soakRun{run(7, "tin", 0, 30, gone, component), run(8, "tin", 0, 30, gone, component, away), taker}, ""},
		{"a het job in part", []soakRun{run(7, "tin", 0, 30, gone, component), run(8, "tin", 0, 0, component, away), taker}, "het: of job 7"},
		{
			"a het job while its longest protection lasts",
			[]soakRun{run(7, "tin", 0, 30, gone, component, short), run(8, "tin", 0, 30, gone, component, away, long), taker}, "R2: job 7",
		},
		{
			"a het job that is unallocated in part, while the other is protected",
			[]soakRun{run(7, "tin", 0, 30, gone, component, free), run(8, "tin", 0, 30, gone, component, away, long), taker}, "R2: job 7",
		},
		{
			"for who is behind, as only one component of its het job is charged",
			[]soakRun{victim, run(21, "gold", 0, 0), run(7, "gold", 32, 0, component, free), run(8, "gold", 32, 0, component, away)}, "",
		},
		{
			"a het job twice, each time after its window",
			[]soakRun{
				run(7, "tin", 0, 15, gone, component), run(8, "tin", 0, 15, gone, component, away), run(2, "gold", 16, 17),
				run(7, "tin", 17, 30, gone, component), run(8, "tin", 17, 30, gone, component, away), run(3, "gold", 32, 0),
			}, "",
		},
		{
			"three GPUs of het jobs for one",
			[]soakRun{run(7, "tin", 0, 30, gone, component, wide), run(8, "tin", 0, 30, gone, component, away), taker}, "R7: job 7",
		},
		{"for a het job that is small in part", []soakRun{victim, run(7, "gold", 32, 0, component), run(8, "gold", 32, 0, component, away, long)}, ""},
		{"suspended for most of its time", []soakRun{run(1, "tin", 14, 30, gone, paused), taker}, "R2: job 1"},
		{"suspended, and protected for long enough", []soakRun{run(1, "tin", 12, 30, gone, paused), taker}, ""},
		{"within a reservation", []soakRun{run(1, "tin", 0, 30, gone, kept), run(2, "gold", 32, 0, kept)}, ""},
		{"for who is in a reservation", []soakRun{victim, run(2, "gold", 32, 0, kept)}, ""},
		{"out of a reservation", []soakRun{run(1, "tin", 0, 30, gone, kept), taker}, "reservation: job 1"},
		{"unallocated out of a reservation", []soakRun{run(1, "tin", 0, 30, gone, free, kept), taker}, "reservation: job 1"},
		{"beside an unallocated one of a reservation", []soakRun{run(5, "gold", 10, 50, free, kept), victim, taker}, ""},
		{"beside an unallocated one of the same reservation", []soakRun{run(5, "gold", 10, 50, free, kept), run(1, "tin", 0, 30, gone, kept), run(2, "gold", 32, 0, kept)}, "R6: job 1"},
		{"beside one that isn't enough", []soakRun{run(5, "gold", 10, 50, free), run(1, "tin", 0, 30, gone, wide), taker}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			judge := soakJudge{runs: append(slices.Clone(held), test.runs...), shares: map[string]float64{"tin": 1, "gold": 1}, until: second(100)}
			slices.SortStableFunc(judge.runs, func(x, y soakRun) int { return x.start.Compare(y.start) })
			found := judge.broken()
			if test.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.True(t, strings.HasPrefix(found[0], test.want), found[0])
		})
	}
}
