// SPDX-License-Identifier: GPL-2.0-or-later

package plan

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const sample = `cluster: titan
policy:
  lookback: 7d
users: [operator]
accounts:
  speech:
    share: 12.5%
  vision:
    share: 60%
    min_runtime: 30m
    users: [ann, bob]
    accounts:
      detection:
        share: 70%
        users: {carol: 80%, dave: equal}
`

func readYAML(t require.TestingT, text string) Tree {
	tree, err := ReadYAML(strings.NewReader(text), "tree.yaml")
	require.NoError(t, err)
	return tree
}

func writeYAML(t require.TestingT, tree Tree) string {
	var b bytes.Buffer
	require.NoError(t, WriteYAML(&b, tree))
	return b.String()
}

func TestYAMLReadsBack(t *testing.T) {
	tree := readYAML(t, sample)
	require.Equal(t, sample, writeYAML(t, tree))
	require.Equal(t, fairshare.Share(125_000_000), tree.Root.Accounts[0].Share)
	require.Equal(t, []User{{"carol", 800_000_000}, {"dave", fairshare.EqualPart}}, tree.Root.Accounts[1].Accounts[0].Users)
}

func TestYAMLTakesOtherSpellings(t *testing.T) {
	tree := readYAML(t, `
cluster: Titan
accounts:
  Vision: {share: 60, users: [bob, ann], accounts: {detection: &d {share: 70}}}
  speech:
    share: "12.5 %"
    users:
    accounts:
      asr: *d
`)
	require.Equal(t, "cluster: titan\naccounts:\n  speech:\n    share: 12.5%\n    accounts:\n      asr:\n        share: 70%\n"+
		"  vision:\n    share: 60%\n    users: [ann, bob]\n    accounts:\n      detection:\n        share: 70%\n", writeYAML(t, tree))
}

// Names that YAML would take for something else are quoted.
func TestYAMLQuotesNames(t *testing.T) {
	tree := Tree{Root: Account{Name: "root", Share: fairshare.Whole, Users: []User{{"123", -1}, {"no", -1}, {"~", -1}}}}
	tree.Root.Accounts = []Account{{Name: "1e3", Users: []User{{"null", 0}}}}
	text := writeYAML(t, tree)
	require.Equal(t, tree, readYAML(t, text), text)
}

func TestYAMLErrorsNameThePlace(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", "tree.yaml: it is empty: begin with the key accounts"},
		{"a word", "accounts", "tree.yaml:1:1: the file must be KEY: VALUE lines"},
		{"unknown key", "acounts:\n", `tree.yaml:1:1: the file has an unknown key "acounts": did you mean accounts?`},
		{"foreign key", "quota: 1\n", `tree.yaml:1:1: the file has an unknown key "quota": known are accounts, cluster, policy, users, weights`},
		{"unknown key of an account", "accounts:\n  a:\n    share: 1\n    user: [x]\n", `tree.yaml:4:5: account a has an unknown key "user": did you mean users?`},
		{"no share", "accounts:\n  a:\n    users: [x]\n", "tree.yaml:2:3: account a has no share: add share: and percent of the account above"},
		{"bad share", "accounts:\n  a:\n    share: 0.3\n", `tree.yaml:3:12: share "0.3" can be read in two ways, as 0.3% or as a fraction: write 0.3% or 30%`},
		{"bad user share", "accounts:\n  a:\n    share: 1\n    users: {x: most}\n", `tree.yaml:4:16: share "most" is not understood: give percent (30, 30%, 12.5%) from 0 to 100, or equal`},
		{"account twice", "accounts:\n  a: {share: 1}\n  b:\n    share: 2\n    accounts:\n      A: {share: 3}\n", "tree.yaml:6:7: account a is there a second time (first in line 2)"},
		{"account twice at one level", "accounts:\n  a: {share: 1}\n  a: {share: 1}\n", `tree.yaml:3:3: "a" is there a second time (first in line 2)`},
		{"root", "accounts:\n  root: {share: 100}\n", "tree.yaml:2:3: account root needs no mention: its users and accounts stand at the top"},
		{"user twice", "users: [a, a]\n", "tree.yaml:1:12: user a is in account root a second time"},
		{"user that is a list", "users: [[a]]\n", "tree.yaml:1:9: a word is needed here"},
		{"accounts as a list", "accounts: [a]\n", "tree.yaml:1:11: accounts of root must be KEY: VALUE lines"},
		{"policy without value", "policy:\n  mode:\n", "tree.yaml:2:8: a word is needed here"},
		{"minimum runtime", "accounts:\n  a:\n    share: 1\n    min_runtime: 0s\n", "tree.yaml:4:18: policy min_runtime=0s: that of an account can't be 0: an account without a share has its jobs unallocated (share set a 0%), any other's ask for it (--min-runtime=0)"},
		{"no YAML", "a: b: c\n", "tree.yaml: yaml: mapping values are not allowed in this context"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ReadYAML(strings.NewReader(tc.text), "tree.yaml")
			require.EqualError(t, err, tc.want)
		})
	}
}

