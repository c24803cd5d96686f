// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"gpubudget/fairshare"
)

// scenario is a tree of testdata/trees with the standings that were worked out
// by hand.
type scenario struct {
	About    string            `yaml:"about"`
	GPUs     int64             `yaml:"gpus"`
	Hours    fairshare.Instant `yaml:"hours"`
	Accounts []struct {
		Name   string            `yaml:"name"`
		Parent string            `yaml:"parent"`
		Share  float64           `yaml:"share"`  // percent
		Grants []int64           `yaml:"grants"` // GPU-hours, over the window and a while after
		Users  map[string]string `yaml:"users"`  // percent or "equal"
	} `yaml:"accounts"`
	Charges []struct {
		Account string `yaml:"account"`
		User    string `yaml:"user"`
		Hours   int64  `yaml:"hours"`
	} `yaml:"charges"`
	Want struct {
		Accounts map[string]standing `yaml:"accounts"`
		Users    map[string]standing `yaml:"users"` // by account/user
	} `yaml:"want"`
}

type standing struct {
	Entitled float64  `yaml:"entitled"` // GPU-hours
	Used     float64  `yaml:"used"`     // GPU-hours
	LevelFS  fraction `yaml:"levelfs"`
	Rank     int      `yaml:"rank"`
	Level    int      `yaml:"level"`
	Funded   bool     `yaml:"funded"`
	Factor   fraction `yaml:"factor"` // of accounts only if not 0
}

// fraction is written as 2, 2/3 or inf.
type fraction float64

func (f *fraction) UnmarshalYAML(node *yaml.Node) error {
	if node.Value == "inf" {
		*f = fraction(math.Inf(1))
		return nil
	}
	r, ok := new(big.Rat).SetString(node.Value)
	if !ok {
		return fmt.Errorf("no fraction: %q", node.Value)
	}
	x, _ := r.Float64()
	*f = fraction(x)
	return nil
}

func readScenario(t *testing.T, path string) *scenario {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	var s scenario
	require.NoError(t, decoder.Decode(&s))
	return &s
}

func (s *scenario) input(t *testing.T) fairshare.Input {
	t.Helper()
	window := hours(0, s.Hours)
	b := budget(s.GPUs)
	for _, a := range s.Accounts {
		parent := a.Parent
		if parent == "" {
			parent = fairshare.RootAccount
		}
		added := account(a.Name, parent, a.Share)
		for _, amount := range a.Grants {
			// Twice the amount over twice the window: half of it lies within.
			added.Grants = append(added.Grants, fairshare.Grant{
				Period: hours(0, 2*s.Hours), Amount: 2 * fairshare.GPUMillis(amount) * fairshare.GPUHour,
			})
		}
		for user, share := range a.Users {
			if share == "equal" {
				added.Users = append(added.Users, equal(user))
				continue
			}
			p, err := strconv.ParseFloat(share, 64)
			require.NoError(t, err)
			added.Users = append(added.Users, withShare(user, p))
		}
		b.Accounts = append(b.Accounts, added)
	}
	in := fairshare.Input{Budget: b, Window: window}
	for _, c := range s.Charges {
		in.Charges = append(in.Charges, charge(c.Account, c.User, window, c.Hours))
	}
	return in
}

func TestRankScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/trees/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := readScenario(t, path)
			r := fairshare.Rank(s.input(t))
			for name, want := range s.Want.Accounts {
				a, ok := r.Account(name)
				require.True(t, ok, name)
				got := standing{
					Entitled: a.Entitled.Hours(), Used: a.Used.Hours(), LevelFS: fraction(a.LevelFS), Rank: a.Rank, Funded: a.Funded,
				}
				if want.Factor != 0 {
					got.Factor = fraction(a.Factor)
				}
				requireStanding(t, want, got, name)
			}
			require.Len(t, r.Users, len(s.Want.Users))
			for _, u := range r.Users {
				name := u.Account + "/" + u.User
				want, ok := s.Want.Users[name]
				require.True(t, ok, name)
				requireStanding(t, want, standing{
					Entitled: u.Entitled.Hours(), Used: u.Used.Hours(), LevelFS: fraction(u.LevelFS),
					Rank: u.Rank, Level: u.Level, Factor: fraction(u.Factor),
				}, name)
			}
		})
	}
}

func requireStanding(t *testing.T, want, got standing, name string) {
	t.Helper()
	require.InDelta(t, want.Entitled, got.Entitled, 1e-6, "%s: entitled", name)
	require.InDelta(t, want.Used, got.Used, 1e-6, "%s: used", name)
	if math.IsInf(float64(want.LevelFS), 1) {
		require.Equal(t, want.LevelFS, got.LevelFS, "%s: LevelFS", name)
	} else {
		require.InDelta(t, float64(want.LevelFS), float64(got.LevelFS), 1e-9, "%s: LevelFS", name)
	}
	require.Equal(t, want.Rank, got.Rank, "%s: rank", name)
	require.Equal(t, want.Level, got.Level, "%s: level", name)
	require.Equal(t, want.Funded, got.Funded, "%s: funded", name)
	require.InDelta(t, float64(want.Factor), float64(got.Factor), 1e-12, "%s: factor", name)
}
