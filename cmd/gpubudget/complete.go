// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/conf"
)

// completeName is the hidden command that the shells' scripts call.
const completeName = "__complete"

// completeWithin is how long a completion may take: nobody waits for a
// database at the Tab key.
const completeWithin = time.Second

// names finds what an argument or the value of an option can be.
type names func(c *cli.Context, db *database) ([]string, error)

// argumentNames is what the arguments of commands are, by position; the last
// goes for all that follow.
var argumentNames = map[string][]names{
	"account move":   {accountNames, accountNames},
	"account close":  {accountNames},
	"user add":       {userNames, accountNames},
	"user remove":    {userNames, accountNames},
	"user list":      {accountNames},
	"share set":      {accountNames, nil},
	"share list":     {accountNames},
	"deposit":        {accountNames, nil},
	"transfer":       {accountNames, accountNames, nil},
	"tree":           {accountNames},
	"explain":        {subjectNames},
	"policy get":     {settingNames},
	"policy set":     {settingNames, nil},
	"policy history": {settingNames},
	"weight set":     {typeNames, nil},
	"weight list":    {},
	"weight history": {typeNames},
}

// optionNames is what the values of options are.
var optionNames = map[string]names{
	optAccount: accountNames,
	optParent:  accountNames,
	optUser:    userNames,
	optCluster: clusterNames,
	optKind:    func(*cli.Context, *database) ([]string, error) { return kindNames(), nil },
	optShares: func(*cli.Context, *database) ([]string, error) {
		return []string{string(conf.SharesLedger), string(conf.SharesSlurm)}, nil
	},
}

func (p *program) completeCommand() *cli.Command {
	return &cli.Command{
		Name:            completeName,
		Usage:           "list what can come next on a command line",
		Description:     describe("For the scripts of gpubudget completion.", "gpubudget __complete share set vi"),
		Hidden:          true,
		SkipFlagParsing: true,
		Action:          p.complete,
	}
}

// complete prints what the last of its arguments can become. A command line
// that makes no sense has no completion, and is no error.
func (p *program) complete(c *cli.Context) error {
	words := c.Args().Slice()
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	current := words[len(words)-1]
	for _, candidate := range p.candidates(c, words[:len(words)-1], current) {
		if strings.Contains(candidate, "/") && !strings.Contains(current, "/") {
			continue // a user of an account: once that is typed
		}
		if strings.HasPrefix(candidate, current) {
			fmt.Fprintln(p.stdout, candidate)
		}
	}
	return nil
}

// candidates is what can come after the words before.
func (p *program) candidates(c *cli.Context, before []string, current string) []string {
	a := arranger{commands: visible(c.App.Commands), global: flagTable(c.App.Flags)}
	for i := 0; i < len(before); {
		used, err := a.take(before[i:])
		if err != nil {
			// The last word may be an option whose value is being typed.
			if flag, _ := a.find(strings.TrimLeft(before[i], "-")); i == len(before)-1 && flag != nil {
				return p.lookUp(c, &a, optionNames[flag.Names()[0]])
			}
			return nil
		}
		i += used
	}
	switch {
	case strings.HasPrefix(current, "-"):
		return a.optionWords()
	case len(a.commands) > 0 && len(a.arguments) == 0:
		return commandNames(a.commands)
	}
	finders := argumentNames[strings.Join(a.path, " ")]
	if n := len(a.arguments); n < len(finders) {
		return p.lookUp(c, &a, finders[n])
	}
	return nil
}

func visible(commands []*cli.Command) []*cli.Command {
	return slices.DeleteFunc(slices.Clone(commands), func(c *cli.Command) bool { return c.Hidden })
}

// optionWords is all options that may stand here.
func (a *arranger) optionWords() []string {
	words := []string{"--help"}
	add := func(flags map[string]cli.Flag) {
		for name := range flags {
			if len(name) > 1 {
				words = append(words, "--"+name)
			}
		}
	}
	add(a.global)
	if a.command != nil {
		add(flagTable(a.command.Flags))
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// lookUp asks the database that the words typed so far lead to.
func (p *program) lookUp(c *cli.Context, a *arranger, find names) []string {
	if find == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context, completeWithin)
	defer cancel()
	var found []string
	line := append([]string{c.App.Name}, a.globals...)
	line = append(line, lookUpName)
	app := p.app()
	app.Commands = []*cli.Command{{Name: lookUpName, Action: func(c *cli.Context) error {
		return p.withDatabase(c, func(db *database) (err error) {
			found, err = find(c, db)
			return err
		})
	}}}
	if err := app.RunContext(ctx, line); err != nil {
		return nil // no database, no names
	}
	return found
}

const lookUpName = "look-up"

func accountNames(c *cli.Context, db *database) ([]string, error) {
	cluster, err := db.cluster(c)
	if err != nil {
		return nil, err
	}
	now, err := db.now(c.Context)
	if err != nil {
		return nil, err
	}
	accounts, err := db.ledger.Accounts(c.Context, cluster, now)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(accounts))
	for i, a := range accounts {
		out[i] = a.Name
	}
	return out, nil
}

// subjectNames is accounts and their users. Jobs are not asked for: nobody waits
// for slurmctld at the Tab key.
func subjectNames(c *cli.Context, db *database) ([]string, error) {
	accounts, err := accountNames(c, db)
	if err != nil {
		return nil, err
	}
	users, err := usersNow(c, db)
	if err != nil {
		return nil, err
	}
	for _, u := range users {
		accounts = append(accounts, u.Account+"/"+u.Name)
	}
	return accounts, nil
}

// usersNow is every membership there is at present.
func usersNow(c *cli.Context, db *database) ([]budgets.User, error) {
	cluster, err := db.cluster(c)
	if err != nil {
		return nil, err
	}
	now, err := db.now(c.Context)
	if err != nil {
		return nil, err
	}
	return db.ledger.Users(c.Context, cluster, "", now)
}

func userNames(c *cli.Context, db *database) ([]string, error) {
	users, err := usersNow(c, db)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, u := range users {
		out = append(out, u.Name)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func clusterNames(c *cli.Context, db *database) ([]string, error) {
	return db.ledger.Clusters(c.Context)
}

// typeNames is the types of GPUs that the cluster has, or that a weight was given.
func typeNames(c *cli.Context, db *database) ([]string, error) {
	cluster, err := db.cluster(c)
	if err != nil {
		return nil, err
	}
	now, err := db.now(c.Context)
	if err != nil {
		return nil, err
	}
	rows, err := db.weights(c.Context, cluster, now)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, row := range rows {
		out = append(out, row.Type)
	}
	return out, nil
}

func settingNames(*cli.Context, *database) ([]string, error) { return budgets.Settings, nil }
