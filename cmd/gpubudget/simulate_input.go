// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
	"gpubudget/internal/nearest"
	"gpubudget/simulate"
	"gpubudget/simulate/trace"
)

// scene reads what is to be simulated.
func (p *program) scene(c *cli.Context) (*scene, error) {
	s := &scene{}
	var partitions []string
	var err error
	if s.cluster, err = readCluster(c); err != nil {
		return nil, err
	}
	switch {
	case c.IsSet(optTrace) && c.IsSet(optRecorded):
		return nil, misuse(c, "--%s and --%s are two sources of jobs: give one", optTrace, optRecorded)
	case c.IsSet(optTrace):
		partitions, err = p.readTrace(c, s)
	case c.IsSet(optRecorded):
		partitions, err = p.readRecorded(c, s)
	default:
		err = generate(c, s)
	}
	if err != nil {
		return nil, err
	}
	if err := p.readBudget(c, s); err != nil {
		return nil, err
	}
	if err := addGrants(c, s); err != nil {
		return nil, err
	}
	matchPartitions(s, partitions)
	if err := checkJobs(c, s); err != nil {
		return nil, err
	}
	s.until, err = until(c, s)
	return s, err
}

// readCluster reads --nodes, --outage and --drain.
func readCluster(c *cli.Context) (simulate.Cluster, error) {
	var cluster simulate.Cluster
	for text := range strings.SplitSeq(c.String(optNodes), ",") {
		part, err := readPartition(text)
		if err != nil {
			return cluster, misuse(c, "--%s: %w", optNodes, err)
		}
		if part.Name != "" && slices.ContainsFunc(cluster.Partitions, func(p simulate.Partition) bool { return strings.EqualFold(p.Name, part.Name) }) {
			return cluster, misuse(c, "--%s: partition %q is there twice", optNodes, part.Name)
		}
		cluster.Partitions = append(cluster.Partitions, part)
	}
	for _, drain := range []bool{false, true} {
		option := optOutage
		if drain {
			option = optDrain
		}
		for _, text := range c.StringSlice(option) {
			o, err := readOutage(text)
			if err != nil {
				return cluster, misuse(c, "--%s: %w", option, err)
			}
			if o.Node >= cluster.Nodes() {
				return cluster, misuse(c, "--%s: %q: the nodes are 0 to %d", option, text, cluster.Nodes()-1)
			}
			o.Drain = drain
			cluster.Outages = append(cluster.Outages, o)
		}
	}
	return cluster, nil
}

// readPartition reads NxGPUS or PARTITION=NxGPUS.
func readPartition(text string) (simulate.Partition, error) {
	name, size, named := strings.Cut(text, "=")
	if !named {
		name, size = "", text
	}
	nodes, gpus, ok := strings.Cut(strings.ToLower(strings.TrimSpace(size)), "x")
	n, err1 := strconv.Atoi(nodes)
	g, err2 := strconv.Atoi(gpus)
	if !ok || err1 != nil || err2 != nil || n < 1 || g < 1 || n > 1<<20 || g > 1024 {
		return simulate.Partition{}, fmt.Errorf("%q is no number of nodes: write 64x8 for 64 nodes with 8 GPUs each, or h100=64x8", text)
	}
	return simulate.Partition{Name: strings.TrimSpace(name), Nodes: n, GPUsPerNode: g}, nil
}

func readOutage(text string) (simulate.Outage, error) {
	var o simulate.Outage
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return o, fmt.Errorf("%q must be NODE:FROM:UNTIL, as in 3:2d:2d12h", text)
	}
	node, err := strconv.Atoi(parts[0])
	if err != nil || node < 0 {
		return o, fmt.Errorf("%q: %q is no node: they are counted from 0", text, parts[0])
	}
	from, err := readDuration(parts[1])
	if err != nil {
		return o, err
	}
	until, err := readDuration(parts[2])
	if err != nil {
		return o, err
	}
	if until <= from {
		return o, fmt.Errorf("%q ends before it begins", text)
	}
	return simulate.Outage{Node: node, From: int64(from / time.Second), Until: int64(until / time.Second)}, nil
}

