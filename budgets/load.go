// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Load is the cluster's budget over a window and at the instant of its end:
// who stood where, with what share, and what was granted. The end may lie in
// the future, up to fairshare.Never, so that planned changes are in it. The
// budget holds root even if the ledger is empty. It lacks Capacity, which
// isn't the ledger's to know.
//
// Shares and memberships are cut to the window; an account's parents before it
// are kept, because what still runs in a closed account counts where it stood
// last.
func (s *Store) Load(ctx context.Context, cluster string, w fairshare.Period) (*fairshare.Budget, error) {
	rows, err := s.db.Query(ctx, loadSQL, cluster, bound(w.From), bound(w.Until))
	if err != nil {
		return nil, failed("load budgets", err)
	}
	lines := newTimelines()
	var r loadedRow
	_, err = pgx.ForEachRow(rows, []any{&r.line, &r.kind, &r.seq, &r.from, &r.until, &r.account, &r.other, &r.user, &r.number},
		func() error { return lines.add(&r) })
	if err != nil {
		return nil, failed("load budgets", err)
	}
	if w.Until < fairshare.Never {
		w.Until++ // the instant of the end belongs to it
	}
	return lines.budget(w), nil
}

// loadSQL reads all entries that matter in a window, in one statement so that
// they are of one moment. Each timeline begins with the last entry without an
// end before the window: what is older can't show through.
//
// OFFSET 0 keeps the planner from joining all timelines with all others where
// it has no statistics yet: right after a large import. Of users, who are many and
// change rarely, all entries are sorted: that takes a tenth of the time of a look
// at each, and of that what the planner's estimate would have spent on compiling.
const loadSQL = `
WITH opening AS (
	SELECT account, kind, seq, effective_from, effective_until FROM gpubudget.ledger
	WHERE cluster = $1 AND kind IN ('account_add', 'account_close') AND effective_from <= $3
), parentage AS (
	SELECT account, kind, seq, effective_from, effective_until, parent FROM gpubudget.ledger
	WHERE cluster = $1 AND kind IN ('account_add', 'account_move') AND effective_from <= $3
), shareholding AS (
	SELECT l.* FROM gpubudget.account a
	LEFT JOIN LATERAL (
		SELECT effective_from, seq FROM gpubudget.ledger
		WHERE cluster = $1 AND account = a.name
		  AND kind IN ('account_add', 'account_move', 'share_set') AND share IS NOT NULL
		  AND effective_from <= $2 AND effective_until IS NULL
		ORDER BY effective_from DESC, seq DESC LIMIT 1
	) base ON true
	CROSS JOIN LATERAL (
		SELECT account, kind, seq, effective_from, effective_until, share FROM gpubudget.ledger
		WHERE cluster = $1 AND account = a.name
		  AND kind IN ('account_add', 'account_move', 'share_set') AND share IS NOT NULL
		  AND (effective_from, seq) >= (coalesce(base.effective_from, '-infinity'), coalesce(base.seq, 0))
		  AND effective_from <= $3
		OFFSET 0
	) l
	WHERE a.cluster = $1
), member AS (
	SELECT account, user_name, kind, seq, effective_from, effective_until, share,
		kind <> 'user_share_set' AND count(*) FILTER (WHERE base AND kind <> 'user_share_set') OVER later = 0 AS in_membership,
		kind <> 'user_remove' AND count(*) FILTER (WHERE base AND kind <> 'user_remove') OVER later = 0 AS in_shareholding
	FROM (
		SELECT *, effective_from <= $2 AND effective_until IS NULL AS base FROM gpubudget.ledger
		WHERE cluster = $1 AND kind IN ('user_add', 'user_remove', 'user_share_set') AND effective_from <= $3
	) l
	WINDOW later AS (PARTITION BY account, user_name ORDER BY effective_from DESC, seq DESC
		ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), refunded AS (
	SELECT l.account, l.kind, l.seq, p.starts_at, p.ends_at, l.user_name, p.gpu_ms
	FROM gpubudget.ledger l, gpubudget.refund_pieces(l.effective_from, l.effective_until, l.amount, l.amount_parts) p
	WHERE l.cluster = $1 AND l.kind = 'refund' AND l.effective_until > $2 AND l.effective_from <= $3
	  AND p.gpu_ms <> 0 AND p.ends_at > $2 AND p.starts_at <= $3
), granted AS (
	SELECT account, kind, seq, effective_from, effective_until, receiver, amount FROM gpubudget.ledger
	WHERE cluster = $1 AND kind IN ('deposit', 'transfer') AND effective_until > $2 AND effective_from <= $3
)
SELECT 'opening', kind, seq, effective_from, effective_until, account, '', '', 0 FROM opening
UNION ALL
SELECT 'parentage', kind, seq, effective_from, effective_until, account, parent, '', 0 FROM parentage
UNION ALL
SELECT 'shareholding', kind, seq, effective_from, effective_until, account, '', '', share FROM shareholding
UNION ALL
SELECT CASE WHEN NOT in_membership THEN 'user_shareholding' WHEN in_shareholding THEN 'member' ELSE 'membership' END,
	kind, seq, effective_from, effective_until, account, '', user_name, coalesce(share, 0)
FROM member WHERE in_membership OR in_shareholding
UNION ALL
SELECT 'refunded', kind, seq, starts_at, ends_at, account, '', user_name, gpu_ms FROM refunded
UNION ALL
SELECT 'granted', kind, seq, effective_from, effective_until, account, coalesce(receiver, ''), '', amount FROM granted`

