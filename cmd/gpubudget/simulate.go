// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/simulate"
	"gpubudget/simulate/page"
	"gpubudget/simulate/trace"
)

// Options of simulate.
const (
	optTrace            = "trace"
	optFormat           = "format"
	optRecorded         = "recorded"
	optPastOnly         = "past-only"
	optSeed             = "seed"
	optBudget           = "budget"
	optLedger           = "ledger"
	optGrant            = "grant"
	optMode             = "mode"
	optNodes            = "nodes"
	optOutage           = "outage"
	optDrain            = "drain"
	optPolicies         = "policy"
	optSweep            = "sweep"
	optWhatIf           = "what-if"
	optSkipBad          = "skip-bad"
	optFor              = "for"
	optCSV              = "csv"
	optReport           = "report"
	optLookback         = "lookback"
	optHalfLife         = "half-life"
	optMinRuntime       = "min-runtime"
	optMinRuntimeCap    = "min-runtime-cap"
	optCheckpoint       = "checkpoint"
	optMargin           = "margin"
	optCalcInterval     = "calc-interval"
	optBackfillInterval = "backfill-interval"
	optLargeJob         = "large-job"
	optPatientGPUs      = "patient-gpus"
	optPatience         = "patience"
	optEvictedPerGPU    = "evicted-per-gpu"
	optPreemptPerDay    = "preempt-per-day"
	optTeams            = "accounts"
	optUsers            = "users"
	optDays             = "days"
	optLoad             = "load"
	optDemand           = "demand"
	optJobs             = "jobs"
	optLargest          = "largest"
	optDebugPart        = "debug"
	optUnallocatedPart  = "unallocated"
)

func (p *program) simulateCommand() *cli.Command {
	return &cli.Command{
		Name:  "simulate",
		Usage: "try a policy on a month of jobs before trying it on people",
		Description: describe(`
Runs jobs through a cluster in simulated time, once for each policy, and compares
who got what and who waited for how long. gpubudget's own policies are worked out
by the code that the plugin runs.

Jobs come from --trace FILE, from what the plugin has recorded or are made up.
Traces are

   sacct    `+trace.SacctCommand+` --noconvert
   philly   CSV: timestamp,duration,num_gpus,cluster[,user]
   chronus  CSV: job_id,user,num_gpu,submit_time,duration in minutes
   swf      Standard Workload Format; processors are taken for GPUs

What a trace lacks, such as users or time limits, is drawn by --seed and said so
in the result. The same seed gives the same result. Budgets come from a file, see
gpubudget apply, from the ledger or, without either, are equal for all accounts.

Policies are contract (gpubudget with minimum runtimes and preemption), gpubudget
(without), multifactor (Slurm's Fair Tree), fifo, quota (as many GPUs at once as
the share comes to) and overflow (quota, and beyond it what is idle until somebody
within his quota wants it). All backfill around one job that has to wait.`,
			"gpubudget simulate",
			"gpubudget simulate --trace jobs.txt --budget tree.yaml --nodes 64x8",
			"gpubudget simulate --trace philly_2017.csv --nodes 50x8 --policy contract,multifactor",
			"gpubudget simulate --policy contract --sweep lookback=1d,3d,7d,14d",
			"gpubudget simulate --policy contract --sweep min-runtime-cap=1h,4h,8h",
			"gpubudget simulate --policy contract --what-if share:team01=40%",
			"gpubudget simulate --policy contract,quota --grant team02=20000:10d:17d",
			"gpubudget simulate --recorded 7d --nodes 128x8 --policy contract --what-if share:vision=40%",
			"gpubudget simulate --nodes h100=32x8,a100=96x4 --outage 3:2d:3d --drain 4:5d:6d"),
		Flags:  simulateFlags(),
		Action: p.simulate,
	}
}

