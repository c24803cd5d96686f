// SPDX-License-Identifier: GPL-2.0-or-later

package report

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

// maxBuckets bounds the number of buckets that delivery is measured in: for a
// policy of seconds over weeks they are made longer.
const maxBuckets = 5000

// fill works out the rows.
func (r *Report) fill(rec *Record) *builder {
	in := rec.Input()
	_, free := usage.Charges(rec.Open, r.UsedUntil)
	free = slices.Concat(rec.Free, free)

	b := &builder{report: r, queue: rec.Queue, people: map[string][]string{}}
	in.Budget = b.invite(in.Budget, in.Charges, free)
	b.ranking = fairshare.Rank(in)
	b.deliveries = fairshare.Deliver(fairshare.DeliveryInput{
		Budget: in.Budget, Window: r.Window, Bucket: bucketFor(r.Window, r.Policy.Bucket),
		Charges: in.Charges, Unallocated: free, Demand: rec.Demand,
	})
	b.due = in.Budget.Entitlements(r.Window)
	b.parents = in.Budget.LastParents(r.Window.Until)
	b.charged = in.Budget.Usage(r.Window, in.Charges)
	b.free = in.Budget.Usage(r.Window, free)
	queue := b.queueOfTree()
	b.tree(queue)
	b.closed(queue)
	b.rest()
	return b
}

// meter adds what was metered.
func (b *builder) meter(sums []metered.Sum) {
	rows := b.rowsByOwner()
	for i := range sums {
		b.upwards(rows, sums[i].Account, sums[i].User, func(r *Row) { r.Metered.Add(&sums[i]) })
	}
}

// why adds why what is not charged is not.
func (b *builder) why(sums []usage.UnallocatedSum) {
	rows := b.rowsByOwner()
	for i := range sums {
		b.upwards(rows, sums[i].Account, sums[i].User, func(r *Row) {
			r.NoMinRuntime += sums[i].NoMinRuntime
			r.NoBudget += sums[i].NoBudget
		})
	}
}

func (b *builder) rowsByOwner() map[userKey]*Row {
	rows := make(map[userKey]*Row, len(b.report.Rows))
	for i := range b.report.Rows {
		row := &b.report.Rows[i]
		rows[userKey{row.Account, row.User}] = row
	}
	return rows
}

// upwards adds something to the user's row, to his account's and to those of the
// accounts above it. What is of a closed account counts where that stood last.
func (b *builder) upwards(rows map[userKey]*Row, account, user string, add func(*Row)) {
	at := func(key userKey) {
		if row := rows[key]; row != nil {
			add(row)
		}
	}
	if user != "" {
		at(userKey{account, user})
	}
	at(userKey{account: account})
	met := map[string]bool{account: true}
	for parent := b.parents[account]; parent != "" && !met[parent]; parent = b.parents[parent] {
		met[parent] = true
		at(userKey{account: parent})
	}
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
	due        *fairshare.Entitlements
	charged    *fairshare.Usage
	free       *fairshare.Usage
	queue      []usage.Queue
	parents    map[string]string   // of accounts of the ledger, closed ones too
	people     map[string][]string // of each account of the ledger, by name: members, former ones and guests
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
	guests := map[string][]string{}
	for key := range met {
		guests[key.account] = append(guests[key.account], key.user)
	}
	out := *budget
	out.Accounts = slices.Clone(budget.Accounts)
	for i := range out.Accounts {
		a := &out.Accounts[i]
		listed := func(user string) bool {
			return slices.ContainsFunc(a.Users, func(m fairshare.Member) bool { return m.User == user })
		}
		a.Users = slices.Clone(a.Users)
		for _, user := range guests[a.Name] {
			if !listed(user) {
				a.Users = append(a.Users, fairshare.Member{User: user})
			}
		}
		for _, m := range a.Users {
			b.people[a.Name] = append(b.people[a.Name], m.User)
		}
		slices.Sort(b.people[a.Name])
	}
	return &out
}

// tree adds the rows of the accounts in the tree and their users.
func (b *builder) tree(queue map[userKey]usage.Queue) {
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

// users adds the rows of an account's members and, if there is anything to tell
// of them, of guests and former members, by name.
func (b *builder) users(a fairshare.AccountStanding, members []fairshare.UserStanding, queue map[userKey]usage.Queue) {
	var rows []Row
	for _, u := range members {
		rows = append(rows, Row{
			User: u.User, Share: u.Share, EqualPart: u.EqualPart, ShareOfCluster: u.ShareOfCluster,
			Entitled: u.Entitled, LevelFS: u.LevelFS, Factor: u.Factor, Rank: u.Rank,
		})
	}
	for _, guest := range b.people[a.Name] {
		if _, member := b.ranking.User(a.Name, guest); !member {
			rows = append(rows, Row{User: guest, Place: Guest, Factor: a.Factor, Entitled: b.due.User(a.Name, guest)})
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

// closed adds the accounts that the ledger has and the tree no longer, if there
// is anything to tell of them.
func (b *builder) closed(queue map[userKey]usage.Queue) {
	delivery := b.byAccount()
	names := maps.Clone(b.parents)
	for name := range delivery {
		names[name] = ""
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if _, open := b.ranking.Account(name); open {
			continue
		}
		row := Row{Account: name, Place: Closed, Entitled: b.due.Account(name), Used: b.charged.Account(name)}
		row.deliver(delivery[name])
		row.queue(queue[userKey{account: name}])
		if row.idle() {
			continue
		}
		b.add(row)
		for _, user := range b.people[name] {
			row := Row{Account: name, User: user, Parent: name, Depth: 1, Place: Closed, Entitled: b.due.User(name, user)}
			b.measure(&row)
			row.queue(queue[userKey{name, user}])
			if !row.idle() {
				b.add(row)
			}
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
	return r.Entitled == 0 && r.Used == 0 && r.Unallocated == 0 && r.PendingJobs == 0 && r.RunningJobs == 0
}

func (b *builder) byAccount() map[string]fairshare.Delivery {
	m := make(map[string]fairshare.Delivery, len(b.deliveries))
	for _, d := range b.deliveries {
		m[d.Account] = d
	}
	return m
}

// queueOfTree is the queue by user, and by account with all accounts below it,
// under an empty user name. What waits or runs in a closed account counts where
// that stood last, as what it uses does.
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
		name := q.Account
		for parent, in := b.parents[name]; in; parent, in = b.parents[name] {
			put(userKey{account: name}, q)
			name = parent
		}
	}
	return m
}
