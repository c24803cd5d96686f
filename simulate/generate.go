// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"gpubudget/fairshare"
)

// Generator makes a workload up, of research teams with bursts of work: the same
// numbers make the same workload.
type Generator struct {
	Seed     uint64
	GPUs     int // of the cluster that the load is for
	Days     int
	Accounts int
	Users    int // of each account, on average
	// Load is the GPU time of all jobs as a part of what the cluster has.
	Load float64
	// Demand is how many GPUs all users together ask for at once at most, as a
	// multiple of what there is; 0 is no limit.
	Demand float64
	// Jobs is how many; 0 is as many as make the load with durations as they
	// are usual. Otherwise durations are stretched.
	Jobs int
	// LargestJob is in GPUs.
	LargestJob int
	// Debug and Unallocated are the parts of the jobs that somebody waits for,
	// and that declare a minimum runtime of 0.
	Debug, Unallocated float64
}

// DefaultGenerator is 15 teams on 1,024 GPUs for 30 days, who always want two and
// a half times what there is.
func DefaultGenerator() Generator {
	return Generator{
		Seed: 1, GPUs: 1024, Days: 30, Accounts: 15, Users: 8, Load: 2.5, Demand: 2.5,
		LargestJob: 128, Debug: 0.15, Unallocated: 0.1,
	}
}

func (g *Generator) check() error {
	for _, x := range []struct {
		what       string
		value      float64
		from, upTo float64
	}{
		{"number of GPUs", float64(g.GPUs), 1, mostGPUs},
		{"number of days", float64(g.Days), 1, 3660},
		{"number of accounts", float64(g.Accounts), 1, 10_000},
		{"number of users of each account", float64(g.Users), 1, 1000},
		{"number of jobs", float64(g.Jobs), 0, 100_000_000},
		{"load", g.Load, 1e-6, 1000},
		{"demand", g.Demand, 0, 1000},
		{"largest job", float64(g.LargestJob), 1, float64(g.GPUs)},
		{"part of debug jobs", g.Debug, 0, 1},
		{"part of unallocated jobs", g.Unallocated, 0, 1},
	} {
		if !(x.value >= x.from && x.value <= x.upTo) {
			return fmt.Errorf("generate: a %s of %s: it must be %s to %s", x.what, plain(x.value), plain(x.from), plain(x.upTo))
		}
	}
	return nil
}

func plain(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// team is an account that submits.
type team struct {
	name     string
	share    fairshare.Share
	weight   float64   // of its jobs among all
	rate     []float64 // cumulated, by hour
	users    []float64 // cumulated
	first    int32     // its users are owners first and following
	appetite float64
}

// Generate makes the workload and a budget for it.
func (g *Generator) Generate() (*Workload, *fairshare.Budget, error) {
	if err := g.check(); err != nil {
		return nil, nil, err
	}
	rng := rand.New(rand.NewPCG(g.Seed, 0x6770_7562))
	w := &Workload{
		Name: fmt.Sprintf("generated, seed %d", g.Seed), Begin: time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC),
	}
	teams := g.teams(rng, w)
	wanted := g.Load * float64(g.GPUs) * float64(g.Days) * 86_400
	var work float64
	total := teams[len(teams)-1].weight
	for enough := false; !enough; {
		t := &teams[pick(rng, total, func(i int) float64 { return teams[i].weight }, len(teams))]
		before := len(w.Jobs)
		g.burst(rng, w, t)
		for i := before; i < len(w.Jobs); i++ {
			work += float64(w.Jobs[i].GPUs) * float64(w.Jobs[i].Run)
		}
		enough = g.Jobs > 0 && len(w.Jobs) >= g.Jobs || g.Jobs == 0 && work >= wanted
	}
	if g.Jobs > 0 {
		w.Jobs = w.Jobs[:g.Jobs]
		stretch(w, wanted/work)
	}
	g.limitOutstanding(w, teams)
	w.Sort()
	return w, budgetOf(w, teams), nil
}

func (g *Generator) teams(rng *rand.Rand, w *Workload) []team {
	teams := make([]team, g.Accounts)
	sizes := make([]float64, g.Accounts)
	var sum float64
	for i := range teams {
		sizes[i] = math.Exp(0.6 * rng.NormFloat64())
		sum += sizes[i]
	}
	var weight float64
	for i := range teams {
		t := &teams[i]
		t.name = fmt.Sprintf("team%02d", i+1)
		t.share = fairshare.Share(sizes[i] / sum * float64(fairshare.Whole))
		t.appetite = math.Exp(0.4 * rng.NormFloat64())
		weight += sizes[i] / sum * t.appetite
		t.weight = weight
		t.rate = g.rate(rng)
		t.first = int32(len(w.Owners))
		var zipf float64
		for u := range 1 + rng.IntN(2*g.Users-1) {
			zipf += math.Pow(float64(u+1), -1.2)
			t.users = append(t.users, zipf)
			w.Owners = append(w.Owners, Owner{t.name, fmt.Sprintf("%s-u%02d", t.name, u+1)})
		}
	}
	return teams
}

