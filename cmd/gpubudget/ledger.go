// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
	"gpubudget/internal/nearest"
	"gpubudget/internal/slurmtime"
)

const (
	optKind      = "kind"
	optStartTime = "starttime"
	optEndTime   = "endtime"
	optLimit     = "limit"
)

func (p *program) ledgerCommand() *cli.Command {
	return &cli.Command{
		Name:  "ledger",
		Usage: "list what was changed, when, by whom and why",
		Description: describe(`
Entries in the order they were written. --starttime and --endtime are about when
an entry was written, not about when it is in force; times without a day or year
lie in the past, as with sacct.`,
			"gpubudget ledger --limit 20",
			"gpubudget ledger -A vision -S now-30days",
			"gpubudget ledger --kind deposit,transfer --actor ann --json"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: optAccount, Aliases: []string{"A"}, Usage: "entries about `ACCOUNT`, also as parent or receiver"},
			&cli.StringFlag{Name: optUser, Aliases: []string{"u"}, Usage: "entries about `USER`"},
			&cli.StringFlag{Name: optActor, Usage: "entries that `WHO` made"},
			&cli.StringFlag{Name: optKind, Usage: "entries of these `KINDS`: " + strings.Join(kindNames(), ", ")},
			&cli.StringFlag{Name: optStartTime, Aliases: []string{"S"}, Usage: "written at `TIME` or later"},
			&cli.StringFlag{Name: optEndTime, Aliases: []string{"E"}, Usage: "written before `TIME`"},
			&cli.IntFlag{Name: optLimit, Usage: "the last `N` entries"},
		},
		Action: p.ledger,
	}
}

func kindNames() []string {
	names := make([]string, len(budgets.Kinds))
	for i, k := range budgets.Kinds {
		names[i] = string(k)
	}
	return names
}

func (p *program) ledger(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	f, err := p.ledgerFilter(c)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		if f.Cluster, err = db.cluster(c); err != nil {
			return err
		}
		entries, err := db.ledger.Ledger(c.Context, f)
		if err != nil {
			return err
		}
		if len(entries) == 0 && f.Account != "" {
			if err := db.checkAccountName(c, f.Cluster, f.Account); err != nil {
				return err
			}
		}
		table := output.Table{Columns: []output.Column{{Name: "Entry", Right: true}, {Name: "Recorded"}, {Name: "Actor"},
			{Name: "Kind"}, {Name: "Account"}, {Name: "User"}, {Name: "What"}, {Name: "From"}, {Name: "Until"}, {Name: "Why"}}}
		for _, e := range entries {
			table.Add(strconv.FormatInt(e.Seq, 10), p.formatTime(e.RecordedAt), e.Actor, string(e.Kind), e.Account, e.User,
				whatOf(e), p.formatTime(e.From), p.formatEnd(e), e.Why)
		}
		return p.print(c, &table, entriesJSON(entries))
	})
}

// checkAccountName is the error of an account that was never there; one that
// is closed has a history.
func (db *database) checkAccountName(c *cli.Context, cluster, account string) error {
	now, err := db.now(c.Context)
	if err != nil {
		return err
	}
	_, err = db.ledger.Users(c.Context, cluster, account, now)
	return err
}

func (p *program) ledgerFilter(c *cli.Context) (budgets.Filter, error) {
	f := budgets.Filter{Account: c.String(optAccount), User: c.String(optUser), Actor: c.String(optActor), Limit: c.Int(optLimit)}
	if f.Limit < 0 || c.IsSet(optLimit) && f.Limit == 0 {
		return f, fmt.Errorf("--%s %d: must be 1 or more", optLimit, f.Limit)
	}
	var err error
	if f.Kinds, err = readKinds(c); err != nil {
		return f, err
	}
	if f.Since, err = p.readTime(c, optStartTime, true); err != nil {
		return f, err
	}
	if f.Until, err = p.readTime(c, optEndTime, true); err != nil {
		return f, err
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, fmt.Errorf("--%s %s is not before --%s %s", optStartTime, slurmtime.Format(f.Since, p.zone), optEndTime, slurmtime.Format(f.Until, p.zone))
	}
	return f, nil
}

