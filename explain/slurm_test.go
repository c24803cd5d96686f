// SPDX-License-Identifier: GPL-2.0-or-later

package explain_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/explain"
	"gpubudget/fairshare"
)

// The helpers write associations as Slurm lists them.
func account(above int, name string, shares uint32, usage float64) explain.Assoc {
	return explain.Assoc{Subject: explain.Subject{Account: name}, Above: above, Shares: shares, Usage: usage, Shown: explain.NotShown()}
}

func member(above int, name, user string, shares uint32, usage float64) explain.Assoc {
	a := account(above, name, shares, usage)
	a.User = user
	return a
}

func inherits(a explain.Assoc) explain.Assoc {
	a.Shares, a.ParentShares = math.MaxInt32, true
	return a
}

var (
	fairTree = fairshare.SlurmPolicy{FairTree: true}
	classic  = fairshare.SlurmPolicy{Damping: 1}
)

// site is a site in which vision has used more than its share.
func site() []explain.Assoc {
	return []explain.Assoc{
		account(-1, "root", 1, 1000),
		account(0, "vision", 60, 800),
		member(1, "vision", "ann", 1, 700),
		member(1, "vision", "bob", 1, 100),
		account(0, "speech", 40, 200),
		inherits(account(4, "guests", 0, 150)),
		member(5, "guests", "cem", 3, 150),
		member(4, "speech", "dora", 1, 50),
	}
}

func standing(t require.TestingT, assocs []explain.Assoc, p fairshare.SlurmPolicy) *explain.Slurm {
	s, err := explain.NewSlurm(assocs, p)
	require.NoError(t, err)
	return s
}

// slurmJob is a job that waits with a fair-share column and nothing else.
func slurmJob(id uint32, account, user string, fairshareColumn float64) explain.Pending {
	p := explain.Pending{JobID: id, Owner: explain.Subject{Account: account, User: user}, Partition: "gpu", Tasks: 1, GPUs: 2}
	p.Factors.Fairshare, p.Factors.Priority = fairshareColumn, uint32(fairshareColumn)
	return p
}

func TestSlurmPath(t *testing.T) {
	s := standing(t, site(), fairTree)
	place, ok := s.Find(explain.Subject{Account: "guests", User: "cem"}, "gpu")
	require.True(t, ok)
	path := s.Path(place)
	require.Len(t, path, 4)
	type shown struct {
		account                  string
		norm, effective, levelFS float64
		place, of, rank, users   int
	}
	var got []shown
	for _, l := range path[1:] {
		got = append(got, shown{l.Account, l.SharesNorm, l.UsageEffective, l.LevelFS, l.Place, l.Of, l.Rank, l.Users})
	}
	require.Equal(t, []shown{
		{"speech", 0.4, 0.2, 2, 1, 2, 0, 4},
		{"guests", 0.4, 0.75, got[1].levelFS, 0, 0, 0, 4}, // cem competes in its stead
		{"guests", 0.75, 0.75, 1, 1, 2, 1, 4},
	}, got)
	require.InDelta(t, 1, path[3].Factor, 0)
}

// Who is ahead by fair share, and where the paths part.
func TestSlurmAhead(t *testing.T) {
	s := standing(t, site(), fairTree)
	place, _ := s.Find(explain.Subject{Account: "vision", User: "ann"}, "gpu")
	mine := slurmJob(1, "vision", "ann", 250)
	byHand := slurmJob(5, "speech", "dora", 0)
	byHand.Factors.Priority = 9999
	e := s.Job(place, []explain.Pending{mine}, []explain.Pending{
		mine, slurmJob(2, "vision", "bob", 500), slurmJob(3, "guests", "cem", 1000), byHand, slurmJob(6, "speech", "nobody", 0),
	})
	type ahead struct {
		account, cause, column, below string
		mine, theirs                  float64
	}
	var got []ahead
	for _, r := range e.Ahead {
		a := ahead{account: r.Account, cause: string(r.Why.Cause), column: r.Why.Column}
		if p := r.Why.Parting; p != nil {
			a.below, a.mine, a.theirs = p.Below, p.Mine.LevelFS, p.Theirs.LevelFS
		}
		got = append(got, a)
	}
	require.Equal(t, []ahead{
		{account: "speech", cause: "set_by_hand"},
		{"guests", "column", "FAIRSHARE", "root", 0.6 / 0.8, 2},
		{"vision", "column", "FAIRSHARE", "vision", 0.5 / 0.875, 4},
	}, got)
	require.Equal(t, int64(251), e.Changes[0].Points)
	require.Equal(t, "bob", e.Changes[1].Rival.User, "the nearest")

	account, _ := s.Find(explain.Subject{Account: "vision"}, "")
	e = s.Waiting(account, []explain.Pending{slurmJob(2, "vision", "bob", 500), slurmJob(3, "guests", "cem", 1000), slurmJob(6, "speech", "nobody", 0)})
	require.Len(t, e.Ahead, 1)
	require.Equal(t, "guests", e.Ahead[0].Account)
	e = s.Job(-1, []explain.Pending{slurmJob(6, "speech", "nobody", 0)}, []explain.Pending{mine})
	require.Empty(t, e.Path)
	require.Nil(t, e.Ahead[0].Why.Standing)
	require.Equal(t, "FAIRSHARE", e.Ahead[0].Why.Column)
}

