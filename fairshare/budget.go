// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// RootAccount is the name of the account above all others, as in Slurm. It
// always exists and holds the whole cluster.
const RootAccount = "root"

// Share is a fraction of the parent's GPU time, in billionths.
type Share int64

const (
	// Whole is all of the parent's GPU time.
	Whole Share = 1_000_000_000
	// EqualPart marks a user who has no share of his own: such users of one
	// account split equally what its child accounts and the users with a share
	// of their own leave.
	EqualPart Share = -1
)

// Step is a value in force during a period. A timeline is a slice of steps,
// ascending and not overlapping; where no step lies, there is no value.
type Step[T any] struct {
	Period
	Value T
}

// Budget is what a ledger says about one cluster: who stands under whom and
// what each is due, over time. It must cover the window it is evaluated over
// and the instant at which the window ends: a step that is in force then must
// go on beyond it.
type Budget struct {
	Accounts []Account         // any order; names are unique
	Capacity []Step[MilliGPUs] // schedulable GPUs; a gap is a time without any
}

// Account is one node of the tree. An account exists while Parent has a value;
// root has none and exists always.
type Account struct {
	Name    string
	Parent  []Step[string]
	Share   []Step[Share]
	Grants  []Grant
	Refunds []Refund
	Users   []Member
}

// Member is a user's membership in an account. The user is a member while In
// has a value: his share of the account, or EqualPart.
type Member struct {
	User string
	In   []Step[Share]
}

// Grant is GPU time given to an account (a deposit, or the receiving end of a
// transfer) or taken from it (the giving end, a negative amount). It is spread
// evenly over its period.
type Grant struct {
	Period
	Amount GPUMillis
}

// Refund is GPU time that a user of the account was charged within a period and
// that is given back to him: a node failed, say, and the work was lost. It is
// spread evenly over the period, as the charge is, so that in any window the two
// cancel out, as if the time had never been charged.
type Refund struct {
	Period
	User   string
	Amount GPUMillis
}

// Refunds are the refunds of all accounts as charges, with negative amounts: for
// whoever sums up what was charged. They come in the order of the accounts and
// their refunds.
func (b *Budget) Refunds() []Charge {
	var refunds []Charge
	for i := range b.Accounts {
		for _, r := range b.Accounts[i].Refunds {
			refunds = append(refunds, Charge{Period: r.Period, Account: b.Accounts[i].Name, User: r.User, Amount: -r.Amount})
		}
	}
	return refunds
}

// Charge is GPU time charged to a user of an account within a period. A window
// that cuts the period counts the part of the amount that lies within.
type Charge struct {
	Period
	Account, User string
	Amount        GPUMillis
}

// In is the part of the charge that lies in w. The parts in periods that follow
// each other add up exactly.
func (c *Charge) In(w Period) GPUMillis { return portion(c.Amount, c.Period, w) }
