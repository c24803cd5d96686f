// SPDX-License-Identifier: GPL-2.0-or-later

// Package shares reads how Slurm's associations stand as its own commands print it:
// the tree, Fairshare and RawUsage from scontrol, what slurmctld has made of them
// from sshare. Both ask slurmctld, so no database is needed.
package shares

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/explain"
	"gpubudget/fairshare"
)

// Shares is all associations, root first and every other behind the account it is
// in, and by which settings they stand.
type Shares struct {
	Settings
	Assocs []explain.Assoc
}

// Settings are those of slurm.conf that bear on fair share.
type Settings struct {
	Cluster string
	// Plugin is PriorityType, Weight PriorityWeightFairshare.
	Plugin string
	Weight uint32
	Policy fairshare.SlurmPolicy // without TiesApart, which Slurm doesn't know
	// HalfLife and Reset are PriorityDecayHalfLife and PriorityUsageResetPeriod, ""
	// for none.
	HalfLife, Reset string
}

// useParent is Fairshare=parent as a number.
const useParent = math.MaxInt32

// Read asks scontrol and sshare.
func Read(ctx context.Context, run queue.Command) (*Shares, error) {
	config, err := run(ctx, "scontrol", "show", "config")
	if err != nil {
		return nil, err
	}
	s := &Shares{}
	if s.Settings, err = readSettings(config); err != nil {
		return nil, fmt.Errorf("scontrol show config: %w", err)
	}
	tree, err := run(ctx, "scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc")
	if err != nil {
		return nil, err
	}
	// Without names: sshare looks for the parent of each in a list of all, and so
	// takes minutes for 50,000.
	shown, err := run(ctx, "sshare", "--all", "--noheader", "--parsable2", "--partition",
		"--format=ID,RawUsage,NormShares,NormUsage,EffectvUsage,LevelFS,FairShare")
	if err != nil {
		return nil, err
	}
	records, err := readTree(tree)
	if err != nil {
		return nil, err
	}
	if s.Assocs, err = inOrder(records); err != nil {
		return nil, err
	}
	return s, addShown(s.Assocs, shown)
}

func lines(text []byte) []string { return strings.Split(string(text), "\n") }

// readSettings reads lines such as "PriorityWeightFairShare = 100000".
func readSettings(text []byte) (s Settings, err error) {
	values := map[string]string{}
	for _, line := range lines(text) {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(value)
		}
	}
	s.Cluster, s.Plugin = values["clustername"], values["prioritytype"]
	flags := "," + values["priorityflags"] + ","
	s.Policy.FairTree = !strings.Contains(flags, ",NO_FAIR_TREE,")
	s.Policy.DepthOblivious = strings.Contains(flags, ",DEPTH_OBLIVIOUS,")
	if s.HalfLife = values["prioritydecayhalflife"]; strings.Trim(s.HalfLife, "0:-") == "" {
		s.HalfLife = ""
	}
	if s.Reset = values["priorityusageresetperiod"]; s.Reset == "NONE" {
		s.Reset = ""
	}
	for key, to := range map[string]*uint32{"priorityweightfairshare": &s.Weight, "fairsharedampeningfactor": &s.Policy.Damping} {
		n, err := strconv.ParseUint(values[key], 10, 32)
		if err != nil {
			return s, fmt.Errorf("%s is %q, no number", key, values[key])
		}
		*to = uint32(n)
	}
	return s, nil
}

// record is an association and the account that it stands below.
type record struct {
	explain.Assoc
	parent string
}

// readTree reads lines such as "ClusterName=titan Account=vision UserName=
// Partition= ... SharesRaw/Norm/Level/Factor=40/0.40/100/0.00
// UsageRaw/Norm/Efctv=1200.00/0.30/0.30 ParentAccount=root(1) ...".
func readTree(text []byte) ([]record, error) {
	var records []record
	for _, line := range lines(text) {
		if !strings.HasPrefix(line, "ClusterName=") {
			continue
		}
		r, err := readRecord(line)
		if err != nil {
			return nil, fmt.Errorf("scontrol show assoc_mgr printed %q: %w", line, err)
		}
		records = append(records, r)
	}
	if len(records) == 0 {
		return nil, errors.New("slurmctld shows no associations: there is no slurmdbd, or PrivateData hides them from you")
	}
	return records, nil
}

