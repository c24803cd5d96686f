// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

// Workload is jobs to run. Times are in seconds since Begin.
type Workload struct {
	Name   string
	Begin  time.Time
	Jobs   []Job // in the order of Submit
	Owners []Owner
	// Outstanding is by owner how many GPUs he asks for at once at most; what he
	// would submit beyond that he keeps until there is room. Debug jobs and those
	// that declare to be unallocated don't count. nil or 0 is no limit.
	Outstanding []int
	// Notes say what isn't in the source and was made up.
	Notes []string
}

// Owner is a user in an account.
type Owner struct {
	Account, User string
}

// Job is one job.
type Job struct {
	Submit int64
	Run    int64 // for how long it runs if it is left alone
	Limit  int64 // its time limit
	// MinRuntime is for how long it asks to be protected: 0 makes it
	// unallocated; Undeclared leaves it to the policy.
	MinRuntime int64
	Line       int32 // where it stands in its source; 0 if nowhere
	Owner      int32 // index in Workload.Owners
	GPUs       int32
	QOS        uint32 // priority declared within the account; higher is sooner
	Partition  int16  // index in Cluster.Partitions
	Debug      bool   // somebody sits and waits for it
	Queued     bool   // it waits in the real queue now
	// GPUsColumn, AccountColumn and PartitionColumn are where in its line the source
	// says how many GPUs, whose it is and where it runs; 0 if that isn't known.
	GPUsColumn, AccountColumn, PartitionColumn int32
}

// Undeclared is the MinRuntime of a job that declares none.
const Undeclared = -1

// MisfitError is a job that cannot run.
type MisfitError struct {
	Job          int    // index in Workload.Jobs
	Line, Column int    // of its source, 0 if it has none or that isn't known
	Kind         string // what is wrong with it, the same for jobs that are alike
	Why          string
}

func (m *MisfitError) Error() string {
	switch {
	case m.Line > 0 && m.Column > 0:
		return fmt.Sprintf("line %d, column %d: %s", m.Line, m.Column, m.Why)
	case m.Line > 0:
		return fmt.Sprintf("line %d: %s", m.Line, m.Why)
	}
	return fmt.Sprintf("job %d: %s", m.Job, m.Why)
}

// Misfits are the jobs that cannot run on a cluster or for which nobody can be
// charged, in order.
func (w *Workload) Misfits(c *Cluster, b *fairshare.Budget) []*MisfitError {
	strangers := w.strangers(b)
	var misfits []*MisfitError
	for i := range w.Jobs {
		if m := w.misfit(&w.Jobs[i], c, strangers); m != nil {
			m.Job, m.Line = i, int(w.Jobs[i].Line)
			misfits = append(misfits, m)
		}
	}
	return misfits
}

// strangers is by owner what is wrong with his account, "" if nothing is.
func (w *Workload) strangers(b *fairshare.Budget) []string {
	known := make(map[string]bool)
	var names []string
	for i := range b.Accounts {
		name := b.Accounts[i].Name
		known[name] = true
		if name != fairshare.RootAccount {
			names = append(names, name)
		}
	}
	strangers := make([]string, len(w.Owners))
	for i, o := range w.Owners {
		if !known[o.Account] {
			strangers[i] = fmt.Sprintf("account %q is not in the budget: %s", o.Account, expected(o.Account, names))
		}
	}
	return strangers
}

// mostNames is how many names an error lists.
const mostNames = 8

