// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
)

// Names of the options of commands that write.
const (
	optFrom   = "from"
	optUntil  = "until"
	optWhy    = "why"
	optKey    = "key"
	optDryRun = "dry-run"
	optPrune  = "prune"
)

// periodFlags are the options that say when a change is in force and why.
func periodFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: optFrom, Usage: "in force from `TIME` (default: now); past and future are fine"},
		&cli.StringFlag{Name: optUntil, Usage: "in force until `TIME`, then what was before (default: until changed)"},
	}, noteFlags()...)
}

func noteFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: optWhy, Usage: "record the `REASON`"},
		&cli.StringFlag{Name: optKey, Usage: "write the entry once only, however often the same `KEY` is given"},
	}
}

// note is what the options say about an entry.
func (p *program) note(c *cli.Context) (budgets.Note, error) {
	n := budgets.Note{Actor: p.actor, Why: c.String(optWhy), Key: c.String(optKey)}
	if c.IsSet(optActor) {
		n.Actor = c.String(optActor)
	}
	var err error
	if n.From, err = p.readTime(c, optFrom, false); err != nil {
		return n, err
	}
	until, err := p.readTime(c, optUntil, false)
	if err == nil && !until.IsZero() {
		n.Until = &until
	}
	return n, err
}

// period is when an entry with note n is in force, as text after a change.
func (p *program) period(n budgets.Note) string {
	text := ""
	if !n.From.IsZero() {
		text += ", from " + p.formatTime(n.From)
	}
	if n.Until != nil {
		text += ", until " + p.formatTime(*n.Until)
	}
	return text
}

// work is a change to a cluster's ledger.
type work struct {
	cluster string
	lines   []string // what will change, for the one who is asked
	entries int      // how many entries it will write
	// write writes it, and calls progress after each entry.
	write func(ctx context.Context, ledger *budgets.Store, progress func()) ([]budgets.Entry, error)
}

// planned is changes of the account tree as work. suffix follows every line.
func planned(cluster string, changes []plan.Change, n budgets.Note, suffix string) work {
	w := work{cluster: cluster, entries: len(changes)}
	for _, change := range changes {
		w.lines = append(w.lines, change.String()+suffix)
	}
	w.write = func(ctx context.Context, ledger *budgets.Store, progress func()) ([]budgets.Entry, error) {
		return plan.Run(ctx, ledger, cluster, changes, n, progress)
	}
	return w
}

// commit shows what will change, asks if it has to, and writes it: all of it
// or nothing.
func (p *program) commit(c *cli.Context, db *database, w work) error {
	ask := p.terminal && !c.Bool(optImmediate)
	if ask {
		written, err := p.try(c.Context, db, w)
		if err != nil {
			return err
		}
		if written[0].Repeated {
			return p.report(c, w.cluster, written)
		}
		agreed, err := p.propose(c, w)
		if err != nil || !agreed {
			return err
		}
	}
	var entries []budgets.Entry
	progress, done := p.progressBar(c, w.entries)
	defer done()
	err := db.ledger.InTx(c.Context, func(ledger *budgets.Store) (err error) {
		entries, err = w.write(c.Context, ledger, progress)
		return err
	})
	if err != nil {
		return err
	}
	if !ask && !entries[0].Repeated {
		p.show(c, w)
	}
	return p.report(c, w.cluster, entries)
}

// propose shows a change and asks whether to make it.
func (p *program) propose(c *cli.Context, w work) (bool, error) {
	out := p.stdout
	if c.Bool(optJSON) { // what is asked is no part of it
		out = p.stderr
	}
	for _, line := range w.lines {
		fmt.Fprintln(out, line)
	}
	agreed, err := p.ask(c.Context, out, "Commit to the ledger of "+w.cluster+"?")
	if err == nil && !agreed {
		fmt.Fprintln(out, "Nothing was changed.")
	}
	return agreed, err
}

// dryRun makes sure that the change can be made and shows it.
func (p *program) dryRun(c *cli.Context, db *database, w work) error {
	if _, err := p.try(c.Context, db, w); err != nil {
		return err
	}
	if c.Bool(optJSON) {
		return output.JSON(p.stdout, struct {
			Cluster string   `json:"cluster"`
			Changes []string `json:"changes"`
		}{w.cluster, w.lines})
	}
	p.show(c, w)
	p.sayf(c, "Dry run: nothing was changed.")
	return nil
}

// show lists what changes.
func (p *program) show(c *cli.Context, w work) {
	for _, line := range w.lines {
		p.sayf(c, "%s", line)
	}
}

// try makes the change and takes it back. Nothing is locked any more when it
// returns, so that a slow answer to a question holds up nobody.
func (p *program) try(ctx context.Context, db *database, w work) (entries []budgets.Entry, err error) {
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if rollback := tx.Rollback(ctx); !errors.Is(rollback, pgx.ErrTxClosed) {
			err = errors.Join(err, rollback)
		}
	}()
	ledger := budgets.NewStore(tx)
	if entries, err = w.write(ctx, ledger, nil); err != nil {
		return nil, err
	}
	return entries, ledger.Check(ctx)
}

// report tells under which numbers the entries stand in the ledger.
func (p *program) report(c *cli.Context, cluster string, entries []budgets.Entry) error {
	if c.Bool(optJSON) && !c.Bool(optQuiet) {
		return output.JSON(p.stdout, entriesJSON(entries))
	}
	first, last := entries[0], entries[len(entries)-1]
	switch {
	case first.Repeated:
		p.sayf(c, "Key %q is entry %d of the ledger of %s already: nothing was changed.", first.Key, first.Seq, cluster)
	case len(entries) == 1:
		p.sayf(c, "Entry %d of the ledger of %s.", first.Seq, cluster)
	default:
		p.sayf(c, "Entries %d to %d of the ledger of %s.", first.Seq, last.Seq, cluster)
	}
	return nil
}

// manyEntries is how many entries take long enough to show how far it is.
const manyEntries = 200

// progressBar counts entries as they are written, if there are many and
// somebody watches. done ends it.
func (p *program) progressBar(c *cli.Context, entries int) (progress, done func()) {
	if !p.progress || entries < manyEntries || c.Bool(optQuiet) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(entries,
		progressbar.OptionSetWriter(p.stderr),
		progressbar.OptionSetDescription("entries"),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish())
	// The bar is decoration: what it can't draw is no failure of the work.
	return func() { _ = bar.Add(1) }, func() { _ = bar.Finish() }
}

// errInterrupted is the end of a question at which somebody pressed Ctrl-C.
var errInterrupted = errors.New("interrupted: nothing was changed")

// ask puts a question; no answer in time is a no.
func (p *program) ask(ctx context.Context, out io.Writer, question string) (bool, error) {
	fmt.Fprintf(out, "%s No answer within %d seconds is a no. [y/N] ", question, int(p.patience.Seconds()))
	answer := make(chan string, 1)
	go func() { // ends with the program at the latest
		var b [1]byte
		var line []byte
		for {
			n, err := p.stdin.Read(b[:])
			if err != nil || n == 1 && b[0] == '\n' {
				answer <- string(line)
				return
			}
			line = append(line, b[:n]...)
		}
	}()
	patience := time.NewTimer(p.patience)
	defer patience.Stop()
	select {
	case text := <-answer:
		text = strings.ToLower(strings.TrimSpace(text))
		return text == "y" || text == "yes", nil
	case <-patience.C:
		fmt.Fprintln(out)
		return false, nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, errInterrupted
	}
}
