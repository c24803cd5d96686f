// SPDX-License-Identifier: GPL-2.0-or-later

package queue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// What Slurm 22.05 printed of a small cluster: an array, het and held jobs, all
// ways to ask for GPUs, a job without an account.
const (
	jobsText = `3_1|3|N/A|gpub|PENDING|images|dee|gpu|normal|0|1|1|cpu=1,mem=1000M,node=1,billing=1,gres/gpu=4|gres:gpu:4|N/A|N/A|N/A|UNLIMITED|N/A|Resources
3_2|3|N/A|gpub|PENDING|images|dee|gpu|normal|0|1|1|cpu=1,mem=1000M,node=1,billing=1,gres/gpu=4|gres:gpu:4|N/A|N/A|N/A|UNLIMITED|N/A|Resources
12|12|N/A|gpub|PENDING|Robots|fay|gpu,short|normal|-50|2|2|cpu=2,mem=2000M,node=2,billing=2|N/A|gres:gpu:a100:3|N/A|N/A|1-02:03:04|2026-10-05T12:00:00|Priority
9+0|9|9|gpub|PENDING|video|eva|gpu|normal|0|4|1|cpu=1,mem=1000M,node=1,billing=1,gres/gpu=30,gres/gpu:a100=30|gres:gpu:30|N/A|N/A|N/A|UNLIMITED|N/A|Resources
9+1|10|9|gpub|PENDING|video|eva|gpu|normal|0|1-3|1|cpu=1,mem=1000M,node=1,billing=1|gres:gpu|N/A|N/A|N/A|UNLIMITED|N/A|Resources
4|4|N/A|gpub|PENDING||bob|gpu|normal|50|1|3|cpu=3,mem=1000M,node=1,billing=3|N/A|N/A|N/A|gres:gpu:2|30:00|N/A|a reason | with a bar
3_0|13|N/A|gpub|RUNNING|images|dee|gpu|normal|0|1|1|cpu=1,node=1,billing=1,gres/gpu=4|gres:gpu:4|N/A|N/A|N/A|UNLIMITED|N/A|None
1|1|N/A|gpub|COMPLETED|text|ann|gpu|(null)|0|2|2|cpu=2,node=2,billing=2|N/A|N/A|N/A|N/A|UNLIMITED|N/A|None
`
	factorsText = `3|gpu|84000005|0|4|0|78000001|0|0|6000000|0|
12|gpu|84000104|0|4|0|78000001|0|95|6000000|0|cpu=1,gres/gpu=3
12|short|84000105|-2|4|0|78000001|0|98|6000000|0|cpu=1,gres/gpu=3
4|gpu|58000005|0|4|0|52000001|0|0|10000000|4000000|
`
)

// slurm prints what commands printed.
func slurm(jobs, factors string) Command {
	return func(_ context.Context, name string, _ ...string) ([]byte, error) {
		if name == "squeue" {
			return []byte(jobs), nil
		}
		return []byte(factors), nil
	}
}

func TestRead(t *testing.T) {
	q, err := Read(context.Background(), slurm(jobsText, factorsText))
	require.NoError(t, err)
	require.Equal(t, "gpub", q.Cluster)
	require.Len(t, q.Jobs, 8)
	require.Equal(t, Job{
		ID: "12", JobID: 12, State: "PENDING", Reason: "Priority", Account: "robots", User: "fay", Partition: "gpu,short",
		QOS: "normal", Nice: -50, GPUs: 6, GPUType: "a100", TimeLimit: 26*time.Hour + 3*time.Minute + 4*time.Second, Eligible: "2026-10-05T12:00:00",
	}, q.Jobs[2])
	require.Equal(t, []time.Duration{0, 30 * time.Minute}, []time.Duration{q.Jobs[0].TimeLimit, q.Jobs[5].TimeLimit})
	require.Equal(t, "a reason | with a bar", q.Jobs[5].Reason)
	var gpus []int64
	for _, j := range q.Jobs {
		gpus = append(gpus, j.GPUs)
	}
	require.Equal(t, []int64{4, 4, 6, 30, 1, 6, 4, 0}, gpus)

	require.Len(t, q.Factors, 4)
	require.Equal(t, Factors{
		JobID: 12, In: "short", TRESNames: []string{"cpu", "gres/gpu"},
		Factors: fairshare.Factors{Age: 4, Fairshare: 78000001, Partition: 98, QOS: 6000000, Site: -2, TRES: []float64{1, 3}, Priority: 84000105},
	}, q.Factors[2])
	for _, f := range q.Factors {
		require.EqualValues(t, f.Priority, f.Sum(), "job %d", f.JobID)
	}
}