// expected tells which name was meant, or which there are.
func expected(name string, names []string) string {
	if near := nearest.Word(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	more := len(names) - mostNames
	switch {
	case len(names) == 0:
		return "there is none in it"
	case more > 0:
		return fmt.Sprintf("expected one of %s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return "expected one of " + strings.Join(names, ", ")
}

// misfit is what is wrong with a job, nil if nothing is.
func (w *Workload) misfit(j *Job, c *Cluster, strangers []string) *MisfitError {
	if int(j.Partition) >= len(c.Partitions) || j.Partition < 0 {
		return &MisfitError{Column: int(j.PartitionColumn), Kind: "an unknown partition", Why: fmt.Sprintf("partition %d is not on the cluster", j.Partition)}
	}
	p := &c.Partitions[j.Partition]
	where := "the cluster"
	if p.Name != "" {
		where = "partition " + p.Name
	}
	switch most := p.Nodes * p.GPUsPerNode; {
	case j.GPUs < 1 || int(j.GPUs) > most:
		return &MisfitError{
			Column: int(j.GPUsColumn), Kind: "more GPUs than there are",
			Why: fmt.Sprintf("it asks for %d GPUs: expected 1 to %d, as many as %s has", j.GPUs, most, where),
		}
	case strangers[j.Owner] != "":
		return &MisfitError{Column: int(j.AccountColumn), Kind: "an account that is not in the budget", Why: strangers[j.Owner]}
	case j.Run < 0 || j.Limit < 1:
		return &MisfitError{Kind: "an impossible run time", Why: fmt.Sprintf("it runs for %d s of at most %d", j.Run, j.Limit)}
	}
	return nil
}

// Without leaves jobs out.
func (w *Workload) Without(misfits []*MisfitError) {
	next := 0
	kept := w.Jobs[:0]
	for i := range w.Jobs {
		if next < len(misfits) && misfits[next].Job == i {
			next++
			continue
		}
		kept = append(kept, w.Jobs[i])
	}
	w.Jobs = kept
}

// Sort puts the jobs in the order of their submission; what is submitted in one
// second keeps its order.
func (w *Workload) Sort() {
	type place struct {
		submit int64
		job    int32
	}
	places := make([]place, len(w.Jobs))
	sorted := true
	for i := range w.Jobs {
		places[i] = place{w.Jobs[i].Submit, int32(i)}
		sorted = sorted && (i == 0 || w.Jobs[i-1].Submit <= w.Jobs[i].Submit)
	}
	if sorted {
		return
	}
	slices.SortFunc(places, func(x, y place) int {
		if x.submit != y.submit {
			return cmp.Compare(x.submit, y.submit)
		}
		return int(x.job - y.job)
	})
	jobs := make([]Job, len(w.Jobs))
	for i, p := range places {
		jobs[i] = w.Jobs[p.job]
	}
	w.Jobs = jobs
}

// Span is the second of the last submission.
func (w *Workload) Span() int64 {
	if len(w.Jobs) == 0 {
		return 0
	}
	return w.Jobs[len(w.Jobs)-1].Submit
}

// Load is the GPU time that the jobs ask for as a part of what so many GPUs have
// between the first submission and the last.
func (w *Workload) Load(gpus int) float64 {
	var asked float64
	for i := range w.Jobs {
		asked += float64(w.Jobs[i].GPUs) * float64(min(w.Jobs[i].Run, w.Jobs[i].Limit))
	}
	if len(w.Jobs) == 0 || w.Span() == w.Jobs[0].Submit {
		return 0
	}
	return asked / float64(gpus) / float64(w.Span()-w.Jobs[0].Submit)
}

// EqualBudget splits the cluster equally among the accounts of a workload, and
// each account equally among its users.
func (w *Workload) EqualBudget() *fairshare.Budget {
	users := make(map[string][]fairshare.Member)
	for _, o := range w.Owners {
		users[o.Account] = append(users[o.Account], fairshare.Member{User: o.User, In: Always(fairshare.EqualPart)})
	}
	b := &fairshare.Budget{}
	for account, members := range users {
		slices.SortFunc(members, func(x, y fairshare.Member) int { return cmp.Compare(x.User, y.User) })
		b.Accounts = append(b.Accounts, fairshare.Account{
			Name: account, Parent: Always(fairshare.RootAccount),
			Share: Always(fairshare.Whole / fairshare.Share(len(users))), Users: members,
		})
	}
	slices.SortFunc(b.Accounts, func(x, y fairshare.Account) int { return cmp.Compare(x.Name, y.Name) })
	return b
}

// Always is a value that holds at all times.
func Always[T any](value T) []fairshare.Step[T] {
	return []fairshare.Step[T]{{Period: fairshare.Period{From: fairshare.Always, Until: fairshare.Never}, Value: value}}
}

// WithShare is a budget in which an account has another share. If its siblings
// have more than the rest, what is short is taken from all of them in proportion.
func WithShare(b *fairshare.Budget, account string, share fairshare.Share) (*fairshare.Budget, error) {
	changed := &fairshare.Budget{Accounts: slices.Clone(b.Accounts), Capacity: b.Capacity}
	at := slices.IndexFunc(changed.Accounts, func(a fairshare.Account) bool { return a.Name == account })
	if at < 0 || account == fairshare.RootAccount {
		return nil, fmt.Errorf("account %q is not in the budget", account)
	}
	parent := changed.Accounts[at].Parent[0].Value
	var others fairshare.Share
	for i := range changed.Accounts {
		if a := &changed.Accounts[i]; i != at && len(a.Parent) > 0 && a.Parent[0].Value == parent {
			others += a.Share[0].Value
		}
	}
	left := fairshare.Whole - share
	for i := range changed.Accounts {
		a := &changed.Accounts[i]
		switch {
		case i == at:
			a.Share = Always(share)
		case others > left && len(a.Parent) > 0 && a.Parent[0].Value == parent:
			a.Share = Always(fairshare.Share(float64(a.Share[0].Value) / float64(others) * float64(left)))
		}
	}
	return changed, nil
}
