// SPDX-License-Identifier: GPL-2.0-or-later

package shares

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/explain"
	"gpubudget/fairshare"
)

// What Slurm 22.05 prints, cut short; sshare in another order.
const (
	configText = `Configuration data as of 2026-11-30T20:27:10
ClusterName             = titan
FairShareDampeningFactor = 3
PriorityDecayHalfLife   = 00:00:00
PriorityFlags           = CALCULATE_RUNNING,DEPTH_OBLIVIOUS,NO_FAIR_TREE
PriorityUsageResetPeriod = MONTHLY
PriorityType            = priority/multifactor
PriorityWeightFairShare = 4294967295
`
	treeText = `Current Association Manager state
Association Records
ClusterName=titan Account=root UserName= Partition= Priority=0 ID=1 SharesRaw/Norm/Level/Factor=1/0.00/1/0.00 UsageRaw/Norm/Efctv=32132.68/1.00/1.00 ParentAccount= Lft=1 DefAssoc=No GrpJobs=N(1)
ClusterName=titan Account=text UserName= Partition= Priority=0 ID=4 SharesRaw/Norm/Level/Factor=2147483647/0.50/2/0.00 UsageRaw/Norm/Efctv=10.00/0.00/0.00 ParentAccount=language(3) Lft=19 DefAssoc=No
ClusterName=titan Account=text UserName=ann(61000) Partition=gpu Priority=0 ID=10 SharesRaw/Norm/Level/Factor=7/0.50/2/1.00 UsageRaw/Norm/Efctv=5.25/0.00/0.00 ParentAccount= Lft=20 DefAssoc=Yes
ClusterName=titan Account=language UserName= Partition= Priority=0 ID=3 SharesRaw/Norm/Level/Factor=1/0.25/4/0.00 UsageRaw/Norm/Efctv=10.00/0.00/0.00 ParentAccount=root(1) Lft=18 DefAssoc=No
`
	shownText = `1|32132|0.000000||1.000000||
3|9|0.250000|0.999844|0.999844|inf|
4|9|0.500000|0.999844|1.000000||
10|5|0.500000|0.999689|0.999844|0.500078|0.111111
11|1|1|1|1|1|1
`
)

// slurm prints what commands printed.
func slurm(config, tree, shown string) func(context.Context, string, ...string) ([]byte, error) {
	return func(_ context.Context, name string, args ...string) ([]byte, error) {
		switch {
		case name == "sshare":
			return []byte(shown), nil
		case strings.Contains(strings.Join(args, " "), "assoc_mgr"):
			return []byte(tree), nil
		}
		return []byte(config), nil
	}
}

func TestRead(t *testing.T) {
	s, err := Read(context.Background(), slurm(configText, treeText, shownText))
	require.NoError(t, err)
	require.Equal(t, Settings{
		Cluster: "titan", Plugin: "priority/multifactor", Weight: 1<<32 - 1, Reset: "MONTHLY",
		Policy: fairshare.SlurmPolicy{DepthOblivious: true, Damping: 3},
	}, s.Settings)
	require.Len(t, s.Assocs, 4)
	var above []int
	for _, a := range s.Assocs {
		above = append(above, a.Above)
	}
	require.Equal(t, []int{-1, 0, 1, 2}, above)
	require.True(t, s.Assocs[2].ParentShares)
	require.Equal(t, explain.Assoc{
		ID: 10, Subject: explain.Subject{Account: "text", User: "ann"}, Partition: "gpu", Above: 2, Shares: 7, Usage: 5.25,
		Shown: explain.Shown{Usage: 5, SharesNorm: 0.5, UsageNorm: 0.999689, UsageEffective: 0.999844, LevelFS: 0.500078, Factor: 0.111111},
	}, s.Assocs[3])
	require.NotEqual(t, s.Assocs[2].Shown.LevelFS, s.Assocs[2].Shown.LevelFS, "not shown") //nolint:testifylint // it is no number
}

func TestUnreadable(t *testing.T) {
	change := strings.ReplaceAll
	for _, tc := range []struct{ config, tree, shown, want string }{
		{change(configText, "= 3\n", "= x\n"), treeText, shownText, `fairsharedampeningfactor is "x", no number`},
		{configText, "Association Records\n", shownText, "there is no slurmdbd, or PrivateData hides them"},
		{configText, change(treeText, "Account=root UserName=", "Account=other UserName="), shownText, "only a part of the associations"},
		{configText, change(treeText, "ParentAccount=root(1)", "ParentAccount=hidden(9)"), shownText, "only a part of the associations"},
		{configText, change(treeText, "SharesRaw/Norm/Level/Factor=7/", "SharesRaw/Norm/Level/Factor=x/"), shownText, `"x" is no number of shares`},
		{configText, change(treeText, " ID=10", " ID=x"), shownText, `"x" is no number of an association`},
		{configText, change(treeText, "=5.25/", "=x/"), shownText, `"x" is no usage`},
		{configText, change(treeText, "ParentAccount=", "Parent="), shownText, "it has no ParentAccount"},
		{configText, treeText, change(shownText, "|5|", "|"), "these are 6 fields, not 7"},
		{configText, treeText, change(shownText, "0.500078", "x"), `"x" is no number`},
	} {
		_, err := Read(context.Background(), slurm(tc.config, tc.tree, tc.shown))
		require.ErrorContains(t, err, tc.want)
	}
	_, err := Read(context.Background(), func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("away") })
	require.EqualError(t, err, "away")
}