func simulateFlags() []cli.Flag {
	g := simulate.DefaultGenerator()
	return []cli.Flag{
		&cli.StringFlag{Name: optTrace, Usage: "take the jobs from `FILE`, - for standard input (default: make them up)"},
		&cli.StringFlag{Name: optFormat, Usage: "the trace is `FORMAT`: sacct, philly, chronus or swf (default: found out)"},
		&cli.StringFlag{Name: optRecorded, Usage: "take the jobs from what the plugin has recorded in the last `DURATION`, the queue as it is now and the budgets from the ledger"},
		&cli.BoolFlag{Name: optPastOnly, Usage: "with --recorded: leave the queue as it is now out, and end with the last start on record"},
		&cli.BoolFlag{Name: optSkipBad, Usage: "leave out rows that cannot be jobs, and jobs that cannot run, and count them"},
		&cli.StringFlag{Name: optBudget, Usage: "take the budgets from the YAML `FILE`"},
		&cli.BoolFlag{Name: optLedger, Usage: "take the budgets from the ledger, as they are now"},
		&cli.StringSliceFlag{Name: optGrant, Usage: "`ACCOUNT=HOURS:FROM:UNTIL`: give an account so many GPU-hours besides, times since the first job; may be repeated"},
		&cli.StringFlag{Name: optNodes, Value: "128x8", Usage: "the cluster has `[PARTITION=]NxGPUS,...`: N nodes with so many GPUs each"},
		&cli.StringSliceFlag{Name: optOutage, Usage: "`NODE:FROM:UNTIL`: a node fails, counted from 0; times since the first job; may be repeated"},
		&cli.StringSliceFlag{Name: optDrain, Usage: "`NODE:FROM:UNTIL`: the same, but what runs there may end"},
		&cli.StringFlag{Name: optPolicies, Value: strings.Join(simulate.PolicyNames(), ","), Usage: "compare the policies `NAME,...`"},
		&cli.StringFlag{Name: optSweep, Usage: "`SETTING=VALUE,...`: run once for each value of mode, lookback, min-runtime, min-runtime-cap, half-life, checkpoint, margin, evicted-per-gpu, preempt-per-day, patient-gpus, patience, calc-interval, backfill-interval or large-job"},
		&cli.StringFlag{Name: optWhatIf, Usage: "`share:ACCOUNT=PERCENT`: run also with this share; what is short is taken from its siblings in proportion"},
		&cli.StringFlag{Name: optFor, Usage: "end after `DURATION`, or \"all\" when all jobs have ended (default: with the last submission)"},
		&cli.StringFlag{Name: optMode, Value: budgets.Strict, Usage: "gpubudget's `MODE`: strict or additive"},
		&cli.StringFlag{Name: optLookback, Value: "7d", Usage: "lookback window of gpubudget: `DURATION`"},
		&cli.StringFlag{Name: optHalfLife, Value: "7d", Usage: "half-life of multifactor: `DURATION`"},
		&cli.StringFlag{Name: optMinRuntime, Value: "1h", Usage: "minimum runtime of jobs that declare none: `DURATION`"},
		&cli.StringFlag{Name: optMinRuntimeCap, Value: "8h", Usage: "longest minimum runtime: `DURATION`"},
		&cli.StringFlag{Name: optCheckpoint, Value: "30m", Usage: "jobs save every `DURATION`, 0s for never"},
		&cli.StringFlag{Name: optMargin, Value: "0.1", Usage: "margin of the contract: `FRACTION`"},
		&cli.StringFlag{Name: optEvictedPerGPU, Value: "2", Usage: "a job evicts up to `NUMBER` GPUs of allocated jobs for each that it asks for; 0 for no limit"},
		&cli.StringFlag{Name: optPreemptPerDay, Value: "4", Usage: "a job is preempted up to `NUMBER` times in 24 hours; 0 for no limit"},
		&cli.StringFlag{Name: optCalcInterval, Value: "5m", Usage: "time between two priority passes: `DURATION`"},
		&cli.StringFlag{Name: optBackfillInterval, Value: "30s", Usage: "time between two backfill passes: `DURATION`"},
		&cli.StringFlag{Name: optLargeJob, Usage: "jobs of `GPUS` or more keep the nodes held for them until they start, which Slurm has no setting for; 0 for none (default: 0)"},
		&cli.StringFlag{Name: optPatientGPUs, Usage: "jobs of `GPUS` or more that have waited for --patience evict smaller ones as docs/contract.md says; 0 for none (default: 32)"},
		&cli.StringFlag{Name: optPatience, Value: "1h", Usage: "for how long such jobs have to have waited: `DURATION`"},
		&cli.Uint64Flag{Name: optSeed, Value: g.Seed, Usage: "`NUMBER` from which all that is random follows"},
		&cli.IntFlag{Name: optDays, Value: g.Days, Usage: "made-up jobs: `DAYS` of them"},
		&cli.IntFlag{Name: optTeams, Value: g.Accounts, Usage: "made-up jobs: `NUMBER` of accounts"},
		&cli.IntFlag{Name: optUsers, DefaultText: "8; 20 for traces", Usage: "`NUMBER` of users in each account, where they are made up"},
		&cli.Float64Flag{Name: optLoad, Value: g.Load, Usage: "made-up jobs: GPU time of all as a `MULTIPLE` of what there is"},
		&cli.Float64Flag{Name: optDemand, Value: g.Demand, Usage: "made-up jobs: GPUs asked for at once as a `MULTIPLE` of what there is; 0 for no limit"},
		&cli.IntFlag{Name: optJobs, DefaultText: "as many as make the load", Usage: "made-up jobs: `NUMBER` of them, stretched to make the load"},
		&cli.IntFlag{Name: optLargest, Value: g.LargestJob, Usage: "made-up jobs: the largest has `GPUS`"},
		&cli.Float64Flag{Name: optDebugPart, Value: g.Debug, Usage: "made-up jobs: `PART` that somebody waits for"},
		&cli.Float64Flag{Name: optUnallocatedPart, Value: g.Unallocated, Usage: "made-up jobs: `PART` that declares a minimum runtime of 0"},
		&cli.BoolFlag{Name: optCSV, Usage: "print CSV"},
		&cli.StringFlag{Name: optReport, Usage: "write a page with drawings to `FILE`, HTML that needs nothing else"},
	}
}