type loadedRow struct {
	line    string
	kind    Kind
	seq     int64
	from    time.Time
	until   *time.Time
	account string
	other   string // parent or receiver
	user    string
	number  int64 // share or amount
}

// bound is an instant as the ledger can hold it.
func bound(i fairshare.Instant) time.Time {
	return max(min(i, fairshare.At(latest)), fairshare.At(earliest)).Time()
}

type memberKey struct{ account, user string }

// timelines are a cluster's entries by what they are about.
type timelines struct {
	opening          map[string][]dated[bool]
	parentage        map[string][]dated[string]
	shareholding     map[string][]dated[fairshare.Share]
	membership       map[memberKey][]dated[bool]
	userShareholding map[memberKey][]dated[fairshare.Share]
	granted          map[string][]fairshare.Grant
	grantedBy        []loadedRow
	refunded         map[string][]fairshare.Refund
	refundedBy       []loadedRow
}

func newTimelines() *timelines {
	return &timelines{
		opening:          map[string][]dated[bool]{},
		parentage:        map[string][]dated[string]{},
		shareholding:     map[string][]dated[fairshare.Share]{},
		membership:       map[memberKey][]dated[bool]{},
		userShareholding: map[memberKey][]dated[fairshare.Share]{},
		granted:          map[string][]fairshare.Grant{},
		refunded:         map[string][]fairshare.Refund{},
	}
}

func (t *timelines) add(r *loadedRow) error {
	key := memberKey{r.account, r.user}
	switch r.line {
	case "opening":
		t.opening[r.account] = append(t.opening[r.account], datedFrom(r, r.kind == AccountAdd))
	case "parentage":
		t.parentage[r.account] = append(t.parentage[r.account], datedFrom(r, r.other))
	case "shareholding":
		t.shareholding[r.account] = append(t.shareholding[r.account], datedFrom(r, fairshare.Share(r.number)))
	case "member": // both of the following
		t.membership[key] = append(t.membership[key], datedFrom(r, r.kind == UserAdd))
		t.userShareholding[key] = append(t.userShareholding[key], datedFrom(r, fairshare.Share(r.number)))
	case "membership":
		t.membership[key] = append(t.membership[key], datedFrom(r, r.kind == UserAdd))
	case "user_shareholding":
		t.userShareholding[key] = append(t.userShareholding[key], datedFrom(r, fairshare.Share(r.number)))
	case "granted":
		t.grantedBy = append(t.grantedBy, *r)
	case "refunded":
		t.refundedBy = append(t.refundedBy, *r)
	default:
		return fmt.Errorf("row of unknown timeline %q", r.line)
	}
	return nil
}

// budget puts the timelines together, cut to a window.
func (t *timelines) budget(w fairshare.Period) *fairshare.Budget {
	t.grant()
	t.refund()
	members := map[string][]fairshare.Member{}
	for _, key := range slices.SortedFunc(maps.Keys(t.membership), memberKey.compare) {
		if in := t.in(key, w); len(in) > 0 {
			members[key.account] = append(members[key.account], fairshare.Member{User: key.user, In: in})
		}
	}
	b := &fairshare.Budget{}
	names := append(slices.Collect(maps.Keys(t.opening)), fairshare.RootAccount)
	slices.Sort(names)
	for _, name := range names {
		a := fairshare.Account{Name: name, Grants: t.granted[name], Refunds: t.refunded[name], Users: members[name]}
		if name != fairshare.RootAccount {
			open := during(steps(t.opening[name]), true)
			a.Parent = within(steps(t.parentage[name]), open)
			a.Share = clip(within(steps(t.shareholding[name]), open), w)
		}
		b.Accounts = append(b.Accounts, a)
	}
	return b
}

// in is a user's share of an account while he is a member of it and it is open.
// Closing an account ends its memberships.
func (t *timelines) in(key memberKey, w fairshare.Period) []fairshare.Step[fairshare.Share] {
	entries := t.membership[key]
	for _, e := range t.opening[key.account] {
		if !e.value {
			entries = append(entries, e)
		}
	}
	in := within(steps(t.userShareholding[key]), during(steps(entries), true))
	if key.account != fairshare.RootAccount {
		in = within(in, during(steps(t.opening[key.account]), true))
	}
	return clip(in, w)
}

// grant books deposits and transfers, in the order of the ledger.
func (t *timelines) grant() {
	slices.SortFunc(t.grantedBy, func(x, y loadedRow) int { return cmp.Compare(x.seq, y.seq) })
	for i := range t.grantedBy {
		r := &t.grantedBy[i]
		period := datedFrom(r, struct{}{}).Period
		amount := fairshare.GPUMillis(r.number)
		if r.kind == Transfer {
			t.granted[r.other] = append(t.granted[r.other], fairshare.Grant{Period: period, Amount: amount})
			amount = -amount
		}
		t.granted[r.account] = append(t.granted[r.account], fairshare.Grant{Period: period, Amount: amount})
	}
}

// refund books refunds, in the order of the ledger. One of a run whose rate changed
// comes in pieces.
func (t *timelines) refund() {
	slices.SortFunc(t.refundedBy, func(x, y loadedRow) int { return cmp.Or(cmp.Compare(x.seq, y.seq), x.from.Compare(y.from)) })
	for i := range t.refundedBy {
		r := &t.refundedBy[i]
		period := datedFrom(r, struct{}{}).Period
		t.refunded[r.account] = append(t.refunded[r.account], fairshare.Refund{Period: period, User: r.user, Amount: fairshare.GPUMillis(r.number)})
	}
}

func (k memberKey) compare(other memberKey) int {
	return cmp.Or(cmp.Compare(k.account, other.account), cmp.Compare(k.user, other.user))
}
