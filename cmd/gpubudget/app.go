// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// Names of the global options.
const (
	optDSN       = "dsn"
	optConf      = "conf"
	optCluster   = "cluster"
	optActor     = "actor"
	optImmediate = "immediate"
	optNoHeader  = "noheader"
	optParsable  = "parsable"
	optParsable2 = "parsable2"
	optJSON      = "json"
	optQuiet     = "quiet"
	optVersion   = "version"
)

// app is the command tree. Options are looked up by the constants above; those
// of a single command stand in its own file.
func (p *program) app() *cli.App {
	app := &cli.App{
		Name:      "gpubudget",
		Usage:     "split GPU time over accounts and users, and keep the ledger of it",
		UsageText: "gpubudget [OPTIONS] COMMAND [OPTIONS] [ARGUMENTS]",
		Description: "Accounts stand in a tree; each holds a share of the GPU time of the one\n" +
			"   above. Every change is an entry in a ledger that is never rewritten.",
		Flags:    globalFlags(),
		Commands: p.commands(),
		Action:   p.root,

		Reader:    p.stdin,
		Writer:    p.stdout,
		ErrWriter: p.stderr,

		HideVersion:     true, // --version is an option of our own
		HideHelpCommand: true, // arrange turns "help" into --help
		ExitErrHandler:  func(*cli.Context, error) {},
		OnUsageError:    badOption,

		CustomAppHelpTemplate: appHelp,
	}
	for _, f := range app.Flags {
		hideFalse(f)
	}
	prepare(app.Commands)
	return app
}

// badOption is an option's value that the cli package could not read.
func badOption(c *cli.Context, err error, _ bool) error {
	return misuse(c, "%s", strings.Replace(err.Error(), "for flag -", "for option --", 1))
}

// hideFalse keeps help from saying that a switch is off by default.
func hideFalse(f cli.Flag) {
	if b, ok := f.(*cli.BoolFlag); ok {
		b.DisableDefaultText = true
	}
}

// prepare gives all commands the same manners.
func prepare(commands []*cli.Command) {
	for _, c := range commands {
		c.HideHelpCommand = true
		c.CustomHelpTemplate = commandHelp
		if c.Description == "" {
			c.Description = describe(groupText, firstExamples(c.Subcommands)...)
		}
		for _, f := range c.Flags {
			hideFalse(f)
		}
		c.OnUsageError = badOption
		prepare(c.Subcommands)
	}
}

func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: optDSN, Usage: "connect to the database at `DSN`, a libpq connection string or URL"},
		&cli.StringFlag{Name: optConf, Usage: "read the configuration `FILE`"},
		&cli.StringFlag{Name: optCluster, Aliases: []string{"M"}, Usage: "work on the cluster `NAME`"},
		&cli.StringFlag{Name: optActor, Usage: "record `WHO` as the one who acts (default: your Unix user, before sudo)"},
		&cli.BoolFlag{Name: optImmediate, Aliases: []string{"i"}, Usage: "commit changes without asking"},
		&cli.BoolFlag{Name: optNoHeader, Aliases: []string{"n"}, Usage: "leave out the header"},
		&cli.BoolFlag{Name: optParsable, Aliases: []string{"p"}, Usage: "put a | after every field"},
		&cli.BoolFlag{Name: optParsable2, Aliases: []string{"P"}, Usage: "put a | between fields"},
		&cli.BoolFlag{Name: optJSON, Usage: "print JSON"},
		&cli.BoolFlag{Name: optQuiet, Aliases: []string{"Q"}, Usage: "print nothing about changes that were made"},
		&cli.BoolFlag{Name: optVersion, Aliases: []string{"V"}, Usage: "print the version"},
	}
}

// commands is all commands in the order in which help lists them.
func (p *program) commands() []*cli.Command {
	return []*cli.Command{
		p.accountCommand(),
		p.userCommand(),
		p.shareCommand(),
		p.depositCommand(),
		p.transferCommand(),
		p.refundCommand(),
		p.treeCommand(),
		p.explainCommand(),
		p.ledgerCommand(),
		p.policyCommand(),
		p.weightCommand(),
		p.usageCommand(),
		p.simulateCommand(),
		p.importCommand(),
		p.applyCommand(),
		p.exportCommand(),
		p.dbCommand(),
		p.completionCommand(),
		p.completeCommand(),
		p.versionCommand(),
	}
}

// root runs if no command is named.
func (p *program) root(c *cli.Context) error {
	if c.Bool(optVersion) {
		return p.printVersion(c)
	}
	return cli.ShowAppHelp(c)
}