// scene is what all runs have in common.
type scene struct {
	workload *simulate.Workload
	source   string // where the jobs come from; "" if they are made up
	cluster  simulate.Cluster
	budget   *fairshare.Budget
	until    int64
	queued   bool // the jobs are those of the live queue, too

	rules *budgets.Policy // the ledger's or the file's; nil if there are none
	// minRuntimes are those of accounts that have another than the cluster, by the
	// ledger or the file.
	minRuntimes map[string]time.Duration
	unknown     map[int16]string // partitions of the trace that the cluster doesn't have, by the number that jobs have there
	skipped     []trace.Count
}

// variant is one run.
type variant struct {
	label  string
	policy simulate.Policy
	budget *fairshare.Budget
}

func (p *program) simulate(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	s, err := p.scene(c)
	if err != nil {
		return err
	}
	variants, err := variants(c, s)
	if err != nil {
		return err
	}
	var drawn *page.Page
	if c.IsSet(optReport) {
		drawn = page.New(s.workload, &s.cluster, s.length())
		drawn.Notes = s.notes()
	}
	results := make([]*simulate.Result, len(variants))
	for i, v := range variants {
		if results[i], err = runVariant(s, v, p.simulationBar(v.label, i, len(variants)), drawn); err != nil {
			return err
		}
	}
	p.endSimulationBar()
	if drawn != nil {
		if err := writePage(c.String(optReport), drawn); err != nil {
			return err
		}
	}
	return p.printSimulation(c, s, results)
}

func runVariant(s *scene, v variant, bar func(done, jobs int), drawn *page.Page) (*simulate.Result, error) {
	config := simulate.Config{
		Workload: s.workload, Cluster: s.cluster, Budget: v.budget, Policy: v.policy, Until: s.until, Progress: bar,
	}
	var panel *page.Panel
	if drawn != nil {
		panel = drawn.Panel(v.label, v.budget)
		config.Record = panel.Record
	}
	result, err := simulate.Run(config)
	if err != nil {
		return nil, err
	}
	result.Policy = v.label
	if panel != nil {
		panel.Finish(result)
	}
	return result, nil
}

// length is for how long a page draws.
func (s *scene) length() int64 {
	if s.until > 0 {
		return s.until
	}
	return s.workload.Span() + 1
}

func writePage(name string, drawn *page.Page) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return errors.Join(drawn.Write(f), f.Close())
}

// simulationBar shows on a terminal how far a run is.
func (p *program) simulationBar(label string, i, n int) func(done, jobs int) {
	if !p.progress {
		return nil
	}
	const width = 30
	shown := -1
	return func(done, jobs int) {
		full := width
		if jobs > 0 {
			full = width * done / jobs
		}
		if full == shown {
			return
		}
		shown = full
		fmt.Fprintf(p.stderr, "\r%-20s [%s%s] %d of %d", label, strings.Repeat("#", full), strings.Repeat(" ", width-full), i+1, n)
	}
}

func (p *program) endSimulationBar() {
	if p.progress {
		fmt.Fprintf(p.stderr, "\r\x1b[K")
	}
}

// day is here what it is to a sliding window.
const day = 24 * time.Hour