// show is what slurmctld shows of a list in six decimals.
func show(t require.TestingT, assocs []explain.Assoc, p fairshare.SlurmPolicy) {
	list := make([]fairshare.Association, len(assocs))
	for i, a := range assocs {
		parent := a.Above
		for parent > 0 && assocs[parent].ParentShares {
			parent = assocs[parent].Above
		}
		list[i] = fairshare.Association{Parent: parent, User: a.User != "", Shares: a.Shares, ParentShares: a.ParentShares, Usage: a.Usage}
	}
	require.NoError(t, fairshare.SlurmShares(list, p))
	six := func(x float64) float64 {
		rounded, err := strconv.ParseFloat(fmt.Sprintf("%f", x), 64)
		require.NoError(t, err)
		return rounded
	}
	for i := range assocs {
		l := &list[i]
		assocs[i].Shown = explain.Shown{
			SharesNorm: six(l.SharesNorm), UsageNorm: six(l.UsageNorm), UsageEffective: six(l.UsageEffective), LevelFS: six(l.LevelFS), Factor: six(l.Factor),
		}
	}
}

// Until slurmctld's next pass associations stand as it has shown them: that is what
// priorities were made of.
func TestSlurmBehind(t *testing.T) {
	for _, p := range []fairshare.SlurmPolicy{fairTree, classic} {
		assocs := site()
		show(t, assocs, p)
		require.False(t, standing(t, assocs, p).Behind)
		for _, i := range []int{0, 4, 7} {
			assocs[i].Usage += 500
		}
		s := standing(t, assocs, p)
		require.True(t, s.Behind)
		dora, _ := s.Find(explain.Subject{Account: "speech", User: "dora"}, "")
		path := s.Path(dora)
		require.InDelta(t, assocs[dora].Shown.Factor, path[len(path)-1].Factor, 0)
		require.Less(t, s.Next(dora).Factor, path[len(path)-1].Factor)
	}
}

// Which way Fair Tree treats ties follows from what slurmctld shows.
func TestSlurmTiesAreFoundOut(t *testing.T) {
	assocs := []explain.Assoc{
		account(-1, "root", 1, 0),
		account(0, "a", 1, 0), member(1, "a", "ann", 1, 0),
		account(0, "b", 1, 0), member(3, "b", "bob", 0, 0), member(3, "b", "ben", 1, 0),
		account(0, "c", 1, 0), member(6, "c", "cem", 0, 0), member(6, "c", "cid", 1, 0),
	}
	apart := fairTree
	apart.TiesApart = true
	for _, is := range []fairshare.SlurmPolicy{fairTree, apart} {
		show(t, assocs, is)
		for _, said := range []fairshare.SlurmPolicy{fairTree, apart} {
			s := standing(t, assocs, said)
			require.False(t, s.Behind)
			require.Equal(t, is, s.Policy)
		}
	}
}

// What is said to change it does, and less of it doesn't.
func TestSlurmChangesComeTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		assocs := drawAssocs(t)
		p := fairshare.SlurmPolicy{
			FairTree: rapid.Bool().Draw(t, "fair tree"), TiesApart: rapid.Bool().Draw(t, "apart"), DepthOblivious: rapid.Bool().Draw(t, "oblivious"),
			Damping: rapid.Uint32Range(0, 3).Draw(t, "damping"),
		}
		if p.FairTree {
			p.DepthOblivious = false
		}
		s := standing(t, assocs, p)
		mine := rapid.IntRange(1, len(assocs)-1).Draw(t, "mine")
		for _, c := range s.Waiting(mine, nil).Changes {
			theirs, ok := s.FindAny(c.Rival)
			require.True(t, ok)
			behind := func(less uint32) bool {
				changed := append([]explain.Assoc(nil), assocs...)
				if c.Kind == explain.Usage {
					for i := theirs; i >= 0; i = changed[i].Above {
						changed[i].Usage += c.Usage - float64(less)
					}
				} else {
					side, ok := s.FindAny(explain.Subject{Account: c.Mine.Account, User: c.Mine.User})
					require.True(t, ok)
					changed[side].Shares = c.Shares - less
				}
				return isBehind(standing(t, changed, p), mine, theirs)
			}
			require.False(t, behind(0), "%+v", c)
			require.True(t, behind(1), "%+v", c)
		}
	})
}

// isBehind tells whether a job of theirs would be ahead by fair share.
func isBehind(s *explain.Slurm, mine, theirs int) bool {
	path := s.Path(theirs)
	them := path[len(path)-1]
	e := s.Waiting(mine, []explain.Pending{slurmJob(1, them.Account, them.Subject.User, 0)})
	return len(e.Ahead) > 0
}

func drawAssocs(t *rapid.T) []explain.Assoc {
	assocs := []explain.Assoc{account(-1, "root", 1, 0)}
	accounts := []int{0}
	for i := range rapid.IntRange(2, 12).Draw(t, "associations") {
		above := rapid.SampledFrom(accounts).Draw(t, "above")
		shares := rapid.Uint32Range(0, 5).Draw(t, "shares")
		if rapid.Bool().Draw(t, "user") {
			assocs = append(assocs, member(above, assocs[above].Account, fmt.Sprint("user", i), shares, float64(rapid.IntRange(0, 3).Draw(t, "usage")*100)))
		} else {
			accounts = append(accounts, len(assocs))
			assocs = append(assocs, account(above, fmt.Sprint("acct", i), shares, 0))
		}
		if rapid.IntRange(0, 5).Draw(t, "inherits") == 0 {
			assocs[len(assocs)-1] = inherits(assocs[len(assocs)-1])
		}
	}
	for i := len(assocs) - 1; i > 0; i-- {
		assocs[assocs[i].Above].Usage += assocs[i].Usage
	}
	return assocs
}
