// SPDX-License-Identifier: GPL-2.0-or-later

package report

import (
	"cmp"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// maxBuckets bounds the number of buckets that delivery is measured in: for a
// policy of seconds over weeks they are made longer.
const maxBuckets = 5000

// fill works out the rows.
func (r *Report) fill(rec *Record) {
	in := rec.Input()
	_, free := usage.Charges(rec.Open, r.UsedUntil)
	free = slices.Concat(rec.Free, free)

	b := builder{report: r, queue: rec.Queue, guests: map[string][]string{}}
	in.Budget = b.invite(in.Budget, in.Charges, free)
	b.ranking = fairshare.Rank(in)
	b.deliveries = fairshare.Deliver(fairshare.DeliveryInput{
		Budget: in.Budget, Window: r.Window, Bucket: bucketFor(r.Window, r.Policy.Bucket),
		Charges: in.Charges, Unallocated: free, Demand: rec.Demand,
	})
	b.charged = in.Budget.Usage(r.Window, in.Charges)
	b.free = in.Budget.Usage(r.Window, free)
	b.tree()
	b.closed()
	b.rest()
}

// bucketFor is the length of the buckets in which delivery is measured.
func bucketFor(w fairshare.Period, length time.Duration) time.Duration {
	for w.Millis()/length.Milliseconds() > maxBuckets {
		length *= 2
	}
	return length
}

// builder makes a report's rows.
type builder struct {
	report     *Report
	ranking    *fairshare.Ranking
	deliveries []fairshare.Delivery
	charged    *fairshare.Usage
	free       *fairshare.Usage
	queue      []usage.Queue
	guests     map[string][]string // of each account of the ledger, by name: see invite
}

type userKey struct{ account, user string }

// invite adds to the budget's accounts those users of theirs that it doesn't
// list, as members who never were any: the budget says nothing else, and they
// get a figure of their own. The budget that is given stays as it is.
func (b *builder) invite(budget *fairshare.Budget, charges ...[]fairshare.Charge) *fairshare.Budget {
	met := map[userKey]bool{}
	for _, c := range slices.Concat(charges...) {
		met[userKey{c.Account, c.User}] = true
	}
	for _, q := range b.queue {
		met[userKey{q.Account, q.User}] = true
	}
	for key := range met {
		b.guests[key.account] = append(b.guests[key.account], key.user)
	}
	out := *budget
	out.Accounts = slices.Clone(budget.Accounts)
	for i := range out.Accounts {
		a := &out.Accounts[i]
		users := b.guests[a.Name]
		slices.Sort(users)
		listed := func(user string) bool {
			return slices.ContainsFunc(a.Users, func(m fairshare.Member) bool { return m.User == user })
		}
		a.Users = slices.Clone(a.Users)
		for _, user := range users {
			if !listed(user) {
				a.Users = append(a.Users, fairshare.Member{User: user})
			}
		}
	}
	return &out
}

// tree adds the rows of the accounts in the tree and their users.
func (b *builder) tree() {
	queue := b.queueOfTree()
	delivery := b.byAccount()
	users := b.ranking.Users
	for _, a := range b.ranking.Accounts {
		row := Row{
			Account: a.Name, Parent: a.Parent, Depth: a.Depth,
			Share: a.Share, ShareOfCluster: a.ShareOfCluster, Entitled: a.Entitled, Used: a.Used,
			LevelFS: a.LevelFS, Factor: a.Factor, Rank: a.Rank, Funded: a.Funded,
		}
		row.deliver(delivery[a.Name])
		row.queue(queue[userKey{account: a.Name}])
		b.add(row)
		n := slices.IndexFunc(users, func(u fairshare.UserStanding) bool { return u.Account != a.Name })
		if n < 0 {
			n = len(users)
		}
		b.users(a, users[:n], queue)
		users = users[n:]
	}
}

// users adds the rows of an account's members and guests, by name.
func (b *builder) users(a fairshare.AccountStanding, members []fairshare.UserStanding, queue map[userKey]usage.Queue) {
	var rows []Row
	for _, u := range members {
		rows = append(rows, Row{
			User: u.User, Share: u.Share, EqualPart: u.EqualPart, ShareOfCluster: u.ShareOfCluster,
			Entitled: u.Entitled, LevelFS: u.LevelFS, Factor: u.Factor, Rank: u.Rank,
		})
	}
	for _, guest := range b.guests[a.Name] {
		if _, member := b.ranking.User(a.Name, guest); !member {
			rows = append(rows, Row{User: guest, Place: Guest, Factor: a.Factor})
		}
	}
	slices.SortFunc(rows, func(x, y Row) int { return cmp.Compare(x.User, y.User) })
	for _, row := range rows {
		row.Account, row.Parent, row.Depth = a.Name, a.Name, a.Depth+1
		b.measure(&row)
		row.queue(queue[userKey{a.Name, row.User}])
		if row.Place == InTree || !row.idle() {
			b.add(row)
		}
	}
}

// closed adds the accounts that the ledger has and the tree no longer.
func (b *builder) closed() {
	for _, d := range b.deliveries {
		if _, open := b.ranking.Account(d.Account); open {
			continue
		}
		row := Row{Account: d.Account, Place: Closed, Entitled: d.Entitled, Used: d.Delivered}
		row.deliver(d)
		for _, q := range b.queue {
			if q.Account == d.Account {
				row.queue(q)
			}
		}
		b.add(row)
		for _, user := range b.guests[d.Account] {
			row := Row{Account: d.Account, User: user, Parent: d.Account, Depth: 1, Place: Closed}
			b.measure(&row)
			row.queue(b.queued(d.Account, user))
			b.add(row)
		}
	}
}

// rest adds what stands nowhere in the tree.
func (b *builder) rest() {
	used := map[userKey]Row{}
	at := func(account, user string, change func(*Row)) {
		keys := []userKey{{account, ""}, {account, user}}
		for _, key := range slices.Compact(keys) {
			row, met := used[key]
			if !met {
				row = Row{Account: key.account, User: key.user, Place: Unbudgeted}
			}
			change(&row)
			used[key] = row
		}
	}
	for _, c := range b.charged.Unbudgeted {
		at(c.Account, c.User, func(r *Row) { r.Used += c.Amount; r.Delivered += c.Amount })
	}
	for _, c := range b.free.Unbudgeted {
		at(c.Account, c.User, func(r *Row) { r.Unallocated += c.Amount })
	}
	for _, q := range b.queue {
		if !b.hasRow(q.Account) {
			at(q.Account, q.User, func(r *Row) { r.queue(q) })
		}
	}
	rows := make([]Row, 0, len(used))
	for key, row := range used {
		if key.user != "" {
			row.Parent, row.Depth = key.account, 1
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User))
	})
	b.report.Rows = append(b.report.Rows, rows...)
}

