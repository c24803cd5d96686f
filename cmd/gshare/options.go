// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// Names of the options. Those of sshare mean what they mean there.
const (
	optAccounts   = "accounts"
	optAll        = "all"
	optCluster    = "clusters"
	optCompletion = "completion"
	optConf       = "conf"
	optDSN        = "dsn"
	optFormat     = "format"
	optHelp       = "help"
	optHelpFormat = "helpformat"
	optIdle       = "idle"
	optIdleFor    = "idle-for"
	optIdlePower  = "idle-power"
	optJobs       = "jobs"
	optJSON       = "json"
	optLong       = "long"
	optNoHeader   = "noheader"
	optParsable   = "parsable"
	optParsable2  = "parsable2"
	optPartition  = "partition"
	optUsage      = "usage"
	optUsers      = "users"
	optUsersOnly  = "Users"
	optVerbose    = "verbose"
	optVersion    = "version"
)

func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: optAccounts, Aliases: []string{"A"}, Usage: "show the accounts in `LIST` only (comma separated)"},
		&cli.BoolFlag{Name: optAll, Aliases: []string{"a"}, Usage: "show all accounts and users (default: your own accounts and those above them)"},
		&cli.BoolFlag{Name: optHelpFormat, Aliases: []string{"e"}, Usage: "list the fields that --format takes"},
		&cli.BoolFlag{Name: optLong, Aliases: []string{"l"}, Usage: "show all columns"},
		&cli.BoolFlag{Name: optPartition, Aliases: []string{"m"}, Usage: "add the column Partition, which is always empty: budgets have no partitions, they hold for all alike"},
		&cli.StringSliceFlag{Name: optCluster, Aliases: []string{"M", "cluster"}, Usage: "report on the clusters in `LIST`, all for every one that the ledger has (default: Cluster= of the configuration file, or the only one there is)"},
		&cli.BoolFlag{Name: optNoHeader, Aliases: []string{"n", "h"}, Usage: "leave out the header and the footer"},
		&cli.StringSliceFlag{Name: optFormat, Aliases: []string{"o"}, Usage: "show the `FIELDS` (comma separated, see -e); a name may be cut short and followed by %WIDTH, negative to stand at the left"},
		&cli.BoolFlag{Name: optParsable, Aliases: []string{"p"}, Usage: "put a | after every field"},
		&cli.BoolFlag{Name: optParsable2, Aliases: []string{"P"}, Usage: "put a | between fields"},
		&cli.StringSliceFlag{Name: optUsers, Aliases: []string{"u"}, Usage: "show the users in `LIST` and the accounts above them (names or uids, comma separated; -1 for all)"},
		&cli.BoolFlag{Name: optUsersOnly, Aliases: []string{"U"}, Usage: "show users only, no accounts"},
		&cli.BoolFlag{Name: optVerbose, Aliases: []string{"v"}, Usage: "say on standard error what is shown"},
		&cli.BoolFlag{Name: optVersion, Aliases: []string{"V"}, Usage: "print the version"},
		&cli.BoolFlag{Name: optIdle, Usage: "list the GPUs that jobs hold now and do nothing with, and what that costs, in place of the accounts"},
		&cli.DurationFlag{Name: optIdleFor, Value: defaultIdleFor, Usage: "with --idle: those that have been idle for a `TIME` at least (default: 10m)"},
		&cli.Float64Flag{Name: optIdlePower, Usage: "with --idle: a GPU that draws more than so many `WATTS` does something (default: by what GPUs of its model draw when idle)"},
		&cli.BoolFlag{Name: optJobs, Usage: "list the jobs that run, until when they are protected and what they are charged, in place of the accounts"},
		&cli.BoolFlag{Name: optJSON, Usage: "print JSON with all fields, in full precision"},
		&cli.StringFlag{Name: optDSN, Usage: "connect to the database at `DSN`, a libpq connection string or URL"},
		&cli.StringFlag{Name: optConf, Usage: "read the configuration `FILE`"},
		&cli.StringFlag{Name: optCompletion, Usage: "print a completion script for `SHELL`: bash or zsh"},
		&cli.BoolFlag{Name: optHelp, Usage: "print this text"},
		&cli.BoolFlag{Name: optUsage, Usage: "print this text"},
	}
}

// The cli package would take -h and --help for its own.
func init() { cli.HelpFlag = nil } //nolint:gochecknoinits // it is the package's only switch for it

