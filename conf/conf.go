// SPDX-License-Identifier: GPL-2.0-or-later

// Package conf reads gpubudget's configuration file and connects to the
// database that it, the command line or libpq's own environment names.
package conf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

const (
	// DefaultPath is the file read if nothing names another.
	DefaultPath = "/etc/gpubudget/gpubudget.conf"
	// PathVariable is the environment variable that names another file.
	PathVariable = "GPUBUDGET_CONF"
	// DefaultRefreshInterval is how often the plugin refreshes its snapshot.
	DefaultRefreshInterval = 30 * time.Second
	// DefaultDebugLevel is the log level if the file sets none.
	DefaultDebugLevel = "info"
)

// Shares is whose shares priorities go by.
type Shares string

// The kinds of Shares.
const (
	// SharesLedger are the budgets in the database.
	SharesLedger Shares = "ledger"
	// SharesSlurm are the Fairshare values and RawUsage of slurmdbd's
	// associations, as priority/multifactor reckons with them.
	SharesSlurm Shares = "slurm"
)

// Ties is how Fair Tree treats accounts with equal level fair shares, where
// shares are Slurm's.
type Ties string

// The kinds of Ties.
const (
	// TiesMerge ranks their users together, as Fair Tree is documented.
	TiesMerge Ties = "merge"
	// TiesSlurm ranks one account after the other, in the order of Slurm's
	// list, as Slurm does.
	TiesSlurm Ties = "slurm"
)

// Conf is what the configuration file says.
type Conf struct {
	// Path is the file that was read, "" if there was none.
	Path string
	// Cluster is the name of the Slurm cluster; "" leaves it to the program
	// (the plugin: ClusterName of slurm.conf).
	Cluster string
	// DSN is a libpq connection string or URL; "" leaves it to the PG*
	// environment variables.
	DSN string
	// RefreshInterval is the time between two refreshes of the plugin's
	// snapshot from the database, from 100 ms to a day.
	RefreshInterval time.Duration
	// CalcInterval is the time between two priority passes, from 100 ms to a
	// day; 0 leaves it to PriorityCalcPeriod of slurm.conf.
	CalcInterval time.Duration
	// SpoolDir is the folder for what could not be written to the database
	// yet; "" means StateSaveLocation of slurm.conf.
	SpoolDir string
	// DebugLevel is one of Slurm's log levels: quiet, fatal, error, info,
	// verbose, debug, debug2 ... debug5.
	DebugLevel string
	// Shares is whose shares priorities go by; SharesLedger if the file does
	// not say.
	Shares Shares
	// FairTreeTies matters only where Shares is SharesSlurm; TiesMerge if the
	// file does not say.
	FairTreeTies Ties
	// Shadow has the plugin log how accounts would stand by the ledger, where
	// Shares is SharesSlurm.
	Shadow bool
	// Agent is what is said about the agents on the nodes.
	Agent Agent
}

// UsesDatabase tells whether the plugin is to work with the database: always
// for the ledger's shares, and for Slurm's if the file has a DSN.
func (c *Conf) UsesDatabase() bool { return c.Shares != SharesSlurm || c.DSN != "" }

// Defaults is the configuration of an empty file.
func Defaults() Conf {
	return Conf{
		RefreshInterval: DefaultRefreshInterval, DebugLevel: DefaultDebugLevel,
		Shares: SharesLedger, FairTreeTies: TiesMerge, Agent: defaultAgent(),
	}
}

// Load reads the configuration file at path. If path is empty it reads the
// file that the environment variable GPUBUDGET_CONF names, else DefaultPath.
// A file that was named must exist; if DefaultPath does not, the defaults
// hold. Errors in the file name it, the line and the key.
func Load(path string) (Conf, error) {
	if path == "" {
		path = os.Getenv(PathVariable)
	}
	return load(path, DefaultPath)
}

// load reads the file at path, which must exist, or without one that at
// fallback, which need not.
func load(path, fallback string) (Conf, error) {
	named := path != ""
	if !named {
		path = fallback
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return Defaults(), nil
	}
	if err != nil {
		return Conf{}, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, string(text))
}