func readRecord(line string) (r record, err error) {
	const wanted = 7
	values := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		if _, known := values[key]; !known {
			values[key] = value
		}
	}
	keys := [wanted]string{"Account", "UserName", "Partition", "SharesRaw/Norm/Level/Factor", "UsageRaw/Norm/Efctv", "ParentAccount", "ID"}
	var fields [wanted]string
	for i, key := range keys {
		value, ok := values[key]
		if !ok {
			return r, fmt.Errorf("it has no %s", key)
		}
		fields[i] = value
	}
	r.Account, r.User, r.Partition = strings.ToLower(fields[0]), withoutNumber(fields[1]), fields[2]
	if r.parent = strings.ToLower(withoutNumber(fields[5])); r.User != "" {
		r.parent = r.Account
	}
	shares, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseUint(shares, 10, 32)
	if err != nil {
		return r, fmt.Errorf("%q is no number of shares", shares)
	}
	r.Shares, r.ParentShares = uint32(n), n == useParent
	id, err := strconv.ParseUint(fields[6], 10, 32)
	if err != nil {
		return r, fmt.Errorf("%q is no number of an association", fields[6])
	}
	r.ID = uint32(id)
	usage, _, _ := strings.Cut(fields[4], "/")
	if r.Usage, err = strconv.ParseFloat(usage, 64); err != nil {
		return r, fmt.Errorf("%q is no usage", usage)
	}
	r.Above, r.Shown = -1, explain.NotShown()
	return r, nil
}

// withoutNumber is NAME of NAME(12).
func withoutNumber(text string) string {
	if at := strings.LastIndexByte(text, '('); at >= 0 && strings.HasSuffix(text, ")") {
		return text[:at]
	}
	return text
}

// inOrder puts records into the order of the tree, from root down. Siblings stay in
// the order of Slurm's list. Who may not see all gets an error: a part of the tree
// would be another tree.
func inOrder(records []record) ([]explain.Assoc, error) {
	below := map[string][]int{}
	root := -1
	for i := range records {
		r := &records[i]
		if r.User == "" && r.parent == "" {
			root = i
			continue
		}
		below[r.parent] = append(below[r.parent], i)
	}
	if root < 0 {
		return nil, errHidden
	}
	list := []explain.Assoc{records[root].Assoc}
	for i := 0; i < len(list); i++ {
		if list[i].User != "" {
			continue
		}
		for _, child := range below[list[i].Account] {
			a := records[child].Assoc
			a.Above = i
			list = append(list, a)
		}
		delete(below, list[i].Account)
	}
	if len(list) < len(records) {
		return nil, errHidden
	}
	return list, nil
}

var errHidden = errors.New("slurmctld shows only a part of the associations, as PrivateData wants it: ask an operator, or run this as one")

// addShown adds what sshare prints: "12|1200|0.400000|0.300000|..." What is not set
// is left out there.
func addShown(assocs []explain.Assoc, text []byte) error {
	place := make(map[string]int, len(assocs))
	for i := range assocs {
		place[strconv.FormatUint(uint64(assocs[i].ID), 10)] = i
	}
	for _, line := range lines(text) {
		const fields = 7
		f := strings.Split(line, "|")
		if line == "" {
			continue
		}
		if len(f) != fields {
			return fmt.Errorf("sshare printed %q: these are %d fields, not %d", line, len(f), fields)
		}
		i, known := place[f[0]]
		if !known {
			continue // it is newer than the tree
		}
		if err := readShown(f[1:], &assocs[i].Shown); err != nil {
			return fmt.Errorf("sshare printed %q: %w", line, err)
		}
	}
	return nil
}

func readShown(fields []string, to *explain.Shown) error {
	for i, number := range []*float64{&to.Usage, &to.SharesNorm, &to.UsageNorm, &to.UsageEffective, &to.LevelFS, &to.Factor} {
		if fields[i] == "" {
			continue
		}
		value, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return fmt.Errorf("%q is no number", fields[i])
		}
		*number = value
	}
	return nil
}
