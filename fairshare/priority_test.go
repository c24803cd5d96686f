// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

var cluster = fairshare.ClusterSize{Nodes: 100, CPUs: 6400}

func TestAgeFactor(t *testing.T) {
	tests := []struct {
		age    int64
		maxAge uint32
		want   float64
	}{
		{0, 100, 0}, {-5, 100, 0}, {25, 100, 0.25}, {100, 100, 1}, {1 << 40, 100, 1},
		{0, 0, 1}, {1, 0, 1}, {-1, 0, 0}, {math.MaxInt64, math.MaxUint32, 1}, {math.MinInt64, 100, 0},
	}
	for _, test := range tests {
		require.Equal(t, test.want, fairshare.AgeFactor(test.age, test.maxAge), "%d of %d", test.age, test.maxAge)
	}
}

func TestSizeFactor(t *testing.T) {
	const relative = fairshare.SizeRelative
	tests := []struct {
		name string
		job  fairshare.Job
		w    fairshare.Weights
		size fairshare.ClusterSize
		want float64
	}{
		{"large: mean of nodes and CPUs", fairshare.Job{MinNodes: 10, CPUs: 1280}, fairshare.Weights{}, cluster, (0.1 + 0.2) / 2},
		{"large: nodes alone", fairshare.Job{MinNodes: 10}, fairshare.Weights{}, cluster, 0.1},
		{"small", fairshare.Job{MinNodes: 10, CPUs: 1280}, fairshare.Weights{FavorSmall: true}, cluster, 1 - 0.15},
		{"small: nodes alone", fairshare.Job{MinNodes: 10}, fairshare.Weights{FavorSmall: true}, cluster, 0.9},
		{"more than there is", fairshare.Job{MinNodes: 300, CPUs: 64000}, fairshare.Weights{}, cluster, 1},
		{"small: more than there is", fairshare.Job{MinNodes: 300, CPUs: 64000}, fairshare.Weights{FavorSmall: true}, cluster, 0},
		{"relative: CPUs a minute", fairshare.Job{MinNodes: 1, CPUs: 640, TimeLimit: 10}, fairshare.Weights{Flags: relative}, cluster, 0.01},
		{"relative: CPUs of the nodes", fairshare.Job{MinNodes: 20, CPUs: 20, TimeLimit: 4}, fairshare.Weights{Flags: relative}, cluster, 0.05},
		{"relative, small", fairshare.Job{MinNodes: 20, TimeLimit: 4}, fairshare.Weights{Flags: relative, FavorSmall: true}, cluster, 0.95},
		{"relative: a limit of 0 is a minute", fairshare.Job{CPUs: 640}, fairshare.Weights{Flags: relative}, cluster, 0.1},
		{"no cluster", fairshare.Job{MinNodes: 20, CPUs: 20}, fairshare.Weights{}, fairshare.ClusterSize{}, 0},
		{"no cluster, relative", fairshare.Job{MinNodes: 20, CPUs: 20}, fairshare.Weights{Flags: relative}, fairshare.ClusterSize{}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.InDelta(t, test.want, fairshare.SizeFactor(&test.job, &test.w, test.size), 1e-12)
		})
	}
	unlimited := fairshare.SizeFactor(&fairshare.Job{MinNodes: 100, TimeLimit: fairshare.Unlimited}, &fairshare.Weights{Flags: relative}, cluster)
	require.InDelta(t, 0, unlimited, 1e-9)
}

// twoUsers is a ranking in which u has factor 1 and v 1/2.
func twoUsers() *fairshare.Ranking {
	w := hours(0, 10)
	b := budget(10, account("a", "root", 100, equal("u"), equal("v")), account("vacant", "root", 0))
	return fairshare.Rank(fairshare.Input{Budget: b, Window: w, Charges: []fairshare.Charge{charge("a", "v", w, 1)}})
}