// readDuration reads a duration such as 7d, 36h, 1d12h or 90s.
func readDuration(text string) (time.Duration, error) {
	rest, days := strings.TrimSpace(text), int64(0)
	wrong := fmt.Errorf("%q is no duration: write 7d, 12h, 90m or 30s", text)
	if before, after, found := strings.Cut(rest, "d"); found {
		n, err := strconv.ParseInt(before, 10, 16)
		if err != nil || n < 0 {
			return 0, wrong
		}
		rest, days = after, n
	}
	d := time.Duration(days) * day
	if rest == "" {
		if text == "" {
			return 0, wrong
		}
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 || more > 36_600*day {
		return 0, wrong
	}
	return d + more, nil
}

// generate makes jobs up.
func generate(c *cli.Context, s *scene) error {
	g := simulate.DefaultGenerator()
	g.Seed, g.GPUs, g.Days, g.Accounts = c.Uint64(optSeed), s.cluster.GPUs(), c.Int(optDays), c.Int(optTeams)
	g.Load, g.Demand, g.Jobs, g.LargestJob = c.Float64(optLoad), c.Float64(optDemand), c.Int(optJobs), c.Int(optLargest)
	g.Debug, g.Unallocated = c.Float64(optDebugPart), c.Float64(optUnallocatedPart)
	if !c.IsSet(optLargest) {
		g.LargestJob = min(g.LargestJob, g.GPUs)
	}
	if c.Int(optUsers) != 0 {
		g.Users = c.Int(optUsers)
	}
	var err error
	s.workload, s.budget, err = g.Generate()
	return err
}

// readTrace reads --trace.
func (p *program) readTrace(c *cli.Context, s *scene) ([]string, error) {
	in, name, err := p.openInput(c.String(optTrace))
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it was only read
	checkpoint, err := readDuration(c.String(optCheckpoint))
	if err != nil {
		return nil, misuse(c, "--%s: %w", optCheckpoint, err)
	}
	t, err := trace.Read(in, trace.Format(strings.ToLower(c.String(optFormat))), trace.Options{
		Seed: c.Uint64(optSeed), Users: c.Int(optUsers), Zone: p.zone, Checkpoint: checkpoint,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p.taken(c, s, t, name)
}

// taken takes a trace's jobs, if nothing is wrong with it or that doesn't matter.
func (p *program) taken(c *cli.Context, s *scene, t *trace.Trace, name string) ([]string, error) {
	if len(t.Problems) > 0 {
		s.skipped = trace.Counts(t.Problems)
		if !c.Bool(optSkipBad) {
			return nil, fmt.Errorf("%s: %w\n%s; --%s leaves such rows out", name, t.Problems[0], sayCounts("bad rows", s.skipped), optSkipBad)
		}
	}
	if len(t.Jobs) == 0 {
		return nil, fmt.Errorf("%s: no job in it uses GPUs", name)
	}
	s.workload, s.source = t.Workload, name
	return t.Partitions, nil
}

// readRecorded takes the runs of the last time for jobs.
func (p *program) readRecorded(c *cli.Context, s *scene) (partitions []string, err error) {
	span, err := readDuration(c.String(optRecorded))
	if err != nil {
		return nil, misuse(c, "--%s: %w", optRecorded, err)
	}
	err = p.withTree(c, func(v view) error {
		now := fairshare.At(v.at)
		runs, err := v.db.usage.Runs(c.Context, v.cluster, fairshare.Lookback(now, span))
		if err != nil {
			return err
		}
		q, err := readLiveQueue(c, v)
		if err != nil {
			return err
		}
		records := make([]trace.Record, len(runs))
		for i, r := range runs {
			at := v.at
			if q.Seen.After(r.StartedAt) {
				at = q.Seen
			}
			period := r.Period(at)
			records[i] = trace.Record{
				Account: r.Account, User: r.User, Partition: r.Partition, QOS: r.QOS, Start: r.StartedAt,
				Ran: time.Duration(period.Millis())*time.Millisecond - r.Suspended, Running: r.EndedAt == nil,
				GPUs: r.GPUs, Unallocated: !r.Allocated, MinRuntime: r.MinRuntime,
			}
		}
		t := trace.Recorded(records, q, trace.Options{Seed: c.Uint64(optSeed), Zone: p.zone})
		if s.queued = !q.Seen.IsZero(); s.queued {
			s.until = max(q.Seen.Unix()-t.Begin.Unix(), 0) + int64(afterQueue/time.Second)
		}
		partitions, err = p.taken(c, s, t, v.cluster)
		if err != nil || c.IsSet(optBudget) {
			return err
		}
		s.workload.Notes = append(s.workload.Notes, "budgets: those of the ledger as they are now")
		return takeLedger(c, s, v)
	})
	return partitions, err
}

// afterQueue is for how long a run goes on after the instant at which the queue
// was seen, if nobody says otherwise.
const afterQueue = day

// readLiveQueue is what the plugin has last seen to wait; nothing if that is not
// wanted.
func readLiveQueue(c *cli.Context, v view) (trace.Queue, error) {
	var q trace.Queue
	if c.Bool(optPastOnly) {
		return q, nil
	}
	queue, seen, err := v.db.usage.Queue(c.Context, v.cluster)
	if err != nil {
		return q, err
	}
	q.Seen = seen
	for _, of := range queue {
		if of.PendingJobs > 0 {
			q.Pending = append(q.Pending, trace.Pending{Account: of.Account, User: of.User, Jobs: of.PendingJobs, GPUs: of.PendingGPUs})
		}
	}
	return q, nil
}

func sayCounts(of string, counts []trace.Count) string {
	var parts []string
	for _, n := range counts {
		parts = append(parts, fmt.Sprintf("%d with %s", n.Rows, n.Kind))
	}
	return of + ": " + strings.Join(parts, ", ")
}

// readBudget reads --budget or --ledger.
func (p *program) readBudget(c *cli.Context, s *scene) error {
	switch {
	case c.IsSet(optBudget) && c.Bool(optLedger):
		return misuse(c, "--%s and --%s are two sources of budgets: give one", optBudget, optLedger)
	case c.IsSet(optBudget):
		in, name, err := p.openInput(c.String(optBudget))
		if err != nil {
			return err
		}
		defer in.Close() //nolint:errcheck // it was only read
		tree, err := plan.ReadBudget(in, name)
		if err != nil {
			return err
		}
		if err := s.takePolicy(&tree, name); err != nil {
			return err
		}
		s.budget, err = budgetOf(tree)
		return err
	case c.Bool(optLedger):
		return p.withTree(c, func(v view) error { return takeLedger(c, s, v) })
	case s.budget == nil:
		s.budget = s.workload.EqualBudget()
		s.workload.Notes = append(s.workload.Notes, fmt.Sprintf("budgets: equal shares for all %d accounts", len(s.budget.Accounts)))
	}
	return nil
}

// takeLedger takes the budgets and the policy of the ledger.
func takeLedger(c *cli.Context, s *scene, v view) error {
	rules, err := v.db.ledger.Policy(c.Context, v.cluster, v.at)
	if err != nil {
		return err
	}
	s.rules = &rules
	said, err := v.db.ledger.MinRuntimes(c.Context, v.cluster, v.at)
	if err != nil {
		return err
	}
	s.minRuntimes = inherited(accountsAbove(v.tree), rules.MinRuntime, said)
	if err := s.noteUnsimulated(c, v); err != nil {
		return err
	}
	if s.budget, err = budgetOf(plan.Current(v.tree)); err != nil || !c.IsSet(optRecorded) {
		return err
	}
	return s.takeGrants(c, v, rules.Lookback)
}

// noteUnsimulated tells what the ledger says and no simulation goes by.
func (s *scene) noteUnsimulated(c *cli.Context, v view) error {
	now := fairshare.At(v.at)
	weights, err := v.db.ledger.Weights(c.Context, v.cluster, fairshare.Period{From: now, Until: now + 1})
	if err != nil {
		return err
	}
	if len(weights) > 0 {
		types := strings.Join(slices.Sorted(maps.Keys(weights)), ", ")
		s.workload.Notes = append(s.workload.Notes, "weights: every GPU counts for 1 here; the ledger has weights of "+types)
	}
	if s.rules.Charge != budgets.Occupancy {
		s.workload.Notes = append(s.workload.Notes, "charges: runs are charged for what they hold; the ledger's charge is "+s.rules.Charge)
	}
	return nil
}

// addGrants gives accounts what --grant says.
func addGrants(c *cli.Context, s *scene) error {
	for _, text := range c.StringSlice(optGrant) {
		name, rest, _ := strings.Cut(text, "=")
		parts := strings.Split(rest, ":")
		if len(parts) != 3 {
			return misuse(c, "--%s: %q must be ACCOUNT=HOURS:FROM:UNTIL, as in vision=2000:3d:10d", optGrant, text)
		}
		hours, err := amount.ParseHours(parts[0])
		if err != nil {
			return misuse(c, "--%s: %w", optGrant, err)
		}
		from, err := readDuration(parts[1])
		if err != nil {
			return misuse(c, "--%s: %w", optGrant, err)
		}
		until, err := readDuration(parts[2])
		if err == nil && until <= from {
			err = fmt.Errorf("%q ends before it begins", text)
		}
		if err != nil {
			return misuse(c, "--%s: %w", optGrant, err)
		}
		at := slices.IndexFunc(s.budget.Accounts, func(a fairshare.Account) bool { return strings.EqualFold(a.Name, name) })
		if at < 0 {
			return fmt.Errorf("--%s: account %q is not in the budget", optGrant, name)
		}
		begin := fairshare.At(s.workload.Begin)
		period := fairshare.Period{From: begin + fairshare.Instant(from.Milliseconds()), Until: begin + fairshare.Instant(until.Milliseconds())}
		s.budget.Accounts[at].Grants = append(s.budget.Accounts[at].Grants, fairshare.Grant{Period: period, Amount: hours})
	}
	return nil
}

// takeGrants takes the deposits and transfers that count within a window before the
// jobs, or later: what is recorded happened at the time it says.
func (s *scene) takeGrants(c *cli.Context, v view, lookback time.Duration) error {
	begin := fairshare.At(s.workload.Begin)
	loaded, err := v.db.ledger.Load(c.Context, v.cluster, fairshare.Period{
		From: begin - fairshare.Instant(lookback.Milliseconds()), Until: max(begin, fairshare.At(v.at)) + fairshare.Instant((366 * day).Milliseconds()),
	})
	if err != nil {
		return err
	}
	granted := 0
	for i := range s.budget.Accounts {
		a := &s.budget.Accounts[i]
		for k := range loaded.Accounts {
			if loaded.Accounts[k].Name == a.Name {
				a.Grants = append(a.Grants, loaded.Accounts[k].Grants...)
				granted += len(loaded.Accounts[k].Grants)
			}
		}
	}
	if granted > 0 {
		s.workload.Notes = append(s.workload.Notes, fmt.Sprintf("grants: the ledger's %d that count since a lookback window before the first run", granted))
	}
	return nil
}

// takePolicy takes a file's policy, if there is any in it, and the minimum runtimes
// of its accounts; what it doesn't say is as usual.
func (s *scene) takePolicy(tree *plan.Tree, file string) error {
	rules := budgets.DefaultPolicy
	for _, setting := range slices.Sorted(maps.Keys(tree.Policy)) {
		changed, err := rules.With(setting, tree.Policy[setting])
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		rules = changed
	}
	if len(tree.Policy) > 0 {
		s.rules = &rules
	}
	above, said := map[string]string{}, map[string]time.Duration{}
	var failed error
	tree.Root.Walk(func(parent, a *plan.Account) {
		above[a.Name] = ""
		if parent != nil {
			above[a.Name] = parent.Name
		}
		if a.MinRuntime == "" || a.MinRuntime == budgets.Inherit {
			return
		}
		own, err := budgets.DefaultPolicy.With(budgets.MinRuntime, a.MinRuntime)
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: account %s: %w", file, a.Name, err)
		}
		said[a.Name] = own.MinRuntime
	})
	s.minRuntimes = inherited(above, rules.MinRuntime, said)
	return failed
}

// accountsAbove are the accounts above those of a tree, by name; "" for root.
func accountsAbove(t *fairshare.Tree) map[string]string {
	above := make(map[string]string, len(t.Nodes))
	for i := range t.Nodes {
		above[t.Nodes[i].Name] = parentName(t, &t.Nodes[i])
	}
	return above
}

// inherited are the minimum runtimes of all accounts that have another than the
// cluster's.
func inherited(above map[string]string, cluster time.Duration, said map[string]time.Duration) map[string]time.Duration {
	terms := fairshare.Terms{Default: cluster, Accounts: said}
	all := map[string]time.Duration{}
	for account := range above {
		if d := terms.Of(account, func(account string) string { return above[account] }).Default; d != cluster {
			all[account] = d
		}
	}
	return all
}

// byLedger gives a policy what the ledger or the file says of it; options come after that.
func (s *scene) byLedger(policy *simulate.Policy) {
	policy.MinRuntimes = s.minRuntimes
	if s.rules == nil {
		return
	}
	policy.Additive = s.rules.Mode == budgets.Additive
	policy.Lookback, policy.MinRuntime, policy.MinRuntimeCap = s.rules.Lookback, s.rules.MinRuntime, s.rules.MinRuntimeCap
	if policy.Contract != nil {
		contract := s.rules.Contract
		policy.Contract = &contract
	}
}

// budgetOf is a tree as it would be if it had always been so.
func budgetOf(t plan.Tree) (*fairshare.Budget, error) {
	b := &fairshare.Budget{}
	var failed error
	t.Root.Walk(func(parent, a *plan.Account) {
		account := fairshare.Account{Name: a.Name}
		if parent != nil {
			account.Parent, account.Share = simulate.Always(parent.Name), simulate.Always(a.Share)
		}
		var sum fairshare.Share
		for i := range a.Accounts {
			sum += a.Accounts[i].Share
		}
		for _, u := range a.Users {
			account.Users = append(account.Users, fairshare.Member{User: u.Name, In: simulate.Always(u.Share)})
			sum += max(u.Share, 0)
		}
		if sum > fairshare.Whole && failed == nil {
			failed = fmt.Errorf("below account %s shares come to %s: they can be 100%% at most", a.Name, amount.Percent(sum))
		}
		b.Accounts = append(b.Accounts, account)
	})
	return b, failed
}

// matchPartitions gives the trace's partitions the numbers of the cluster's. With
// one partition all jobs run there.
func matchPartitions(s *scene, names []string) {
	several := len(s.cluster.Partitions) > 1
	named := len(names) > 1 || len(names) == 1 && names[0] != ""
	switch {
	case several && named:
		renumberPartitions(s, names)
		return
	case several:
		spreadOverPartitions(s)
		return
	case len(names) > 1:
		s.workload.Notes = append(s.workload.Notes, fmt.Sprintf("partitions: the trace's %d run in one", len(names)))
	}
	for i := range s.workload.Jobs {
		s.workload.Jobs[i].Partition = 0
	}
}

// renumberPartitions gives jobs in a partition that the cluster doesn't have a
// number that is none; checkJobs says of them which it was.
func renumberPartitions(s *scene, names []string) {
	numbers := make([]int16, len(names))
	s.unknown = make(map[int16]string)
	for i, name := range names {
		at := slices.IndexFunc(s.cluster.Partitions, func(p simulate.Partition) bool { return strings.EqualFold(p.Name, name) })
		if numbers[i] = int16(at); at < 0 {
			numbers[i] = -1 - int16(i)
			s.unknown[numbers[i]] = name
		}
	}
	for i := range s.workload.Jobs {
		s.workload.Jobs[i].Partition = numbers[s.workload.Jobs[i].Partition]
	}
}

// sayPartition says what is wrong with jobs in a partition that isn't on the cluster.
func (s *scene) sayPartition(name string) string {
	var known []string
	for _, p := range s.cluster.Partitions {
		known = append(known, p.Name)
	}
	why := fmt.Sprintf("the trace has jobs in partition %q, which --%s does not name: ", name, optNodes)
	if near := nearest.Word(name, known); near != "" {
		return why + "did you mean " + near + "?"
	}
	return why + "expected " + strings.Join(known, " or ") + fmt.Sprintf("; or give %s=NxGPUS there", name)
}

// spreadOverPartitions lets jobs that name no partition run in each in proportion
// to its GPUs, as far as they fit.
func spreadOverPartitions(s *scene) {
	parts := s.cluster.Partitions
	given := make([]float64, len(parts))
	for i := range s.workload.Jobs {
		j := &s.workload.Jobs[i]
		best := 0
		for k := range parts {
			size := parts[k].Nodes * parts[k].GPUsPerNode
			if int(j.GPUs) <= size && (given[k]/float64(size) < given[best]/float64(parts[best].Nodes*parts[best].GPUsPerNode) || int(j.GPUs) > parts[best].Nodes*parts[best].GPUsPerNode) {
				best = k
			}
		}
		j.Partition = int16(best)
		given[best] += float64(j.GPUs) * float64(j.Run)
	}
	s.workload.Notes = append(s.workload.Notes, "partitions: jobs that name none were spread over all")
}

// checkJobs finds jobs that can never run.
func checkJobs(c *cli.Context, s *scene) error {
	misfits := s.workload.Misfits(&s.cluster, s.budget)
	if len(misfits) == 0 {
		return nil
	}
	for _, m := range misfits {
		if name, unknown := s.unknown[s.workload.Jobs[m.Job].Partition]; unknown {
			m.Why = s.sayPartition(name)
		}
	}
	first := error(misfits[0])
	if s.source != "" {
		first = fmt.Errorf("%s: %w", s.source, first)
	}
	counts := trace.Misfits(misfits)
	if !c.Bool(optSkipBad) {
		return fmt.Errorf("%w\n%s; --%s leaves such jobs out", first, sayCounts("bad jobs", counts), optSkipBad)
	}
	s.skipped = append(s.skipped, counts...)
	s.workload.Without(misfits)
	if len(s.workload.Jobs) == 0 {
		return fmt.Errorf("no job is left, the first: %w", first)
	}
	return nil
}

func until(c *cli.Context, s *scene) (int64, error) {
	switch text := c.String(optFor); text {
	case "":
		if s.queued {
			return s.until, nil
		}
		return s.workload.Span() + 1, nil
	case "all":
		return 0, nil
	default:
		d, err := readDuration(text)
		if err == nil && d < time.Second {
			err = fmt.Errorf("%q is too short", text)
		}
		if err != nil {
			return 0, misuse(c, "--%s: %w", optFor, err)
		}
		return int64(d / time.Second), nil
	}
}

// ---- variants ----

// setting changes a policy.
type setting func(p *simulate.Policy, value string) error

// settings are what can be swept.
func settings() map[string]setting {
	duration := func(to func(p *simulate.Policy) *time.Duration, least time.Duration) setting {
		return func(p *simulate.Policy, value string) error {
			d, err := readDuration(value)
			if err == nil && d < least {
				err = fmt.Errorf("%q must be at least %s", value, least)
			}
			*to(p) = d
			return err
		}
	}
	return map[string]setting{
		optMode: func(p *simulate.Policy, value string) error {
			if value != budgets.Strict && value != budgets.Additive {
				return fmt.Errorf("%q is no mode: write %s or %s", value, budgets.Strict, budgets.Additive)
			}
			p.Additive = value == budgets.Additive
			return nil
		},
		optLookback: duration(func(p *simulate.Policy) *time.Duration { return &p.Lookback }, time.Minute),
		optHalfLife: duration(func(p *simulate.Policy) *time.Duration { return &p.HalfLife }, time.Minute),
		optMinRuntime: duration(func(p *simulate.Policy) *time.Duration {
			p.MinRuntimes = nil // of all that declare none
			return &p.MinRuntime
		}, 0),
		optMinRuntimeCap:    duration(func(p *simulate.Policy) *time.Duration { return &p.MinRuntimeCap }, 0),
		optCheckpoint:       duration(func(p *simulate.Policy) *time.Duration { return &p.Checkpoint }, 0),
		optCalcInterval:     duration(func(p *simulate.Policy) *time.Duration { return &p.CalcInterval }, time.Second),
		optBackfillInterval: duration(func(p *simulate.Policy) *time.Duration { return &p.BackfillInterval }, time.Second),
		optMargin: contractSetting(func(rules *fairshare.Contract, value string) (err error) {
			rules.Margin, err = readNumber(value, "is no fraction: write 0.1 for a tenth")
			return err
		}),
		optEvictedPerGPU: contractSetting(func(rules *fairshare.Contract, value string) (err error) {
			rules.EvictedPerGPU, err = readNumber(value, "is no number of GPUs: write 2, or 0 for no limit")
			return err
		}),
		optPreemptPerDay: contractSetting(func(rules *fairshare.Contract, value string) error {
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is no number of preemptions: write 4, or 0 for no limit", value)
			}
			rules.PerDay = int(n)
			return nil
		}),
		optPatientGPUs: contractSetting(func(rules *fairshare.Contract, value string) error {
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is no number of GPUs", value)
			}
			rules.PatientGPUs = n
			return nil
		}),
		optPatience: contractSetting(func(rules *fairshare.Contract, value string) (err error) {
			rules.Patience, err = readDuration(value)
			return err
		}),
		optLargeJob: func(p *simulate.Policy, value string) error {
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is no number of GPUs", value)
			}
			p.LargeJob = n
			return nil
		},
	}
}