// rate is how busy a team is, hour by hour, cumulated: more by day than by night
// and at weekends, with days of deadlines and days of quiet.
func (g *Generator) rate(rng *rand.Rand) []float64 {
	rate := make([]float64, g.Days*24)
	var sum float64
	busy, left := true, rng.ExpFloat64()*72
	for hour := range rate {
		for left <= 0 {
			busy = !busy
			left += rng.ExpFloat64() * 36
			if busy {
				left += rng.ExpFloat64() * 36
			}
		}
		left--
		level := 0.15
		if busy {
			level = 1
		}
		if h := hour % 24; h < 8 || h > 22 {
			level *= 0.4
		}
		if hour/24%7 >= 5 {
			level *= 0.5
		}
		sum += level
		rate[hour] = sum
	}
	return rate
}

// pick is an index drawn in proportion to weights given cumulated.
func pick(rng *rand.Rand, total float64, cumulated func(int) float64, n int) int {
	x := rng.Float64() * total
	low, high := 0, n-1
	for low < high {
		middle := (low + high) / 2
		if cumulated(middle) > x {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// burst adds a job, or several alike that come at once.
func (g *Generator) burst(rng *rand.Rand, w *Workload, t *team) {
	hour := pick(rng, t.rate[len(t.rate)-1], func(i int) float64 { return t.rate[i] }, len(t.rate))
	user := pick(rng, t.users[len(t.users)-1], func(i int) float64 { return t.users[i] }, len(t.users))
	j := g.job(rng)
	j.Owner = t.first + int32(user)
	j.Submit = int64(hour)*3600 + rng.Int64N(3600)
	n := 1
	if !j.Debug && j.GPUs <= 8 && rng.Float64() < 0.3 {
		n += rng.IntN(16)
	}
	for range n {
		w.Jobs = append(w.Jobs, j)
		j.Submit += rng.Int64N(5)
		j.Run = max(int64(float64(j.Run)*math.Exp(0.2*rng.NormFloat64())), 10)
		j.Run = min(j.Run, j.Limit)
	}
}

// job is a job of nobody at no time.
func (g *Generator) job(rng *rand.Rand) Job {
	if rng.Float64() < g.Debug {
		gpus := []int32{1, 1, 1, 2, 4, 8}[rng.IntN(6)]
		run := int64(30 + rng.ExpFloat64()*400)
		return Job{GPUs: min(gpus, int32(g.LargestJob)), Run: min(run, 1800), Limit: 1800, MinRuntime: 600, QOS: 100, Debug: true}
	}
	size := rng.Float64()
	gpus, median := int32(1), 3600.0
	switch {
	case size < 0.45:
	case size < 0.57:
		gpus = 2
	case size < 0.69:
		gpus = 4
	case size < 0.90:
		gpus, median = 8, 7200
	case size < 0.955:
		gpus, median = 16, 10_800
	case size < 0.98:
		gpus, median = 32, 14_400
	case size < 0.994:
		gpus, median = 64, 21_600
	default:
		gpus, median = 128, 28_800
	}
	run := min(max(median*math.Exp(1.6*rng.NormFloat64()), 30), 7*86_400)
	j := Job{GPUs: min(gpus, int32(g.LargestJob)), Run: int64(run), MinRuntime: Undeclared}
	j.Limit = InventLimit(rng, j.Run)
	if rng.Float64() < g.Unallocated {
		j.MinRuntime = 0
	}
	return j
}

// usualLimits are the time limits that people ask for.
var usualLimits = []int64{900, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800, 259_200, 604_800, 1_209_600, 2_592_000}

// InventLimit is a time limit for a job of which only the run time is known:
// people ask for more than they need, and for round numbers.
func InventLimit(rng *rand.Rand, run int64) int64 {
	wanted := int64(float64(run) * (1.1 + 2.9*rng.Float64()))
	for _, limit := range usualLimits {
		if limit >= wanted {
			return limit
		}
	}
	return wanted
}

// stretch multiplies durations.
func stretch(w *Workload, by float64) {
	for i := range w.Jobs {
		j := &w.Jobs[i]
		j.Run = max(int64(float64(j.Run)*by), 1)
		j.Limit = max(int64(float64(j.Limit)*by), j.Run)
	}
}

// limitOutstanding gives each user his part of the demand.
func (g *Generator) limitOutstanding(w *Workload, teams []team) {
	if g.Demand <= 0 {
		return
	}
	w.Outstanding = make([]int, len(w.Owners))
	total := teams[len(teams)-1].weight
	before := 0.0
	for i := range teams {
		t := &teams[i]
		part := g.Demand * float64(g.GPUs) * (t.weight - before) / total
		before = t.weight
		below := 0.0
		for u, cumulated := range t.users {
			own := part * (cumulated - below) / t.users[len(t.users)-1]
			below = cumulated
			w.Outstanding[int(t.first)+u] = max(int(own), 8)
		}
	}
}

func budgetOf(w *Workload, teams []team) *fairshare.Budget {
	b := &fairshare.Budget{}
	for i := range teams {
		t := &teams[i]
		a := fairshare.Account{Name: t.name, Parent: Always(fairshare.RootAccount), Share: Always(t.share)}
		for u := range t.users {
			a.Users = append(a.Users, fairshare.Member{User: w.Owners[int(t.first)+u].User, In: Always(fairshare.EqualPart)})
		}
		b.Accounts = append(b.Accounts, a)
	}
	slices.SortFunc(b.Accounts, func(x, y fairshare.Account) int { return cmp.Compare(x.Name, y.Name) })
	return b
}
