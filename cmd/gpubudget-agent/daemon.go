// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"gpubudget/agent"
	"gpubudget/agent/slurmnode"
	"gpubudget/conf"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// gcPercent trades a little time of the garbage collector for memory: an agent
// makes little garbage, and less than a round's worth should stay.
const gcPercent = 40

// daemon runs until it is told to end.
func (p *program) daemon(c *cli.Context) error {
	debug.SetGCPercent(gcPercent)
	config, err := p.config(c)
	if err != nil {
		return err
	}
	options, err := p.options(config)
	if err != nil {
		return err
	}
	if options.Connect, err = connector(c, config); err != nil {
		return err
	}
	a, err := agent.New(options)
	if err != nil {
		return err
	}
	options.Log.Info("gpubudget-agent begins", "version", options.Version, "cluster", options.Cluster, "node", options.Node)
	if address := config.Agent.Metrics; address != "" {
		go a.ServeMetrics(c.Context, address)
	}
	err = a.Run(c.Context)
	options.Log.Info("gpubudget-agent ends")
	return err
}

// options are what an agent of this node works with, but for the database.
func (p *program) options(config conf.Conf) (agent.Options, error) {
	if config.Cluster == "" {
		return agent.Options{}, errors.New("no cluster is named: set Cluster in gpubudget.conf, as ClusterName in slurm.conf")
	}
	boot, err := bootID()
	if err != nil {
		return agent.Options{}, err
	}
	log := p.logger(config.DebugLevel)
	a := config.Agent
	driver := nvml.New(a.Library)
	return agent.Options{
		Cluster: config.Cluster, Node: a.Node, Version: buildVersion(),
		JobsDir: a.JobsDir, SpoolDir: a.SpoolDir, MappingDir: a.MappingDir, Socket: a.Socket,
		GresConf: a.GresConf, MIGMinors: "/proc/driver/nvidia-caps/mig-minors",
		Interval: a.Interval, WriteInterval: a.WriteInterval, KeepConnection: a.KeepConnection,
		Open: func() (agent.Sampler, error) {
			m, err := meter.Open(meter.Options{Driver: driver, Log: log, Timeout: p.driverPatience})
			if err != nil {
				return nil, err
			}
			return m, nil
		},
		Cgroups: &slurmnode.Cgroups{Node: a.Node}, Clock: meter.SystemClock{}, BootID: boot, Log: log,
	}, nil
}

// connector opens connections to the database.
func connector(c *cli.Context, config conf.Conf) (func(context.Context) (agent.Database, error), error) {
	pool, err := conf.PoolConfig(c.String(optDSN), config)
	if err != nil {
		return nil, err
	}
	from := "DSN in " + config.Path
	switch {
	case c.String(optDSN) != "":
		from = "--dsn"
	case config.DSN == "":
		from = "PG* environment variables"
	}
	cc := pool.ConnConfig
	if cc.RuntimeParams["application_name"] == "gpubudget" {
		cc.RuntimeParams["application_name"] = "gpubudget-agent"
	}
	return func(ctx context.Context) (agent.Database, error) {
		conn, err := pgx.ConnectConfig(ctx, cc)
		if err != nil {
			return nil, conf.NewConnectError(cc, from, err)
		}
		return conn, nil
	}, nil
}

// logger writes to standard error, where systemd takes it from.
func (p *program) logger(level string) *slog.Logger {
	levels := map[string]slog.Level{
		"quiet": slog.LevelError + 1, "fatal": slog.LevelError + 1, "error": slog.LevelError, "info": slog.LevelInfo, "verbose": slog.LevelInfo,
	}
	at, ok := levels[level]
	if !ok {
		at = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: at}
	if p.getenv("JOURNAL_STREAM") != "" { // the journal has the time already
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && slices.Contains([]string{slog.TimeKey}, a.Key) {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(p.stderr, options))
}