// app is the command line as the cli package knows it. It has no commands, and
// -h is sshare's "no header".
func (p *program) app() *cli.App {
	return &cli.App{
		Name:           "gshare",
		Usage:          "show what share of the GPUs accounts and users are due and what they got",
		Flags:          flags(),
		Action:         p.act,
		Writer:         p.stdout,
		ErrWriter:      p.stderr,
		HideHelp:       true,
		HideVersion:    true,
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return &usageError{err} },
		ExitErrHandler: func(*cli.Context, error) {},
	}
}

// layout is how rows are printed.
type layout int

const (
	wide layout = iota // columns below a header and a line of dashes
	parsable
	parsable2
	asJSON
)

// options is the command line, understood.
type options struct {
	dsn, conf string
	clusters  []string // empty: the default one
	named     bool     // clusters were named with -M
	show      selection
	columns   []column
	layout    layout
	noHeader  bool
	verbose   bool
	metered   bool // something of what meters saw is shown
	why       bool // and why what is not charged is not

	idle      bool // GPUs that do nothing are listed, and no accounts
	idleFor   time.Duration
	idlePower float64

	jobs       bool // jobs that run are listed, and no accounts
	jobColumns []jobColumn
}

// defaultIdleFor is how long a GPU must have done nothing to be listed: jobs read
// and write files in between.
const defaultIdleFor = 10 * time.Minute

func (p *program) options(c *cli.Context) (options, error) {
	o := options{
		dsn: c.String(optDSN), conf: c.String(optConf),
		clusters: lower(words(c.StringSlice(optCluster))),
		noHeader: c.Bool(optNoHeader), verbose: c.Bool(optVerbose),
		jobs: c.Bool(optJobs), idle: c.Bool(optIdle), idleFor: c.Duration(optIdleFor), idlePower: c.Float64(optIdlePower),
	}
	o.named = len(o.clusters) > 0
	if err := o.check(c); err != nil {
		return options{}, err
	}
	var err error
	if o.show, err = p.selection(c); err != nil {
		return options{}, err
	}
	if o.jobs {
		o.jobColumns, err = chooseJobColumns(c.StringSlice(optFormat), c.Bool(optLong))
	} else {
		o.columns, err = chooseColumns(c.StringSlice(optFormat), c.Bool(optLong), c.Bool(optPartition))
	}
	if err != nil {
		return options{}, err
	}
	switch { // as in sshare the later one would win; here the more machine-readable one does
	case c.Bool(optJSON):
		o.layout = asJSON
	case c.Bool(optParsable2):
		o.layout = parsable2
	case c.Bool(optParsable):
		o.layout = parsable
	}
	o.metered, o.why = o.shows(meteredColumns), o.shows(whyColumns)
	return o, nil
}

// shows tells whether one of some columns is to be shown.
func (o *options) shows(columns []string) bool {
	return !o.idle && !o.jobs && (o.layout == asJSON || slices.ContainsFunc(o.columns, func(c column) bool { return slices.Contains(columns, c.name) }))
}

// check refuses options that don't go together.
func (o *options) check(c *cli.Context) error {
	switch {
	case !o.idle && (c.IsSet(optIdleFor) || c.IsSet(optIdlePower)):
		return usagef("--%s and --%s go with --%s", optIdleFor, optIdlePower, optIdle)
	case o.idle && o.jobs:
		return usagef("--%s and --%s don't go together", optIdle, optJobs)
	case o.idle && c.IsSet(optFormat):
		return usagef("--%s has columns of its own: leave out --%s", optIdle, optFormat)
	case o.idleFor < 0 || !(o.idlePower >= 0):
		return usagef("--%s and --%s must not be negative", optIdleFor, optIdlePower)
	}
	return nil
}

func (p *program) selection(c *cli.Context) (selection, error) {
	s := selection{
		accounts: lower(words(c.StringSlice(optAccounts))),
		all:      c.Bool(optAll), usersOnly: c.Bool(optUsersOnly),
	}
	for _, name := range words(c.StringSlice(optUsers)) {
		if name == "-1" {
			return selection{all: true, accounts: s.accounts, usersOnly: s.usersOnly}, nil
		}
		user, err := userName(name)
		if err != nil {
			return selection{}, err
		}
		s.users = append(s.users, user)
		s.all = false // as in sshare, naming users takes back -a
	}
	if !s.all && len(s.users) == 0 {
		s.users, s.own = []string{p.caller}, true
	}
	return s, nil
}

// userName is a user's name, given it or the uid.
func userName(text string) (string, error) {
	if text[0] < '0' || text[0] > '9' {
		return text, nil
	}
	u, err := user.LookupId(text)
	if err != nil {
		return "", usagef("no user has the uid %s", text)
	}
	return u.Username, nil
}

// words are the parts of a list that are not empty, without blanks around them.
func words(list []string) []string {
	var out []string
	for _, w := range list {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

func lower(words []string) []string {
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}
