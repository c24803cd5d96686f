// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// model is a ledger told a second time, as plainly as can be: a list of entries
// that is searched from end to end for every question.
type model struct{ entries []budgets.Entry }

// latest is the entry in force at an instant among those that match.
func (m *model) latest(at time.Time, match func(e *budgets.Entry) bool) *budgets.Entry {
	var best *budgets.Entry
	for i := range m.entries {
		e := &m.entries[i]
		if !match(e) || e.From.After(at) || e.Until != nil && !e.Until.After(at) {
			continue
		}
		if best == nil || !e.From.Before(best.From) {
			best = e
		}
	}
	return best
}

func (m *model) known(account string) bool {
	return account == "root" || slices.ContainsFunc(m.entries, func(e budgets.Entry) bool {
		return e.Kind == budgets.AccountAdd && e.Account == account
	})
}

func (m *model) open(account string, at time.Time) bool {
	e := m.latest(at, func(e *budgets.Entry) bool {
		return e.Account == account && (e.Kind == budgets.AccountAdd || e.Kind == budgets.AccountClose)
	})
	return account == "root" || e != nil && e.Kind == budgets.AccountAdd
}

func (m *model) parent(account string, at time.Time) string {
	if account == "root" || !m.open(account, at) {
		return ""
	}
	return m.latest(at, func(e *budgets.Entry) bool { return e.Account == account && e.Parent != "" }).Parent
}

func (m *model) share(account string, at time.Time) fairshare.Share {
	return *m.latest(at, func(e *budgets.Entry) bool {
		return e.Account == account && e.User == "" && e.Share != nil
	}).Share
}

func (m *model) member(account, user string, at time.Time) bool {
	e := m.latest(at, func(e *budgets.Entry) bool {
		return e.Account == account && (e.Kind == budgets.AccountClose ||
			e.User == user && (e.Kind == budgets.UserAdd || e.Kind == budgets.UserRemove))
	})
	return e != nil && e.Kind == budgets.UserAdd
}

func (m *model) userShare(account, user string, at time.Time) fairshare.Share {
	return *m.latest(at, func(e *budgets.Entry) bool {
		return e.Account == account && e.User == user && e.Share != nil
	}).Share
}

// accepts tells whether an entry is fit to be written, apart from what entries
// must fulfil together.
func (m *model) accepts(e *budgets.Entry) bool {
	if e.Until != nil && !e.Until.After(e.From) || e.Account == e.Parent || e.Account == e.Receiver {
		return false
	}
	aboutRoot := e.Account == "root" || e.Receiver == "root"
	if aboutRoot && e.User == "" {
		return false
	}
	isOpen := func(account string) bool { return m.known(account) && m.open(account, e.From) }
	if e.Parent != "" && !isOpen(e.Parent) || e.Receiver != "" && !isOpen(e.Receiver) {
		return false
	}
	switch e.Kind {
	case budgets.AccountAdd:
		return !m.open(e.Account, e.From)
	case budgets.UserAdd:
		return isOpen(e.Account) && !m.member(e.Account, e.User, e.From)
	case budgets.UserRemove, budgets.UserShareSet:
		return isOpen(e.Account) && m.member(e.Account, e.User, e.From)
	default:
		return isOpen(e.Account)
	}
}

// valid tells whether the entries fulfil at every instant what they must
// together.
func (m *model) valid() bool {
	for _, at := range m.points() {
		for _, parent := range append(accountNames, "root") {
			if !m.validAt(parent, at) {
				return false
			}
		}
	}
	return true
}

func (m *model) validAt(account string, at time.Time) bool {
	up := account
	for range len(accountNames) + 1 {
		if up == "root" {
			break
		}
		if !m.open(up, at) {
			if up != account {
				return false // an open account under a closed one
			}
			return true
		}
		up = m.parent(up, at)
	}
	if up != "root" {
		return false // a circle
	}
	return m.held(account, at) <= fairshare.Whole
}

// held is what the children of an account hold of it.
func (m *model) held(account string, at time.Time) fairshare.Share {
	var sum fairshare.Share
	for _, child := range accountNames {
		if m.parent(child, at) == account {
			sum += m.share(child, at)
		}
	}
	for _, user := range userNames {
		if m.member(account, user, at) {
			sum += max(m.userShare(account, user, at), 0)
		}
	}
	return sum
}

// points are all instants at which anything may change.
func (m *model) points() []time.Time {
	var points []time.Time
	for _, e := range m.entries {
		points = append(points, e.From)
		if e.Until != nil {
			points = append(points, *e.Until)
		}
	}
	return points
}

var (
	accountNames = []string{"a", "b", "c", "d"}
	userNames    = []string{"u", "v"}
)

