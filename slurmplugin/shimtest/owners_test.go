// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/slurmplugin/shimtest"
)

// ownersModel is what a map would say: who has which number, and stands where.
type ownersModel struct {
	set    shimtest.Owners
	assocs map[uint32]uint32
	names  map[ownerName]uint32
	stands map[uint32]float64 // by number
	next   uint32
}

type ownerName struct {
	uid     uint32
	account string
	none    bool
}

// addAssoc adds an association and returns its number.
func (m *ownersModel) addAssoc(t *rapid.T, id uint32) uint32 {
	want, known := m.assocs[id]
	if !known {
		require.Equal(t, shimtest.None, m.set.FindAssoc(id))
		want = id
		if id >= shimtest.Low {
			want = m.next
			m.next++
		}
		m.assocs[id] = want
	}
	require.Equal(t, want, m.set.AddAssoc(id))
	return want
}

// addName adds a user who named an account, or none, and returns his number.
func (m *ownersModel) addName(t *rapid.T, uid uint32, account *string) uint32 {
	name := ownerName{uid: uid, none: account == nil}
	if account != nil {
		name.account = *account
	}
	want, known := m.names[name]
	if !known {
		require.Equal(t, shimtest.None, m.set.FindName(uid, account))
		want, m.names[name] = m.next, m.next
		m.next++
	}
	require.Equal(t, want, m.set.AddName(uid, account, nil))
	require.Equal(t, want, m.set.FindName(uid, account))
	return want
}

func (m *ownersModel) place(t *rapid.T, number uint32, at float64) {
	m.check(t, number)
	m.stands[number] = at
	m.set.Place(number, at)
	m.check(t, number)
}

func (m *ownersModel) check(t *rapid.T, number uint32) {
	at, ok := m.set.Standing(number)
	want, known := m.stands[number]
	require.Equal(t, known, ok)
	require.Equal(t, want, at)
}

// checkAll looks at everybody. Associations below Low are found where they stand.
func (m *ownersModel) checkAll(t *rapid.T) {
	require.Equal(t, m.next-shimtest.Low, m.set.Count())
	for id, number := range m.assocs {
		m.check(t, number)
		if _, stands := m.stands[number]; !stands && id < shimtest.Low {
			number = shimtest.None
		}
		require.Equal(t, number, m.set.FindAssoc(id))
	}
	for _, number := range m.names {
		m.check(t, number)
	}
}

// The set of owners does what a map does: associations of low numbers and of
// high ones, and names, of which some have the number of an association as
// their hash. Each stands where he was put last.
func TestOwners(t *testing.T) {
	id := rapid.OneOf(rapid.Uint32Range(1, 5), rapid.Uint32Range(1, 20_000), rapid.Uint32Range(shimtest.Low-2, shimtest.Low+2), rapid.Uint32Min(1))
	account := rapid.Ptr(rapid.SampledFrom([]string{"", "a", "b", "physics"}), true)
	rapid.Check(t, func(t *rapid.T) {
		m := ownersModel{
			assocs: map[uint32]uint32{}, names: map[ownerName]uint32{}, stands: map[uint32]float64{}, next: shimtest.Low,
		}
		defer m.set.Free()
		for range rapid.IntRange(0, 1500).Draw(t, "steps") {
			var number uint32
			if rapid.Bool().Draw(t, "association") {
				number = m.addAssoc(t, id.Draw(t, "id"))
			} else {
				number = m.addName(t, id.Draw(t, "uid"), account.Draw(t, "account"))
			}
			if rapid.Bool().Draw(t, "place") {
				m.place(t, number, rapid.Float64().Draw(t, "standing"))
			}
		}
		m.checkAll(t)
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
	_, ok := set.Standing(1)
	require.False(t, ok)
	_, ok = set.Standing(shimtest.Low)
	require.False(t, ok)
	set.Free()
}