// contractSetting changes the rules of who yields to whom, where there are any.
func contractSetting(set func(rules *fairshare.Contract, value string) error) setting {
	return func(p *simulate.Policy, value string) error {
		if p.Contract == nil {
			return set(&fairshare.Contract{}, value)
		}
		rules := *p.Contract // other runs have the same
		p.Contract = &rules
		return set(&rules, value)
	}
}

func readNumber(value, wrong string) (float64, error) {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q %s", value, wrong)
	}
	return f, nil
}

var settingOrder = []string{
	optMode, optLookback, optHalfLife, optMinRuntime, optMinRuntimeCap, optCheckpoint, optCalcInterval, optBackfillInterval, optMargin, optEvictedPerGPU,
	optPreemptPerDay, optLargeJob, optPatientGPUs, optPatience,
}

// variants are the runs that the options ask for.
func variants(c *cli.Context, s *scene) ([]variant, error) {
	var out []variant
	for name := range strings.SplitSeq(c.String(optPolicies), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		policy, err := simulate.DefaultPolicy(name)
		if err != nil {
			if near := nearest.Word(name, simulate.PolicyNames()); near != "" {
				return nil, misuse(c, "%w: did you mean %s?", err, near)
			}
			return nil, misuse(c, "%w: known are %s", err, strings.Join(simulate.PolicyNames(), ", "))
		}
		s.byLedger(&policy)
		for _, option := range settingOrder {
			said := s.rules != nil || option == optMinRuntime && len(s.minRuntimes) > 0 // by the ledger or the file
			if c.String(option) == "" || said && !c.IsSet(option) {
				continue
			}
			if err := settings()[option](&policy, c.String(option)); err != nil {
				return nil, misuse(c, "--%s: %w", option, err)
			}
		}
		out = append(out, variant{name, policy, s.budget})
	}
	out, err := sweep(c, out)
	if err != nil {
		return nil, err
	}
	return whatIf(c, s, out)
}