// drawEntry is an entry that has a fair chance to be accepted. Days, names and
// shares are few, so that entries meet.
func drawEntry(t *rapid.T, cluster string) budgets.Entry {
	e := budgets.Entry{
		Cluster: cluster, Actor: "rapid",
		Kind:    rapid.SampledFrom(kindsDrawn).Draw(t, "kind"),
		Account: rapid.SampledFrom(accountNames).Draw(t, "account"),
		From:    day(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 4, 5}).Draw(t, "from")),
	}
	if rapid.IntRange(0, 3).Draw(t, "temporary") == 0 || e.Kind == budgets.Deposit || e.Kind == budgets.Transfer {
		end := day(rapid.IntRange(0, 9).Draw(t, "until"))
		e.Until = &end
	}
	share := rapid.SampledFrom([]fairshare.Share{0, 25, 25, 50, 50, 100}).Draw(t, "share") * percent
	switch e.Kind {
	case budgets.AccountAdd:
		e.Parent, e.Share = drawParent(t), &share
	case budgets.AccountMove:
		e.Parent = drawParent(t)
		if rapid.Bool().Draw(t, "with share") {
			e.Share = &share
		}
	case budgets.ShareSet:
		e.Share = &share
	case budgets.UserAdd, budgets.UserShareSet:
		if rapid.Bool().Draw(t, "equal part") {
			share = fairshare.EqualPart
		}
		e.Share = &share
		fallthrough
	case budgets.UserRemove:
		e.User = rapid.SampledFrom(userNames).Draw(t, "user")
		if rapid.IntRange(0, 4).Draw(t, "of root") == 0 {
			e.Account = "root"
		}
	case budgets.Transfer:
		e.Receiver = drawParent(t)
		fallthrough
	case budgets.Deposit:
		e.Amount = fairshare.GPUMillis(rapid.Int64Range(1, 1e9).Draw(t, "amount"))
	case budgets.AccountClose, budgets.PolicySet, budgets.Refund, budgets.WeightSet:
	}
	return e
}

func drawParent(t *rapid.T) string {
	return rapid.SampledFrom(append([]string{"root", "root", "root", "root"}, accountNames...)).Draw(t, "parent")
}

var kindsDrawn = []budgets.Kind{
	budgets.AccountAdd, budgets.AccountMove, budgets.AccountMove, budgets.AccountMove, budgets.AccountClose, budgets.AccountClose,
	budgets.ShareSet, budgets.ShareSet, budgets.UserAdd, budgets.UserAdd, budgets.UserRemove, budgets.UserShareSet,
	budgets.Deposit, budgets.Transfer,
}

// write is e through the store's own methods.
func write(s *budgets.Store, e budgets.Entry) (budgets.Entry, error) {
	n := budgets.Note{Actor: e.Actor, Why: e.Why, Key: e.Key, From: e.From, Until: e.Until}
	switch e.Kind {
	case budgets.AccountAdd:
		return s.AddAccount(ctx, e.Cluster, e.Account, e.Parent, *e.Share, n)
	case budgets.AccountMove:
		share := budgets.KeepShare
		if e.Share != nil {
			share = *e.Share
		}
		return s.MoveAccount(ctx, e.Cluster, e.Account, e.Parent, share, n)
	case budgets.AccountClose:
		return s.CloseAccount(ctx, e.Cluster, e.Account, n)
	case budgets.ShareSet:
		return s.SetShare(ctx, e.Cluster, e.Account, *e.Share, n)
	case budgets.UserAdd:
		return s.AddUser(ctx, e.Cluster, e.Account, e.User, *e.Share, n)
	case budgets.UserRemove:
		return s.RemoveUser(ctx, e.Cluster, e.Account, e.User, n)
	case budgets.UserShareSet:
		return s.SetUserShare(ctx, e.Cluster, e.Account, e.User, *e.Share, n)
	case budgets.Deposit:
		return s.Deposit(ctx, e.Cluster, e.Account, e.Amount, n)
	case budgets.Transfer:
		return s.Transfer(ctx, e.Cluster, e.Account, e.Receiver, e.Amount, n)
	case budgets.Refund:
		return s.Refund(ctx, e.Cluster, budgets.Lost{Job: e.Job, Start: e.JobStart, Account: e.Account, User: e.User, Amount: e.Amount}, n)
	case budgets.PolicySet:
		return s.SetPolicy(ctx, e.Cluster, e.Setting, e.Value, n)
	case budgets.WeightSet:
		return s.SetWeight(ctx, e.Cluster, e.GPUType, *e.Weight, n)
	}
	return budgets.Entry{}, fmt.Errorf("kind %q", e.Kind)
}

// Whatever is written, alone or several entries in one transaction, PostgreSQL
// accepts exactly what the model does; and what is loaded says of every day what
// the model says.
func TestLedgerEqualsItsModel(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	run := 0
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		run++
		cluster := fmt.Sprintf("model%d", run)
		m := &model{}
		for i, name := range accountNames {
			share := rapid.SampledFrom([]fairshare.Share{0, 25}).Draw(t, "first share") * percent
			parent := rapid.SampledFrom(append([]string{"root"}, accountNames[:i]...)).Draw(t, "first parent")
			writeBatch(t, s, m, []budgets.Entry{{Cluster: cluster, Actor: "rapid", Kind: budgets.AccountAdd,
				Account: name, Parent: parent, Share: &share, From: day(0)}})
		}
		for range rapid.IntRange(1, 15).Draw(t, "transactions") {
			batch := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) budgets.Entry { return drawEntry(t, cluster) }), 1, 3).Draw(t, "batch")
			outcomes[writeBatch(t, s, m, batch)]++
		}
		compareLoaded(t, s, m, cluster)
	})
	t.Log(outcomes)
	for _, outcome := range []string{"accepted", "*budgets.ShareError"} {
		require.NotZero(t, outcomes[outcome], "or the test shows little")
	}
}

