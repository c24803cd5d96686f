// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// Input is what a ranking is made from.
type Input struct {
	Budget *Budget
	Window Period // the lookback window; the ranking holds as of its end
	// Charges is the allocated time: closed runs, and running jobs up to now.
	Charges []Charge
	// Ahead is counted in the level fair share only, whole, whatever its
	// period: what running jobs are about to use, so that a burst of starts is
	// felt before it has been used.
	Ahead []Charge
}

// Ranking is who is how far from what he is due. It is not changed after it
// was made and can be read from several goroutines.
type Ranking struct {
	Window     Period
	Accounts   []AccountStanding // depth first, siblings by name; the first is root
	Users      []UserStanding    // in the order of Accounts, then by name
	Unbudgeted []Charge          // see Usage.Unbudgeted; nothing of Ahead

	seating  *seating
	parents  []int // by account: index of its parent; that of root is of no use
	accounts map[string]int
	users    map[memberKey]int
	homes    map[string]string
}

// Seat is where a user of an account is in Rankings, for who looks him up again
// and again: what is alike in all Rankings of a Ranker while the budget stays as
// it is. The zero Seat is of an account that isn't known.
type Seat struct{ account, user int32 } // from 1; 0 for none

// seating is what Rankings of the same seats have in common: the pointer.
type seating struct{ _ byte }

// AccountStanding is how an account stands.
type AccountStanding struct {
	Name, Parent   string
	Depth          int     // 0 for root
	Share          Share   // of the parent, now
	ShareOfCluster float64 // now, 0 to 1
	Entitled, Used GPUMillis
	Load           GPUMillis // Used, and what is charged ahead: what LevelFS goes by
	// LevelFS compares it to its siblings, child accounts and users of its
	// parent: 0 to +Inf, above 1 if under-served.
	LevelFS float64
	// Rank places the account's own users, as one, among those of all
	// accounts: 1 is the most under-served, equals share a rank. It is 0 if the
	// account has child accounts but no users.
	Rank int
	// Direct is its own users as one, among its child accounts.
	Direct Pool
	// Funded: something flows to the account in the window or does so now, and it
	// isn't Spent.
	Funded bool
	// Spent: no share brings it anything now, and all that it was due in the window
	// and that grants in force still bring is used.
	Spent bool
	// Factor is the fair-share factor of a user whom the budget doesn't list in
	// this account: the lowest of its members', that of the account itself if
	// it has neither users nor child accounts, 0 if it has child accounts only.
	Factor float64
}

// Pool is the direct users of an account as one, former members and guests
// included. It is empty if the account has no members.
type Pool struct {
	Members        int // now
	Entitled, Used GPUMillis
	Load           GPUMillis // as in AccountStanding
	LevelFS        float64   // as in AccountStanding; what Rank goes by
}

// UserStanding is how a user stands in one of his accounts.
type UserStanding struct {
	Account, User  string
	Share          Share   // of the account, now; for an equal part what it comes to
	EqualPart      bool    // no share of his own
	ShareOfCluster float64 // now, 0 to 1
	Entitled, Used GPUMillis
	LevelFS        float64 // as in AccountStanding
	Factor         float64 // (number of users - Rank + 1) / number of users, in (0,1]
	Rank           int     // 1 is the most under-served; equals share a rank
	Level          int     // order of LevelFS within the account: 0 is the most under-served, no gaps
}

// Account is the standing of an account; ok is false if it's not in the tree.
func (r *Ranking) Account(name string) (s *AccountStanding, ok bool) {
	i, ok := r.accounts[name]
	if !ok {
		return nil, false
	}
	return &r.Accounts[i], true
}

// User is the standing of a user in an account; ok is false if he's no member.
func (r *Ranking) User(account, user string) (s *UserStanding, ok bool) {
	i, ok := r.users[memberKey{account, user}]
	if !ok {
		return nil, false
	}
	return &r.Users[i], true
}

// Seat finds the seat of a user in an account; a user who is no member, or "",
// has that of the account's guests.
func (r *Ranking) Seat(account, user string) (s Seat) {
	if i, ok := r.accounts[account]; ok {
		s.account = int32(i) + 1
	}
	if i, ok := r.users[memberKey{account, user}]; ok {
		s.user = int32(i) + 1
	}
	return s
}

// Seats tells whether the seats of another Ranking are those of r.
func (r *Ranking) Seats(of *Ranking) bool {
	return of != nil && r.seating != nil && r.seating == of.seating
}

// At are the standings at a seat; nil where there is none.
func (r *Ranking) At(s Seat) (account *AccountStanding, user *UserStanding) {
	if s.account > 0 {
		account = &r.Accounts[s.account-1]
	}
	if s.user > 0 {
		user = &r.Users[s.user-1]
	}
	return account, user
}

// DefaultAccount is the account of a job that names none: the user's first by
// name. ok is false if he has none.
func (r *Ranking) DefaultAccount(user string) (account string, ok bool) {
	account, ok = r.homes[user]
	return account, ok
}

// Rank ranks all accounts and users as of the end of the window, which the
// budget must cover, its end included.
//
// Users are ranked by the Fair Tree algorithm (Cox and Morrison, Slurm 14.11),
// see fairTree. Accounts are ranked by the same algorithm with the direct
// users of each account pooled into one.
func Rank(in Input) *Ranking {
	k := newRanker(in.Budget)
	k.Begin(in.Window, in.Budget.Capacity)
	for i := range in.Charges {
		c := &in.Charges[i]
		k.Charge(k.Owner(c.Account, c.User), c.Period, c.Amount)
	}
	for i := range in.Ahead {
		c := &in.Ahead[i]
		k.Ahead(k.Owner(c.Account, c.User), c.Amount)
	}
	return k.Rank()
}
