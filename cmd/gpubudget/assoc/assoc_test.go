// SPDX-License-Identifier: GPL-2.0-or-later

package assoc

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
)

// read reads a file that sacctmgr 22.05 wrote.
func read(t *testing.T, file string) *Listing {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	require.NoError(t, err)
	defer f.Close()
	l, err := Read(f)
	require.NoError(t, err)
	return l
}

func asYAML(t require.TestingT, l *Listing) (string, []string) {
	tree, notes, err := l.Tree()
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, plan.WriteYAML(&b, tree))
	return b.String(), notes
}

const slurmsTree = `cluster: c1
accounts:
  speech:
    share: 40%
    accounts:
      asr:
        share: 25%
        users: [ann, erin]
      pool:
        share: 50%
        users: [gina]
      tts:
        share: 25%
        users: [frank]
  vision:
    share: 60%
    users: [dora]
    accounts:
      detection:
        share: 69.3069307%
        users: [ann, bob]
      tracking:
        share: 29.7029703%
        users: {carol: 75%, dave: 25%}
`

var slurmsNotes = []string{
	"user root of account root is left out, it is Slurm's own",
	"Fairshare=parent gives an account what all below it have together: pool",
	"Fairshare=parent counts as 1 for a user: ann in asr, erin in asr",
	"shares by partition are added up: frank in tts",
}

// Whatever way Slurm is asked, the tree is the same.
func TestReadOfEveryFormGivesTheSameTree(t *testing.T) {
	for _, file := range []string{
		"dump.cfg", "load.cfg", "show_assoc_tree_nP.txt", "show_assoc_tree_P.txt", "show_assoc_parent_P.txt",
	} {
		t.Run(file, func(t *testing.T) {
			l := read(t, file)
			require.True(t, l.HasParents)
			require.Equal(t, []string{"c1"}, l.Clusters())
			yaml, notes := asYAML(t, l)
			require.Equal(t, slurmsTree, yaml)
			require.Equal(t, slurmsNotes, notes)
		})
	}
}

func TestReadOfTheDefaultFormat(t *testing.T) {
	for _, file := range []string{"show_assoc_nP.txt", "show_assoc_P.txt", "show_assoc_np.txt"} {
		t.Run(file, func(t *testing.T) {
			l := read(t, file)
			require.False(t, l.HasParents, "the default format tells nothing of parents")
			require.NoError(t, l.TakeParents(read(t, "show_assoc_parent_P.txt")))
			yaml, _ := asYAML(t, l)
			require.Equal(t, slurmsTree, yaml)

			flat := read(t, file)
			flat.Flatten()
			tree, _, err := flat.Tree()
			require.NoError(t, err)
			require.Len(t, tree.Root.Accounts, 7)
		})
	}
}

func TestTakeParentsNeedsEveryAccount(t *testing.T) {
	l, err := Read(strings.NewReader("c1|root|||1|\nc1|vision|||1|\nc1|gone|||1|\n"))
	require.NoError(t, err)
	err = l.TakeParents(read(t, "show_assoc_parent_P.txt"))
	require.EqualError(t, err, "line 3: Slurm knows no account gone now: use the output of "+Command)
}