func TestFind(t *testing.T) {
	q, err := Read(context.Background(), slurm(jobsText, factorsText))
	require.NoError(t, err)
	for name, want := range map[string]string{
		"3": "3_1 3_2 3_0", "3_0": "3_0", "13": "3_0", "9": "9+0 9+1", "10": "9+1", "9+1": "9+1", "1": "1", "2": "", "3_7": "", "99999999999": "",
	} {
		var got []string
		for _, j := range q.Find(name) {
			got = append(got, j.ID)
		}
		require.Equal(t, want, strings.Join(got, " "), name)
	}
	require.Len(t, q.FactorsOf(q.Find("12")[0]), 2)
	require.Len(t, q.FactorsOf(q.Find("3_2")[0]), 1)
	require.Empty(t, q.FactorsOf(q.Find("3_0")[0]), "it runs")
	require.Empty(t, q.FactorsOf(q.Find("9")[0]))

	for word, want := range map[string]bool{"12": true, "12_3": true, "12+1": true, "vision": false, "12/": false, "12_[1-3]": false, "12/ann": false, "": false} {
		require.Equal(t, want, IsJob(word), word)
	}
}

// squeue may list the components of a het job in any order.
func TestFindComponentsInOrder(t *testing.T) {
	lines := strings.SplitAfter(jobsText, "\n")
	lines[3], lines[4] = lines[4], lines[3]
	q, err := Read(context.Background(), slurm(strings.Join(lines, ""), factorsText))
	require.NoError(t, err)
	require.Equal(t, "9+1", q.Jobs[3].ID)
	require.Equal(t, "9+0", q.Find("9")[0].ID)
}

func TestUnreadable(t *testing.T) {
	for _, tc := range []struct{ jobs, factors, want string }{
		{"1|2|3\n", "", `squeue printed "1|2|3": these are 3 fields, not 20`},
		{strings.Replace(jobsText, "|12|", "|x|", 1), "", `"x" is no number`},
		{jobsText, "3|gpu|84000005\n", `sprio printed "3|gpu|84000005": these are 3 fields, not 12`},
		{jobsText, strings.Replace(factorsText, "84000005", "-1", 1), `"-1" is no number`},
	} {
		_, err := Read(context.Background(), slurm(tc.jobs, tc.factors))
		require.ErrorContains(t, err, tc.want)
	}
	_, err := Read(context.Background(), func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("away") })
	require.EqualError(t, err, "away")
	q, err := Read(context.Background(), slurm("", ""))
	require.NoError(t, err)
	require.Empty(t, q.Jobs)
}

func TestGPUsOfAList(t *testing.T) {
	for text, want := range map[string]int64{
		"": -1, "cpu=3": -1, "gres/gpu=4": 4, "gres:gpu:4": 4, "gres:gpu": 1, "gres:gpu:a100": 1, "gres:gpu:a100:2": 2, "gres/gpu:a100=2": 2,
		"gres/gpu=3,gres/gpu:a100=2,gres/gpu:v100=1": 3, "gres:gpu:a100:2,gres:gpu:v100:1": 3, "gres/gpumem=100": -1, "gres/gpu:4": 4,
		"cpu=1,gres/gpu=0": 0,
	} {
		const nothing = -1
		require.Equal(t, want, gpus(text, gpuList{{gpus: nothing}}), text)
	}
}

// The types are those that the plugin has of the same request.
func TestTypesThatAreAskedFor(t *testing.T) {
	for _, tt := range []struct {
		added, perJob, perNode, perTask string
		gpus                            int64
		types                           string
	}{
		{"", "gres:gpu:4", "", "", 4, ""},
		{"gres/gpu=4", "gres:gpu:A100:4", "", "", 4, "a100"},
		{"", "", "gres:gpu:a100", "", 2, "a100"},
		{"gres/gpu=6,gres/gpu:a100=6", "", "gres:gpu:a100:3", "", 6, "a100"},
		{"gres/gpu=3", "gres:gpu:a100:2,gres:gpu:h100:1", "", "", 3, "a100:2,h100:1"},
		{"gres/gpu=8", "gres:gpu:a100:4", "", "gres:gpu:a100:2", 8, "a100"},
		{"gres/gpu=2", "gres:gpu:a100_1g.10gb:2", "", "", 2, "a100_1g.10gb"},
		{"gres/gpu=5", "gres:gpu:a100:4", "", "", 5, ""}, // squeue doesn't show what for
		{"cpu=1", "", "", "", 0, ""},
	} {
		line := "12|12|N/A|gpub|PENDING|a|u|gpu|normal|0|2|4|" + tt.added + "|" + tt.perJob + "|" + tt.perNode + "|N/A|" + tt.perTask + "|UNLIMITED|N/A|Priority\n"
		q, err := Read(t.Context(), slurm(line, ""))
		require.NoError(t, err)
		require.Equal(t, tt.gpus, q.Jobs[0].GPUs, line)
		require.Equal(t, tt.types, q.Jobs[0].GPUType, line)
	}
}