// hasRow tells whether an account has a row already.
func (b *builder) hasRow(account string) bool {
	_, ok := b.report.Account(account)
	return ok
}

func (b *builder) add(row Row) { b.report.Rows = append(b.report.Rows, row) }

// measure sets what a user used.
func (b *builder) measure(row *Row) {
	row.Used = b.charged.User(row.Account, row.User)
	row.Delivered = row.Used
	row.Unallocated = b.free.User(row.Account, row.User)
}

func (r *Row) deliver(d fairshare.Delivery) {
	r.Owed, r.Delivered, r.Capped, r.Unallocated = d.Owed, d.Delivered, d.Capped, d.Unallocated
}

func (r *Row) queue(q usage.Queue) {
	r.PendingJobs += q.PendingJobs
	r.PendingGPUs += q.PendingGPUs
	r.RunningJobs += q.RunningJobs
	r.RunningGPUs += q.RunningGPUs
}

func (r *Row) idle() bool {
	return r.Used == 0 && r.Unallocated == 0 && r.PendingJobs == 0 && r.RunningJobs == 0
}

func (b *builder) byAccount() map[string]fairshare.Delivery {
	m := make(map[string]fairshare.Delivery, len(b.deliveries))
	for _, d := range b.deliveries {
		m[d.Account] = d
	}
	return m
}

func (b *builder) queued(account, user string) usage.Queue {
	for _, q := range b.queue {
		if q.Account == account && q.User == user {
			return q
		}
	}
	return usage.Queue{}
}

// queueOfTree is the queue by user, and by account with all accounts below it,
// under an empty user name.
func (b *builder) queueOfTree() map[userKey]usage.Queue {
	m := map[userKey]usage.Queue{}
	put := func(key userKey, q usage.Queue) {
		sum := m[key]
		sum.PendingJobs += q.PendingJobs
		sum.PendingGPUs += q.PendingGPUs
		sum.RunningJobs += q.RunningJobs
		sum.RunningGPUs += q.RunningGPUs
		m[key] = sum
	}
	for _, q := range b.queue {
		put(userKey{q.Account, q.User}, q)
		for a, ok := b.ranking.Account(q.Account); ok; a, ok = b.ranking.Account(a.Parent) {
			put(userKey{account: a.Name}, q)
		}
	}
	return m
}