// A budget is all there is: more than 100% of an account is an error where it
// goes beyond that.
func TestABudgetGivesAwayNoMoreThanThereIs(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"accounts", "accounts:\n  a: {share: 60%}\n  b: {share: 40.5%}\n", "tree.yaml:3:14: below account root shares come to 100.5%: they can be 100% at most"},
		{"users", "accounts:\n  a:\n    share: 60%\n    users: {x: 60%, y: equal, z: 50}\n", "tree.yaml:4:34: below account a shares come to 110%: they can be 100% at most"},
		{
			"both", "accounts:\n  a:\n    users: {x: 60%}\n    accounts: {c: {share: 30%}, d: {share: 20%}}\n    share: 60%\n",
			"tree.yaml:4:44: below account a shares come to 110%: they can be 100% at most",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ReadBudget(strings.NewReader(tc.text), "tree.yaml")
			require.EqualError(t, err, tc.want)
			_, err = ReadYAML(strings.NewReader(tc.text), "tree.yaml")
			require.NoError(t, err, "a part of a tree that others may make room for")
		})
	}
	const whole = "users: {x: 10%}\naccounts:\n  a: {share: 60%, accounts: {c: {share: 100%}}}\n  b: {share: 30%}\n"
	tree, err := ReadBudget(strings.NewReader(whole), "tree.yaml")
	require.NoError(t, err)
	require.Equal(t, readYAML(t, whole), tree)
}

func FuzzReadYAML(f *testing.F) {
	f.Add(sample)
	f.Add("accounts: {a: &x {share: 1, accounts: {b: *x}}}")
	f.Fuzz(func(t *testing.T, text string) {
		tree, err := ReadYAML(strings.NewReader(text), "x")
		if err != nil {
			return
		}
		again, err := ReadYAML(strings.NewReader(writeYAML(t, tree)), "x")
		require.NoError(t, err)
		require.Equal(t, writeYAML(t, tree), writeYAML(t, again))
	})
}

func lines(changes []Change) []string {
	var out []string
	for _, c := range changes {
		out = append(out, c.String())
	}
	return out
}

func TestDiff(t *testing.T) {
	current := readYAML(t, sample)
	current.Policy = map[string]string{"lookback": "7d", "mode": "strict"}
	want := readYAML(t, `
policy: {lookback: 14d, mode: strict}
accounts:
  vision:
    share: 30%
    min_runtime: Inherit
    users: [ann, erin]
  detection:
    share: 20%
    min_runtime: 90m
    users: {carol: 70%, dave: equal}
  robotics:
    share: 50%
    accounts: {arm: {share: 100%}}
`)
	d := Diff(current, want)
	require.Equal(t, []string{
		"~ policy lookback: 7d -> 14d",
		"~ account detection: below vision -> root, share 70% -> 20%",
		"~ policy min_runtime of account detection: inherit -> 1h30m",
		"~ user carol in detection: share 80% -> 70%",
		"+ account robotics below root, share 50%",
		"+ account arm below robotics, share 100%",
		"~ account vision: share 60% -> 30%",
		"~ policy min_runtime of account vision: 30m -> inherit",
		"+ user erin in vision, share equal",
	}, lines(d.Changes))
	require.Equal(t, []string{"- user operator in root", "- account speech below root", "- user bob in vision"}, lines(d.Surplus))

	require.Equal(t, Difference{}, Diff(current, current))
}

// tree draws a tree over a few names, so that two of them have much in common.
func tree(t *rapid.T, label string) Tree {
	out := Tree{Root: Account{Name: fairshare.RootAccount, Share: fairshare.Whole}, Policy: map[string]string{
		"lookback": rapid.SampledFrom([]string{"7d", "1d", "2h"}).Draw(t, label+" lookback"),
	}}
	names := rapid.Permutation([]string{"a", "b", "c", "d", "e"}).Draw(t, label+" names")
	names = names[:rapid.IntRange(0, len(names)).Draw(t, label+" size")]
	parent := map[string]string{}
	placed := []string{fairshare.RootAccount}
	for _, n := range names {
		parent[n] = rapid.SampledFrom(placed).Draw(t, label+" parent of "+n)
		placed = append(placed, n)
	}
	grow(t, label, &out.Root, parent)
	out.Root.Sort()
	return out
}