// writeBatch writes entries in one transaction, to the store and the model. An
// entry that is refused does not end the transaction. It returns how the
// transaction ended.
func writeBatch(t *rapid.T, s *budgets.Store, m *model, batch []budgets.Entry) string {
	next := &model{entries: slices.Clone(m.entries)}
	before := len(m.entries)
	err := s.InTx(ctx, func(s *budgets.Store) error {
		for _, e := range batch {
			accepts := next.accepts(&e)
			written, err := write(s, e)
			if (err == nil) != accepts {
				t.Fatalf("%+v: the model accepts it: %v, the ledger says: %v", e, accepts, err)
			}
			if err != nil {
				continue
			}
			require.Equal(t, int64(len(next.entries)+1), written.Seq)
			next.entries = append(next.entries, e)
		}
		return nil
	})
	if (err == nil) != next.valid() {
		t.Fatalf("%+v: together valid in the model: %v, the ledger says: %v", batch, next.valid(), err)
	}
	if err != nil {
		return requireTogetherError(t, err)
	}
	*m = *next
	if len(next.entries) == before {
		return "nothing"
	}
	return "accepted"
}

// requireTogetherError is the type of an error, one of those a commit can give.
func requireTogetherError(t *rapid.T, err error) string {
	for _, target := range []any{new(*budgets.ShareError), new(*budgets.CycleError), new(*budgets.ClosedAccountError), new(*budgets.OpenChildrenError)} {
		if errors.As(err, target) {
			return fmt.Sprintf("%T", err)
		}
	}
	t.Fatalf("untyped error at commit: %v", err)
	return ""
}

// compareLoaded loads a random window and compares each of its days with the
// model.
func compareLoaded(t *rapid.T, s *budgets.Store, m *model, cluster string) {
	first := rapid.IntRange(-1, 9).Draw(t, "first day")
	last := rapid.IntRange(first, 10).Draw(t, "last day")
	w := fairshare.Period{From: fairshare.At(day(first)), Until: fairshare.At(day(last))}
	if rapid.Bool().Draw(t, "open-ended") {
		w.Until, last = fairshare.Never, 10
	}
	b, err := s.Load(ctx, cluster, w)
	require.NoError(t, err)
	accounts := map[string]fairshare.Account{}
	for _, a := range b.Accounts {
		accounts[a.Name] = a
	}
	for n := first; n <= last; n++ {
		for _, name := range append(accountNames, "root") {
			compareAccount(t, m, accounts[name], name, day(n))
		}
	}
	compareGrants(t, m, b, w)
}

func compareAccount(t *rapid.T, m *model, a fairshare.Account, name string, at time.Time) {
	i := fairshare.At(at)
	parent, open := fairshare.ValueAt(a.Parent, i)
	require.Equal(t, m.parent(name, at), parent, "parent of %s at %v", name, at)
	if name != "root" {
		require.Equal(t, m.open(name, at), open, "%s open at %v", name, at)
	}
	if open {
		share, set := fairshare.ValueAt(a.Share, i)
		require.True(t, set)
		require.Equal(t, m.share(name, at), share, "share of %s at %v", name, at)
	}
	for _, user := range userNames {
		var share fairshare.Share
		in := false
		for _, member := range a.Users {
			if member.User == user {
				share, in = fairshare.ValueAt(member.In, i)
			}
		}
		want := m.open(name, at) && m.member(name, user, at)
		require.Equal(t, want, in, "%s in %s at %v", user, name, at)
		if want {
			require.Equal(t, m.userShare(name, user, at), share, "share of %s in %s at %v", user, name, at)
		}
	}
}

// compareGrants compares the grants that touch a window, account by account in
// the order of the ledger.
func compareGrants(t *rapid.T, m *model, b *fairshare.Budget, w fairshare.Period) {
	want := map[string][]fairshare.Grant{}
	for _, e := range m.entries {
		if e.Amount == 0 {
			continue
		}
		p := fairshare.Period{From: fairshare.At(e.From), Until: fairshare.At(*e.Until)}
		if p.Until <= w.From || p.From > w.Until {
			continue
		}
		if e.Receiver != "" {
			want[e.Receiver] = append(want[e.Receiver], fairshare.Grant{Period: p, Amount: e.Amount})
			e.Amount = -e.Amount
		}
		want[e.Account] = append(want[e.Account], fairshare.Grant{Period: p, Amount: e.Amount})
	}
	for _, a := range b.Accounts {
		require.Equal(t, want[a.Name], a.Grants, "grants of %s", a.Name)
		delete(want, a.Name)
	}
	require.Empty(t, want)
}