// The columns are added up in Slurm's order: cut to a whole number, the last bit
// of a sum can make a difference of one.
func TestAdditiveAddsUpAsSlurmDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weight := rapid.Uint32Range(0, 1_000_000)
		factor := rapid.Float64Range(0, 1)
		w := fairshare.Weights{
			Age: weight.Draw(t, "age"), Assoc: weight.Draw(t, "assoc"), Fairshare: weight.Draw(t, "fairshare"),
			JobSize: weight.Draw(t, "size"), Partition: weight.Draw(t, "partition"), QOS: weight.Draw(t, "QOS"),
			TRES: []float64{float64(weight.Draw(t, "TRES")), float64(weight.Draw(t, "TRES"))}, MaxAge: 1000,
		}
		job := fairshare.Job{
			Age: rapid.Int64Range(0, 2000).Draw(t, "seconds"), MinNodes: 1, CPUs: rapid.Uint32Range(1, 6400).Draw(t, "CPUs"),
			AssocFactor: factor.Draw(t, "assoc"), QOSFactor: factor.Draw(t, "QOS"), PartitionFactor: factor.Draw(t, "partition"),
			Fairshare: factor.Draw(t, "fairshare"), TRES: []float64{factor.Draw(t, "TRES"), factor.Draw(t, "TRES")},
			Site: rapid.Int64Range(-1000, 1000).Draw(t, "site"), Nice: rapid.Int64Range(-1000, 1000).Draw(t, "nice"),
		}
		job.Parts = []fairshare.JobPart{{Factor: factor.Draw(t, "part"), TRES: []float64{factor.Draw(t, "TRES"), factor.Draw(t, "TRES")}}}
		var f fairshare.Factors
		fairshare.NewAdditive(nil, w, cluster).Priority(&job, &f)

		tres := f.TRES[0] + f.TRES[1]
		sum := f.Age + f.Assoc + f.Fairshare + f.JobSize + f.Partition + f.QOS + tres + float64(job.Site) - float64(job.Nice)
		require.Equal(t, uint32(max(sum, 1)), f.Priority)
		part := &job.Parts[0]
		tres = w.TRES[0]*part.TRES[0] + w.TRES[1]*part.TRES[1]
		sum = float64(w.Partition)*part.Factor +
			(f.Age + f.Assoc + f.Fairshare + f.JobSize + f.QOS + tres + float64(job.Site) - float64(job.Nice))
		require.Equal(t, uint32(max(sum, 1)), part.Priority)
		require.InDelta(t, float64(w.Fairshare)*job.Fairshare, f.Fairshare, 0)
	})
}

func TestAdditive(t *testing.T) {
	r := twoUsers()
	w := fairshare.Weights{
		Age: 1000, Assoc: 200, Fairshare: 30_000, JobSize: 100, Partition: 50, QOS: 7000,
		TRES: []float64{10, 0, 1000}, MaxAge: 1000,
	}
	job := fairshare.Job{
		Account: "a", User: "v", Age: 250, CPUs: 1280, MinNodes: 10, Site: 11, Nice: 5,
		AssocFactor: 0.5, PartitionFactor: 0.2, QOSFactor: 0.1, TRES: []float64{0.25, 1, 0.5},
		Parts: []fairshare.JobPart{{Factor: 1, TRES: []float64{0, 0, 1}}, {Factor: 0}},
	}
	var f fairshare.Factors
	fairshare.NewAdditive(r, w, cluster).Priority(&job, &f)
	require.InDelta(t, 1000*0.25, f.Age, 1e-9)
	require.InDelta(t, 200*0.5, f.Assoc, 1e-9)
	require.InDelta(t, 1_000_000+30_000*2.0/3, f.Fairshare, 1e-9) // 3 with the vacant account
	require.InDelta(t, 100*0.15, f.JobSize, 1e-9)
	require.InDelta(t, 50*0.2, f.Partition, 1e-9)
	require.InDelta(t, 7000*0.1, f.QOS, 1e-9)
	require.Equal(t, []float64{2.5, 0, 500}, f.TRES)
	require.EqualValues(t, 11, f.Site)
	require.EqualValues(t, 5, f.Nice)
	const common = 1_000_000 + 250 + 100 + 20_000 + 15 + 700 + 11 - 5
	require.EqualValues(t, common+10+502, f.Priority)
	require.EqualValues(t, common+50+1000, job.Parts[0].Priority)
	require.EqualValues(t, common, job.Parts[1].Priority)
}

func TestAdditiveFairshare(t *testing.T) {
	p := fairshare.NewAdditive(twoUsers(), fairshare.Weights{Fairshare: 3000}, cluster)
	for name, want := range map[string]float64{
		"a/u": 1_003_000, "a/v": 1_002_000, "a/guest": 1_002_000, "root/u": 1_000_000,
		"vacant/guest": 0, "nobody/u": 0, "/u": 0, // without a budget
	} {
		account, user, _ := cutUser(name)
		var f fairshare.Factors
		p.Priority(&fairshare.Job{Account: account, User: user}, &f)
		require.InDelta(t, want, f.Fairshare, 1e-9, name)
	}
}

