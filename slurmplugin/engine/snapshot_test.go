// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

func someSnapshot() *Snapshot {
	p := fairshare.Period{From: fairshare.Always, Until: fairshare.Never}
	return &Snapshot{
		Cluster: "titan", ReadAt: fairshare.At(begin), Ledger: 42, Spooled: 7, Policy: budgets.DefaultPolicy,
		MinRuntimes: map[string]time.Duration{"optics": 30 * time.Minute},
		Budget: &fairshare.Budget{
			Accounts: []fairshare.Account{{
				Name:   "physics",
				Parent: []fairshare.Step[string]{{Period: p, Value: "root"}},
				Share:  []fairshare.Step[fairshare.Share]{{Period: p, Value: fairshare.Whole}},
				Grants: []fairshare.Grant{{Period: p, Amount: -5}},
				Users:  []fairshare.Member{{User: "alice", In: []fairshare.Step[fairshare.Share]{{Period: p, Value: fairshare.EqualPart}}}},
			}},
			Capacity: []fairshare.Step[fairshare.MilliGPUs]{{Period: p, Value: 32000}},
		},
		History: usage.NewHistory(fairshare.At(begin.AddDate(0, 0, -7)), fairshare.At(begin), []fairshare.Charge{{
			Period:  fairshare.Period{From: fairshare.At(begin.Add(-time.Hour)), Until: fairshare.At(begin)},
			Account: "physics", User: "alice", Amount: 1234567890123,
		}}),
	}
}

func TestASnapshotSurvivesTheDisk(t *testing.T) {
	dir := t.TempDir()
	_, err := loadSnapshot(dir, "titan")
	require.ErrorIs(t, err, errNoSnapshot)

	s := someSnapshot()
	require.NoError(t, saveSnapshot(dir, s))
	got, err := loadSnapshot(dir, "titan")
	require.NoError(t, err)
	w := s.Lookback(s.ReadAt)
	require.Equal(t, s.History.Charges(w), got.History.Charges(w))
	got.History = s.History
	require.Equal(t, s, got)

	info, err := os.Stat(filepath.Join(dir, snapshotName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode(), "who used how much is nobody else's business")

	_, err = loadSnapshot(dir, "other")
	require.ErrorContains(t, err, `it is of cluster "titan"`)
}

// An engine that was updated while Postgres is away goes on with what the older one
// had saved.
func TestAnOlderSnapshotIsRead(t *testing.T) {
	h := &host{t: t, dir: t.TempDir(), dsn: deadDSN, cluster: "titan", now: begin}
	h.configure(deadDSN)
	s := someSnapshot()
	head := snapshotHead{
		Cluster: s.Cluster, ReadAt: s.ReadAt, Ledger: s.Ledger, Policy: s.Policy, Budget: s.Budget, Spooled: s.Spooled,
		Charges: s.History.Charges(s.Lookback(s.ReadAt)),
	}
	var body bytes.Buffer
	require.NoError(t, gob.NewEncoder(&body).Encode(head))
	sum := sha256.Sum256(body.Bytes())
	text := slices.Concat([]byte("gpubudget snapshot 1\n"), sum[:], body.Bytes())
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, snapshotName), text, 0o600))

	h.start()
	require.Equal(t, 1, h.logged("starting with the snapshot of"))
	h.pass()
	physics, ok := h.engine.ranking.Account("physics")
	require.True(t, ok)
	require.Equal(t, fairshare.GPUMillis(1234567890123), physics.Used)
	h.stop()
	got, err := loadSnapshot(h.dir, "titan")
	require.NoError(t, err)
	require.Equal(t, head.Charges, got.History.Charges(s.Lookback(s.ReadAt)))

	h.now = h.now.Add(time.Hour)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, snapshotName), []byte("gpubudget snapshot 3\nof a later release"), 0o600))
	h.start()
	require.Equal(t, 1, h.logged("it is of another format: until Postgres is read"))
	h.stop()
}

// Whatever happens to the file, it is refused or it is what was saved.
func TestADamagedSnapshotIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, saveSnapshot(dir, someSnapshot()))
	path := filepath.Join(dir, snapshotName)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		text := append([]byte(nil), whole...)
		if rapid.Bool().Draw(t, "cut short") {
			text = text[:rapid.IntRange(0, len(text)-1).Draw(t, "length")]
		} else {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		}
		require.NoError(t, os.WriteFile(path, text, 0o600))
		_, err := loadSnapshot(dir, "titan")
		require.Error(t, err)
	})
}

func TestAnEngineStartsWithADamagedSnapshot(t *testing.T) {
	h := &host{t: t, dir: t.TempDir(), dsn: deadDSN, cluster: "titan", now: begin}
	h.configure(deadDSN)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, snapshotName), []byte("gpubudget snapshot 2\nrubbish"), 0o600))
	h.start()
	require.Nil(t, h.engine.snapshot)
	require.Equal(t, 1, h.logged("it is cut short: until Postgres is read"))
	h.stop()
}

// The window's sums change no ranking, wherever it has moved to.
func TestTheWindowSumsUpWithoutChangingASum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.Custom(func(t *rapid.T) fairshare.Instant {
			return fairshare.At(begin) + fairshare.Instant(rapid.Int64Range(-10*86400, 0).Draw(t, "second"))*1000
		})
		s := someSnapshot()
		s.Policy.Lookback = time.Duration(rapid.IntRange(60, 8*86400).Draw(t, "lookback")) * time.Second
		move := at.Draw(t, "move")
		always := fairshare.Period{From: fairshare.Always, Until: fairshare.Never}
		s.Budget.Accounts = append(s.Budget.Accounts, fairshare.Account{
			Name: "lasers", Parent: []fairshare.Step[string]{
				{Period: fairshare.Period{From: fairshare.Always, Until: move}, Value: "physics"},
				{Period: fairshare.Period{From: move, Until: fairshare.Never}, Value: "root"},
			},
			Share: []fairshare.Step[fairshare.Share]{{Period: always, Value: 1000}},
		})
		var charges []fairshare.Charge
		for range rapid.IntRange(0, 50).Draw(t, "charges") {
			from := at.Draw(t, "from")
			until := min(from+fairshare.Instant(rapid.Int64Range(1, 86400).Draw(t, "length"))*1000, s.ReadAt)
			if until <= from {
				continue
			}
			c := fairshare.Charge{
				Period:  fairshare.Period{From: from, Until: until},
				Account: rapid.SampledFrom([]string{"physics", "lasers", "gone"}).Draw(t, "account"),
				User:    rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "user"),
			}
			if slices.Contains(charges, c) {
				continue // a bucket has one amount of each user
			}
			charges = append(charges, c)
		}
		for i := range charges {
			charges[i].Amount = fairshare.GPUMillis(rapid.Int64Range(1, 1e9).Draw(t, "amount"))
		}
		s.History = usage.NewHistory(s.ReadAt-20*86_400_000, s.ReadAt, charges)
		n, _ := newWindow(s, nil)
		now := s.ReadAt
		for range 4 {
			lookback := s.Lookback(now)
			want := fairshare.Rank(fairshare.Input{Budget: s.Budget, Window: lookback, Charges: charges})
			n.ranker.Begin(lookback, s.Budget.Capacity)
			n.charge(lookback)
			require.Equal(t, want, n.ranker.Rank())
			now += fairshare.Instant(rapid.Int64Range(0, 5*86400).Draw(t, "later")) * 1000
		}
	})
}