func grow(t *rapid.T, label string, a *Account, parent map[string]string) {
	left := int64(fairshare.Whole)
	share := func(what string) fairshare.Share {
		s := rapid.OneOf(rapid.Just(left), rapid.Int64Range(0, left)).Draw(t, label+" share of "+what)
		left -= s
		return fairshare.Share(s)
	}
	for _, u := range []string{"ann", "bob"} {
		switch rapid.IntRange(0, 2).Draw(t, label+" membership") {
		case 0:
			a.Users = append(a.Users, User{u, fairshare.EqualPart})
		case 1:
			a.Users = append(a.Users, User{u, share(u + " in " + a.Name)})
		}
	}
	children := make([]string, 0, len(parent))
	for n, p := range parent {
		if p == a.Name {
			children = append(children, n)
		}
	}
	slices.Sort(children)
	for _, n := range children {
		child := Account{Name: n, Share: share(n), MinRuntime: rapid.SampledFrom([]string{"1h30m", "1s"}).Draw(t, label+" minimum runtime of "+n)}
		grow(t, label, &child, parent)
		a.Accounts = append(a.Accounts, child)
	}
}

// Whatever stands in the ledger, making the changes that Diff finds leads to
// the tree that is wanted, in one transaction, and then nothing is left to do.
func TestRunLeadsToTheTreeThatIsWanted(t *testing.T) {
	ctx := context.Background()
	ledger := budgets.NewStore(pgtest.Pool(t))
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		current := Tree{Root: Account{Name: fairshare.RootAccount, Share: fairshare.Whole}}
		for _, label := range []string{"first", "second"} {
			want := tree(t, label)
			d := Diff(current, want)
			err := ledger.InTx(ctx, func(s *budgets.Store) error {
				_, err := Run(ctx, s, cluster, append(d.Changes, d.Surplus...), budgets.Note{Actor: "test"}, nil)
				return err
			})
			require.NoError(t, err)
			current = load(ctx, t, ledger, cluster)
			require.Equal(t, writeYAML(t, want), writeYAML(t, current))
			require.Equal(t, Difference{}, Diff(current, want))
		}
	})
}

// load is a cluster's tree at this moment, by the time of its last entry.
func load(ctx context.Context, t require.TestingT, ledger *budgets.Store, cluster string) Tree {
	entries, err := ledger.Ledger(ctx, budgets.Filter{Cluster: cluster})
	require.NoError(t, err)
	at := fairshare.Instant(0)
	for _, e := range entries {
		at = max(at, fairshare.At(e.From))
	}
	b, err := ledger.Load(ctx, cluster, fairshare.Period{From: at, Until: at})
	require.NoError(t, err)
	out := Current(b.Tree(at))
	policy, err := ledger.Policy(ctx, cluster, at.Time())
	require.NoError(t, err)
	out.Policy = map[string]string{"lookback": policy.Value("lookback")}
	said, err := ledger.MinRuntimes(ctx, cluster, at.Time())
	require.NoError(t, err)
	out.Root.Walk(func(_, a *Account) {
		if d, own := said[a.Name]; own {
			a.MinRuntime = budgets.FormatMinRuntime(d)
		}
	})
	return out
}

// All entries of one run are in force from the same moment.
func TestRunIsOfOneMoment(t *testing.T) {
	ctx := context.Background()
	ledger := budgets.NewStore(pgtest.Pool(t))
	var entries []budgets.Entry
	count := 0
	err := ledger.InTx(ctx, func(s *budgets.Store) (err error) {
		d := Diff(Tree{Root: Account{Name: fairshare.RootAccount}}, readYAML(t, sample))
		entries, err = Run(ctx, s, "titan", d.Changes, budgets.Note{Actor: "test", Why: "plan"}, func() { count++ })
		return err
	})
	require.NoError(t, err)
	require.Len(t, entries, 10)
	require.Equal(t, 10, count)
	for _, e := range entries {
		require.Equal(t, entries[0].From, e.From)
		require.Equal(t, "plan", e.Why)
	}
}