// As in Slurm, whose shares know nothing of unallocated jobs.
func TestAdditiveBounds(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	most := fairshare.Weights{Age: math.MaxUint32, Assoc: math.MaxUint32, Fairshare: math.MaxUint32, JobSize: math.MaxUint32, Partition: math.MaxUint32, QOS: math.MaxUint32}
	tests := []struct {
		name string
		w    fairshare.Weights
		job  fairshare.Job
		want uint32
	}{
		{"nothing", fairshare.Weights{}, fairshare.Job{}, 1},
		{"all there is", most, fairshare.Job{Fairshare: 1, Age: 1, AssocFactor: 1, PartitionFactor: 1, QOSFactor: 1}, math.MaxUint32},
		{"exactly the most", fairshare.Weights{QOS: math.MaxUint32}, fairshare.Job{QOSFactor: 1}, math.MaxUint32},
		{"fractions are cut off", fairshare.Weights{QOS: 10}, fairshare.Job{QOSFactor: 0.99}, 9},
		{"less than one", fairshare.Weights{QOS: 1}, fairshare.Job{QOSFactor: 0.99}, 1},
		{"nice", fairshare.Weights{QOS: 100}, fairshare.Job{QOSFactor: 1, Nice: 30}, 70},
		{"nice beyond all", fairshare.Weights{QOS: 100}, fairshare.Job{QOSFactor: 1, Nice: math.MaxInt32}, 1},
		{"nice the other way", fairshare.Weights{QOS: 100}, fairshare.Job{QOSFactor: 1, Nice: math.MinInt32}, 1<<31 + 100},
		{"nice without bounds", fairshare.Weights{}, fairshare.Job{Nice: math.MinInt64}, math.MaxUint32},
		{"site", fairshare.Weights{}, fairshare.Job{Site: 77}, 77},
		{"site below", fairshare.Weights{}, fairshare.Job{Site: math.MinInt64}, 1},
		{"not a number", fairshare.Weights{QOS: 100, Partition: 10}, fairshare.Job{QOSFactor: nan, PartitionFactor: 1}, 10},
		{"infinite", fairshare.Weights{QOS: 100}, fairshare.Job{QOSFactor: inf}, math.MaxUint32},
		{"infinite both ways", fairshare.Weights{QOS: 100, Assoc: 100}, fairshare.Job{QOSFactor: inf, AssocFactor: -inf}, 1},
		{"infinite without weight", fairshare.Weights{}, fairshare.Job{QOSFactor: inf, TRES: []float64{inf}}, 1},
		{"raw factors", fairshare.Weights{QOS: 3, Flags: fairshare.NoNormalQOS}, fairshare.Job{QOSFactor: 1000}, 3000},
		{"TRES without number", fairshare.Weights{TRES: []float64{1, nan, 2}}, fairshare.Job{TRES: []float64{5, 5, nan}}, 5},
		{"fewer TRES than weights", fairshare.Weights{TRES: []float64{1, 2, 3}}, fairshare.Job{TRES: []float64{4}}, 4},
		{"more TRES than weights", fairshare.Weights{TRES: []float64{1}}, fairshare.Job{TRES: []float64{4, 5}}, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var f fairshare.Factors
			test.job.Parts = []fairshare.JobPart{{Factor: test.job.PartitionFactor, TRES: test.job.TRES}}
			fairshare.NewAdditive(nil, test.w, cluster).Priority(&test.job, &f)
			require.Equal(t, test.want, f.Priority)
			require.Equal(t, test.want, test.job.Parts[0].Priority)
			require.False(t, math.IsNaN(f.Sum()))
		})
	}
}

// The caller's TRES slice is used again, and cleared.
func TestFactorsAreReused(t *testing.T) {
	p := fairshare.NewAdditive(twoUsers(), fairshare.Weights{TRES: []float64{1, 1}}, cluster)
	f := fairshare.Factors{Age: 7, Nice: 7, TRES: []float64{7, 7, 7}}
	mine := f.TRES
	p.Priority(&fairshare.Job{TRES: []float64{3}}, &f)
	require.Equal(t, fairshare.Factors{TRES: []float64{3, 0}, Priority: 3}, f)
	require.Equal(t, []float64{3, 0, 7}, mine)
	require.Zero(t, testing.AllocsPerRun(10, func() { p.Priority(&fairshare.Job{Account: "a", User: "u"}, &f) }))
	fairshare.NewAdditive(twoUsers(), fairshare.Weights{}, cluster).Priority(&fairshare.Job{}, &f)
	require.Nil(t, f.TRES)
}

// The flags are passed from C as they are: bridge.h numbers them.
func TestFlagsAreThoseOfTheBridge(t *testing.T) {
	names := []string{
		"ACCRUE_ALWAYS", "CALCULATE_RUNNING", "DEPTH_OBLIVIOUS", "FAIR_TREE", "INCR_ONLY", "MAX_TRES", "MAX_TRES_GRES",
		"NO_NORMAL_ASSOC", "NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES", "SIZE_RELATIVE",
	}
	flags := []fairshare.Flags{
		fairshare.AccrueAlways, fairshare.CalculateRunning, fairshare.DepthOblivious, fairshare.FairTreeFlag, fairshare.IncrOnly,
		fairshare.MaxTRES, fairshare.MaxTRESGRES, fairshare.NoNormalAssoc, fairshare.NoNormalPart, fairshare.NoNormalQOS,
		fairshare.NoNormalTRES, fairshare.SizeRelative,
	}
	header, err := os.ReadFile("../slurmplugin/bridge.h")
	require.NoError(t, err)
	for i, name := range names {
		match := regexp.MustCompile(`GPUB_FLAG_` + name + ` = 1 << (\d+)`).FindSubmatch(header)
		require.NotNil(t, match, name)
		bit, err := strconv.Atoi(string(match[1]))
		require.NoError(t, err)
		require.EqualValues(t, 1<<bit, flags[i], name)
	}
}
