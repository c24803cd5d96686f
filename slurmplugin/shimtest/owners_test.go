// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/slurmplugin/shimtest"
)

// The set of owners does what a map does: associations of low numbers and of
// high ones, and names, of which some have the number of an association as
// their hash.
func TestOwners(t *testing.T) {
	id := rapid.OneOf(rapid.Uint32Range(1, 5), rapid.Uint32Range(1, 20_000), rapid.Uint32Min(1<<20-2), rapid.Uint32Min(1))
	account := rapid.Ptr(rapid.SampledFrom([]string{"", "a", "b", "physics"}), true)
	rapid.Check(t, func(t *rapid.T) {
		var set shimtest.Owners
		defer set.Free()
		type name struct {
			uid     uint32
			account string
			none    bool
		}
		assocs, names := map[uint32]uint32{}, map[name]uint32{}
		next := uint32(0)
		for range rapid.IntRange(0, 1500).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "association") {
				n := id.Draw(t, "id")
				want, known := assocs[n]
				if !known {
					require.Equal(t, shimtest.None, set.FindAssoc(n))
					want, assocs[n] = next, next
					next++
				}
				require.Equal(t, want, set.AddAssoc(n))
				require.Equal(t, want, set.FindAssoc(n))
				continue
			}
			n := name{uid: id.Draw(t, "uid"), none: true}
			a := account.Draw(t, "account")
			if a != nil {
				n.account, n.none = *a, false
			}
			want, known := names[n]
			if !known {
				require.Equal(t, shimtest.None, set.FindName(n.uid, a))
				want, names[n] = next, next
				next++
			}
			require.Equal(t, want, set.AddName(n.uid, a, nil))
			require.Equal(t, want, set.FindName(n.uid, a))
		}
		require.Equal(t, next, set.Count())
		for n, want := range assocs {
			require.Equal(t, want, set.FindAssoc(n))
		}
	})
}

// What a set says of an owner stays when the job records it came from are gone.
func TestOwnersKeepCopiesOfNames(t *testing.T) {
	account, user := "physics", "alice"
	var set shimtest.Owners
	defer set.Free()
	at := set.AddName(1000, &account, &user)
	gotAccount, gotUser := set.Names(at)
	require.Equal(t, &account, gotAccount)
	require.Equal(t, &user, gotUser)

	gotAccount, gotUser = set.Names(set.AddName(1001, nil, nil))
	require.Nil(t, gotAccount)
	require.Nil(t, gotUser)
}

// An empty set knows nobody.
func TestNoOwners(t *testing.T) {
	var set shimtest.Owners
	require.Equal(t, shimtest.None, set.FindAssoc(1))
	require.Equal(t, shimtest.None, set.FindAssoc(1<<31))
	require.Equal(t, shimtest.None, set.FindName(0, nil))
	set.Free()
}