func readKinds(c *cli.Context) ([]budgets.Kind, error) {
	if !c.IsSet(optKind) {
		return nil, nil
	}
	var kinds []budgets.Kind
	for name := range strings.SplitSeq(strings.ToLower(c.String(optKind)), ",") {
		kind := budgets.Kind(strings.TrimSpace(name))
		if !slices.Contains(budgets.Kinds, kind) {
			if near := nearest.Word(name, kindNames()); near != "" {
				return nil, fmt.Errorf("--%s: unknown kind %q: did you mean %s?", optKind, name, near)
			}
			return nil, fmt.Errorf("--%s: unknown kind %q: known are %s", optKind, name, strings.Join(kindNames(), ", "))
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// whatOf is what an entry does to its account, in a few words.
func whatOf(e budgets.Entry) string {
	var words []string
	if e.Parent != "" {
		words = append(words, "below "+e.Parent)
	}
	if e.Share != nil {
		words = append(words, "share "+amount.Percent(*e.Share))
	}
	if e.Amount != 0 {
		words = append(words, amount.Hours(e.Amount)+" hours")
	}
	if e.Job != 0 {
		words = append(words, fmt.Sprintf("back for job %d", e.Job))
	}
	if e.Receiver != "" {
		words = append(words, "to "+e.Receiver)
	}
	if e.Setting != "" {
		words = append(words, fmt.Sprintf("%s=%s", e.Setting, policyValue(e)))
	}
	if e.GPUType != "" {
		words = append(words, fmt.Sprintf("%s=%s", e.GPUType, amount.Weight(*e.Weight)))
	}
	return strings.Join(words, " ")
}

// policyValue is the value of a policy entry as people write it.
func policyValue(e budgets.Entry) string {
	if _, normal, err := budgets.NormalPolicy(e.Setting, e.Value); err == nil {
		return normal
	}
	return e.Value // of a release that knows more settings
}

// entryRow is a ledger entry as JSON. Amounts are in hours and in the
// milliseconds that are exact; shares in percent and in billionths likewise.
type entryRow struct {
	Cluster         string               `json:"cluster"`
	Entry           int64                `json:"entry"`
	Recorded        time.Time            `json:"recorded"`
	Kind            budgets.Kind         `json:"kind"`
	Actor           string               `json:"actor"`
	DatabaseRole    string               `json:"database_role"`
	Why             string               `json:"why"`
	Key             string               `json:"key,omitempty"`
	From            time.Time            `json:"from"`
	Until           *time.Time           `json:"until"`
	Account         string               `json:"account,omitempty"`
	Parent          string               `json:"parent,omitempty"`
	Receiver        string               `json:"receiver,omitempty"`
	User            string               `json:"user,omitempty"`
	Share           *float64             `json:"share_percent,omitempty"`
	ShareBillionths *fairshare.Share     `json:"share_billionths,omitempty"`
	EqualPart       bool                 `json:"equal_part,omitempty"`
	Hours           *float64             `json:"hours,omitempty"`
	Millis          *fairshare.GPUMillis `json:"gpu_milliseconds,omitempty"`
	Job             uint32               `json:"job,omitempty"`
	JobStart        *time.Time           `json:"job_started,omitempty"`
	Setting         string               `json:"setting,omitempty"`
	Value           string               `json:"value,omitempty"`
	GPUType         string               `json:"gpu_type,omitempty"`
	Weight          *float64             `json:"weight,omitempty"`   // absent if it was taken back
	Repeated        bool                 `json:"repeated,omitempty"` // it was there already, under the same key
}

// entriesJSON is entries as JSON.
func entriesJSON(entries []budgets.Entry) any {
	rows := make([]entryRow, len(entries))
	for i, e := range entries {
		rows[i] = newEntryRow(e)
	}
	return struct {
		Entries []entryRow `json:"entries"`
	}{rows}
}

func newEntryRow(e budgets.Entry) entryRow {
	row := entryRow{
		Cluster: e.Cluster, Entry: e.Seq, Recorded: e.RecordedAt, Kind: e.Kind, Actor: e.Actor, DatabaseRole: e.Role,
		Why: e.Why, Key: e.Key, From: e.From, Until: e.Until, Account: e.Account, Parent: e.Parent, Receiver: e.Receiver,
		User: e.User, Setting: e.Setting, GPUType: e.GPUType, Repeated: e.Repeated,
	}
	if e.Setting != "" {
		row.Value = policyValue(e)
	}
	if e.Job != 0 {
		row.Job, row.JobStart = e.Job, &e.JobStart
	}
	if e.Weight != nil && *e.Weight != fairshare.DefaultWeight {
		weight := weightNumber(*e.Weight)
		row.Weight = &weight
	}
	if e.Amount != 0 {
		hours := e.Amount.Hours()
		row.Hours, row.Millis = &hours, &e.Amount
	}
	switch {
	case e.Share == nil:
	case *e.Share == fairshare.EqualPart:
		row.EqualPart = true
	default:
		share := percentOf(*e.Share)
		row.Share, row.ShareBillionths = &share, e.Share
	}
	return row
}
