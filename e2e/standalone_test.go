// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
)

// Without slurmdbd Slurm knows no accounts: budgets go by what jobs name, the
// order is theirs, and what was used equals what slurmctld itself knows of the
// jobs.
func TestWithoutSlurmdbd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: []string{ann, bob, cem}, Priority: testcluster.Gpubudget,
		Accounts: []testcluster.Account{
			{Name: "hog", Share: "10%", Users: []string{cem}},
			{Name: "plain_a", Share: "40%", Users: []string{ann}},
			{Name: "plain_b", Share: "40%", Users: []string{bob}},
		},
		SlurmConf: []string{"MinJobAge=300"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.LoadBudgets(ctx, nil))

	s := newScenario(t, c, "plain")
	s.use(ann, s.a, 4, 2)
	release := s.hog()
	ofA := s.submit(ann, s.a, 1, "--gres=gpu:2")
	ofB := s.submit(bob, s.b, 2, "--gpus=3")
	s.waitOrder(ofB, ofA)
	s.requireSum(0)
	release()
	s.waitGone(ofA, ofB)

	want := fairshare.GPUMillis(3 * 1000 * s.elapsed(ofB))
	s.wait("the use of b to be recorded", func() bool { return s.used(s.b) == want })
}

// elapsed is how many seconds a job ran, by slurmctld.
func (s *scenario) elapsed(id uint32) int64 {
	s.t.Helper()
	at := map[string]time.Time{}
	for field := range strings.FieldsSeq(s.exec("root", "scontrol", "--oneliner", "show", "job", number0(id))) {
		if name, value, ok := strings.Cut(field, "="); ok && (name == "StartTime" || name == "EndTime") {
			parsed, err := time.Parse("2006-01-02T15:04:05", value)
			require.NoError(s.t, err)
			at[name] = parsed
		}
	}
	require.Len(s.t, at, 2)
	return int64(at["EndTime"].Sub(at["StartTime"]).Seconds())
}