func sweep(c *cli.Context, variants []variant) ([]variant, error) {
	text := c.String(optSweep)
	if text == "" {
		return variants, nil
	}
	name, values, ok := strings.Cut(text, "=")
	name = strings.ReplaceAll(strings.TrimSpace(name), "_", "-") // as the policy's settings are spelt
	set, known := settings()[name]
	if !ok || !known {
		if near := nearest.Word(name, settingOrder); near != "" && !known {
			return nil, misuse(c, "--%s: %q cannot be swept: did you mean %s?", optSweep, name, near)
		}
		return nil, misuse(c, "--%s must be SETTING=VALUE,..., of %s", optSweep, strings.Join(settingOrder, ", "))
	}
	var out []variant
	for _, v := range variants {
		for value := range strings.SplitSeq(values, ",") {
			policy := v.policy
			if err := set(&policy, strings.TrimSpace(value)); err != nil {
				return nil, misuse(c, "--%s: %w", optSweep, err)
			}
			out = append(out, variant{v.label + " " + name + "=" + strings.TrimSpace(value), policy, v.budget})
		}
	}
	return out, nil
}

// whatIf adds each run with a share changed.
func whatIf(c *cli.Context, s *scene, variants []variant) ([]variant, error) {
	text := c.String(optWhatIf)
	if text == "" {
		return variants, nil
	}
	rest, isShare := strings.CutPrefix(text, "share:")
	account, value, ok := strings.Cut(rest, "=")
	if !ok || !isShare {
		return nil, misuse(c, "--%s must be share:ACCOUNT=PERCENT, as in share:vision=40%%", optWhatIf)
	}
	share, err := amount.ParsePercent(value)
	if err != nil {
		return nil, misuse(c, "--%s: %w", optWhatIf, err)
	}
	budget, err := simulate.WithShare(s.budget, strings.ToLower(account), share)
	if err != nil {
		return nil, err
	}
	out := slices.Clip(variants)
	for _, v := range variants {
		v.label += " " + text
		v.budget = budget
		out = append(out, v)
	}
	return out, nil
}