func TestReadOfSeveralClusters(t *testing.T) {
	l, err := Read(strings.NewReader("Cluster|Account|ParentName|User|Share\nb|root|||1\nb|x|root||1\na|root|||1\na|y|root||3\na|z|root||1\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, l.Clusters())
	yaml, notes := asYAML(t, l.Of("a"))
	require.Equal(t, "cluster: a\naccounts:\n  y:\n    share: 75%\n  z:\n    share: 25%\n", yaml)
	require.Empty(t, notes)
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "\n# only a comment\n", "there are no associations in it: use " + Command + ", or sacctmgr dump"},
		{"prose", "hello", "line 1: neither a table with | between its columns nor a dump: use " + Command + ", or sacctmgr dump"},
		{"missing column", "Cluster|Account|Share\nc1|root|1\n", "line 1: there is no column User: use " + Command},
		{"short row", "Cluster|Account|User|Partition|Share\nc1|root|\n", "line 2: only 3 columns: use " + Command},
		{
			"unnamed columns in another order", "root|c1|1|\n",
			"line 1: only 4 columns: use " + Command,
		},
		{
			"share that is none", "c1|root|||one|\n",
			`line 1: "one" is not a share: a number from 0 to 2147483646, or parent; without a line of column names only the default format is understood: use ` + Command,
		},
		{"negative share", "Account|User|Share\nroot||-1\n", `line 2: "-1" is not a share: a number from 0 to 2147483646, or parent; without a line of column names only the default format is understood: use ` + Command},
		{"no account", "Account|User|Share\n||1\n", "line 2: the account is empty"},
		{"indented too far", "Account|User|Share\nroot||1\n  x||1\n", "line 3: account x is indented by 2, below no account"},
		{"dump: other line", "Cluster - 'c1'\nAcount - 'x'\n", `line 2: "Acount - 'x'" is not a line of a sacctmgr dump: KIND - 'NAME':OPTION=VALUE`},
		{"dump: share", "Cluster - 'c1'\n\nAccount - 'x':Fairshare=much\n", `line 3: "much" is not a share: a number from 0 to 2147483646, or parent`},
		{"dump: no name", "Cluster - ''\n", "line 1: Cluster has no name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tc.text))
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestTreeRefuses(t *testing.T) {
	const header = "Account|ParentName|User|Share\nroot|||1\n"
	for _, tc := range []struct{ name, rows, want string }{
		{"unknown parent", "vision|root||1\nx|visoin||1\n", `line 4: account x stands below "visoin", which is not in the list: did you mean vision?`},
		{"unknown account of a user", "vison||ann|1\nvision|root||1\n", `line 3: user ann is in account "vison", which is not in the list: did you mean vision?`},
		{"account twice", "x|root||1\nX|root||2\n", "line 4: account x is there a second time (first in line 3)"},
		{"circle", "x|y||1\ny|x||1\n", "line 3: account x stands in a circle"},
		{"user twice", "x|root||1\nx||ann|1\nx||ann|1\n", "line 5: user ann is in account x a second time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := Read(strings.NewReader(header + tc.rows))
			require.NoError(t, err)
			_, _, err = l.Tree()
			require.EqualError(t, err, tc.want)
		})
	}
}

// An association for one partition may come before the one for all of them.
func TestAPartitionBeforeTheOtherAssociation(t *testing.T) {
	l, err := Read(strings.NewReader("Account|ParentName|User|Partition|Share\nroot||||1\nx|root|||1\nx||ann|short|4\nx||ann||1\nx||bob||5\n"))
	require.NoError(t, err)
	tree, notes, err := l.Tree()
	require.NoError(t, err)
	require.Equal(t, []string{"shares by partition are added up: ann in x"}, notes)
	require.Len(t, tree.Root.Accounts[0].Users, 2)
	_, _, err = (&Listing{HasParents: true, Associations: append(l.Associations, l.Associations[2])}).Tree()
	require.ErrorContains(t, err, "user ann is in account x a second time")
}

func TestTreeShares(t *testing.T) {
	for _, tc := range []struct{ name, rows, want string }{
		{
			"thirds make up the whole", "a|root||1\nb|root||1\nc|root||1\n",
			"accounts:\n  a:\n    share: 33.3333334%\n  b:\n    share: 33.3333333%\n  c:\n    share: 33.3333333%\n",
		},
		{
			"users who differ, beside an account", "a|root||1\na||ann|1\na||bob|2\nb|a||1\n",
			"accounts:\n  a:\n    share: 100%\n    users: {ann: 25%, bob: 50%}\n    accounts:\n      b:\n        share: 25%\n",
		},
		{
			"users without a share beside an account that has all", "a|root||1\na||ann|0\nb|a||5\n",
			"accounts:\n  a:\n    share: 100%\n    users: [ann]\n    accounts:\n      b:\n        share: 100%\n",
		},
		{
			"nobody has any", "a|root||0\na||ann|0\n",
			"accounts:\n  a:\n    share: 0%\n    users: {ann: 0%}\n",
		},
		{
			"Fairshare=parent over two levels", "a|root||parent\nb|a||parent\nc|b||2\nb||ann|1\nd|root||1\n",
			"accounts:\n  a:\n    share: 75%\n    accounts:\n      b:\n        share: 100%\n        users: [ann]\n        accounts:\n          c:\n            share: 66.6666667%\n  d:\n    share: 25%\n",
		},
		{"members of root, but not Slurm's own", "root||root|1\nroot||op|1\n", "users: [op]\n"},
		{"nothing but root", "root||root|1\n", "{}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := Read(strings.NewReader("Account|ParentName|User|Share\nroot|||1\n" + tc.rows))
			require.NoError(t, err)
			yaml, _ := asYAML(t, l)
			require.Equal(t, tc.want, yaml)
		})
	}
}

func TestNotesStayShort(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("Account|ParentName|User|Share\nroot|||1\na|root||1\n")
	for u := range strings.FieldsSeq("u1 u2 u3 u4 u5 u6 u7") {
		rows.WriteString("a||" + u + "|parent\n")
	}
	l, err := Read(strings.NewReader(rows.String()))
	require.NoError(t, err)
	_, notes := asYAML(t, l)
	require.Equal(t, []string{"Fairshare=parent counts as 1 for a user: u1 in a, u2 in a, u3 in a, u4 in a, u5 in a and 2 more"}, notes)
}

// Shares of one level make up the whole exactly, are in the order of the raw
// shares, and no share is off by more than a billionth.
func TestDivide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Int64Range(0, slurmInherit), 1, 50).Draw(t, "weights")
		var total int64
		for _, w := range weights {
			total += w
		}
		shares := divide(weights)
		var sum fairshare.Share
		for i, s := range shares {
			sum += s
			if total > 0 {
				exact := float64(weights[i]) / float64(total) * float64(fairshare.Whole)
				require.InDelta(t, exact, float64(s), 1.001)
			}
			for j := range shares {
				if weights[i] > weights[j] {
					require.GreaterOrEqual(t, s, shares[j])
				}
			}
		}
		if total == 0 {
			require.Zero(t, sum)
			return
		}
		require.Equal(t, fairshare.Whole, sum)
	})
}

func FuzzRead(f *testing.F) {
	for _, file := range []string{"dump.cfg", "show_assoc_tree_P.txt", "show_assoc_nP.txt"} {
		text, err := os.ReadFile("testdata/" + file)
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Add("Cluster - 'c'\nUser - 'u':Fairshare='1'x:=:'")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		tree, _, err := l.Tree()
		if err != nil {
			return
		}
		tree.Root.Walk(func(_, a *plan.Account) {
			var sum fairshare.Share
			for _, c := range a.Accounts {
				sum += c.Share
			}
			for _, u := range a.Users {
				sum += max(u.Share, 0)
			}
			require.LessOrEqual(t, sum, fairshare.Whole)
		})
	})
}
