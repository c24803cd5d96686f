// SPDX-License-Identifier: GPL-2.0-or-later

// Package testcluster starts a private Slurm cluster on one machine: munge,
// MariaDB and slurmdbd, slurmctld, slurmds with fake GPUs, PostgreSQL with
// gpubudget's schema, and Unix users of its own. Nothing of it meets the
// machine's own services, files or users, any number run side by side, and when
// the process that started one ends, in whatever way, so does all of it.
//
// It needs root on a machine where scripts/provision has run.
package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"gpubudget/internal/pgserver"
	"gpubudget/migrations"
)

// The kinds of Options.Priority.
const (
	Gpubudget   = "gpubudget"
	Multifactor = "multifactor"
)

// Options is what a cluster consists of. The zero value is a cluster of one
// node with 8 GPUs and no slurmdbd, its users and accounts unknown to Slurm.
type Options struct {
	// Dir is where all files of the cluster lie: a new folder in the temp
	// folder if empty. Every folder above it must be searchable by all, since
	// daemons run as several users.
	Dir string
	// Name is Slurm's ClusterName: "gpub" if empty.
	Name string

	Nodes       int // 1 if 0
	GPUsPerNode int // 8 if 0
	CPUsPerNode int // 16 if 0
	// Hollow is how many nodes there are beside these that consist of an entry in
	// slurm.conf: h1, h2, ... The slurmd of n1 answers for them, so they are up and
	// can be allocated, by thousands; but nothing can be run there.
	Hollow int

	// Users are the Unix users of the cluster, beside the machine's.
	Users []string
	// Slurmdbd keeps accounts and job records (sacct, sacctmgr) in a MariaDB.
	Slurmdbd bool
	// Accounts are parents first: Slurm's associations if there is a Slurmdbd,
	// and the budgets if LoadBudgets is called.
	Accounts []Account
	// QOS are qualities of service beside "normal" and their priorities, open
	// to every account; for Slurmdbd only.
	QOS map[string]int

	// Priority is the PriorityType: Gpubudget or Multifactor, the latter if
	// empty.
	Priority string
	// Preempt has Slurm preempt by the contract's rules, requeueing whom it can,
	// and its clients know --min-runtime; for Gpubudget only.
	Preempt bool
	// Submit has slurmctld judge jobs that are submitted by their accounts' budgets;
	// for Gpubudget only.
	Submit bool
	// SlurmConf are lines of slurm.conf: they replace those of the same key,
	// but NodeName and PartitionName add to what is there.
	SlurmConf []string
	// GresConf are the lines of gres.conf; %s in them is the folder of the fake
	// GPUs, gpu0, gpu1, ... One line for all of them if empty.
	GresConf []string
	// MIGMinors is what the driver says of its capability devices in
	// /proc/driver/nvidia-caps/mig-minors, which the cluster's processes then see. The
	// devices lie beside the fake GPUs: nvidia-cap21, ...
	MIGMinors string
	// NodeGres is what each node has, as Gres of slurm.conf: its GPUs if empty.
	NodeGres string
	// GresOfNodes is what single nodes have instead, by their names.
	GresOfNodes map[string]string
	// SlurmctldEnv are NAME=VALUE settings of slurmctld's environment.
	SlurmctldEnv []string
	// Conf are lines of gpubudget.conf by key; a refresh and a calculation
	// every second are the defaults here.
	Conf map[string]string
	// PluginDir and BinDir hold our plugins and commands, which are copied into
	// the cluster: build/plugins and bin of the repository if empty.
	PluginDir, BinDir string

	// Each node runs gpubudget-agent, as an unprivileged user, on a simulated
	// driver, with Prolog and Epilog that tell it of jobs. NoAgents says why there
	// shall be none: Prolog and Epilog bear on when jobs start and end.
	NoAgents string
	// SimDir holds the simulated driver's library: build/simnvml of the
	// repository if empty.
	SimDir string

	// Detached leaves the cluster running after the process that started it;
	// Attach finds it again by its Dir.
	Detached bool
	// KeepFiles leaves the files in place when the cluster stops.
	KeepFiles bool
}

// Account is an account and the users in it, in Slurm and in the ledger.
type Account struct {
	Name   string
	Parent string // "root" if empty
	Share  string // of the parent, as "50%"; used by LoadBudgets only
	Users  []string
}

func (o Options) withDefaults() (Options, error) {
	setDefault(&o.Name, "gpub")
	setDefault(&o.Nodes, 1)
	setDefault(&o.GPUsPerNode, 8)
	setDefault(&o.CPUsPerNode, 16)
	setDefault(&o.NodeGres, fmt.Sprintf("gpu:%d", o.GPUsPerNode))
	setDefault(&o.Priority, Multifactor)
	root, err := repository()
	if err != nil && (o.PluginDir == "" || o.BinDir == "") {
		return o, err
	}
	if o.Priority == Gpubudget && o.PluginDir == "" { // make sanitize tests another build
		o.PluginDir = os.Getenv("GPUBUDGET_TEST_PLUGINS")
		o.SlurmctldEnv = mergeEnv(strings.Fields(os.Getenv("GPUBUDGET_TEST_SLURMCTLD_ENV")), o.SlurmctldEnv)
	}
	setDefault(&o.PluginDir, filepath.Join(root, "build", "plugins"))
	setDefault(&o.BinDir, filepath.Join(root, "bin"))
	setDefault(&o.SimDir, filepath.Join(root, "build", "simnvml"))
	switch {
	case o.Nodes < 0 || o.Nodes > maxNodes:
		return o, fmt.Errorf("%d nodes: a cluster has 1 to %d", o.Nodes, maxNodes)
	case o.Hollow < 0:
		return o, fmt.Errorf("%d hollow nodes", o.Hollow)
	case o.Priority != Gpubudget && o.Priority != Multifactor:
		return o, fmt.Errorf("priority %q is neither %q nor %q", o.Priority, Gpubudget, Multifactor)
	case o.Preempt && o.Priority != Gpubudget:
		return o, fmt.Errorf("Preempt goes by priority %q", Gpubudget) //nolint:staticcheck // an option's name
	case !o.Slurmdbd && len(o.QOS) > 0:
		return o, errors.New("QOS need slurmdbd")
	}
	return o, nil
}

// mergeEnv is all settings of both. Of a variable that both set the second holds,
// but for LD_PRELOAD: a sanitizer must come first there, and the libraries of a
// test behind it.
func mergeEnv(first, second []string) []string {
	const preload = "LD_PRELOAD="
	var libraries []string
	merged := slices.DeleteFunc(slices.Concat(first, second), func(setting string) bool {
		library, found := strings.CutPrefix(setting, preload)
		if found {
			libraries = append(libraries, library)
		}
		return found
	})
	if len(libraries) == 0 {
		return merged
	}
	return append(merged, preload+strings.Join(libraries, ":"))
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// repository is the folder of the source: above the working folder, or above
// this program. Binaries don't tell where they were built (-trimpath).
func repository() (string, error) {
	var from []string
	if dir, err := os.Getwd(); err == nil {
		from = append(from, dir)
	}
	if program, err := os.Executable(); err == nil {
		from = append(from, filepath.Dir(program))
	}
	for _, dir := range from {
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if isRepository(dir) {
				return dir, nil
			}
		}
	}
	return "", errors.New("the repository with build/plugins and bin was not found from here: run this in it, or name PluginDir and BinDir")
}

func isRepository(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module gpubudget\n")
}

// Cluster is a running cluster. Its methods may be called by several goroutines
// at once, but those that start and stop a daemon by one only.
type Cluster struct {
	opts   Options
	dir    string
	ports  ports
	users  map[string]account // the cluster's own
	slurm  account
	munge  account
	mysql  account
	ns     *namespace
	lock   *os.File // held while the cluster lives
	plugin string   // Slurm's PluginDir setting

	mu       sync.Mutex
	postgres *pgserver.Server   // nil while stopped
	daemons  map[string]*daemon // running, by name
}

// Start starts a cluster and returns when its nodes are idle. If it can't, the
// error holds the end of the logs and nothing is left running. The context
// bounds the start only.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("test cluster: %w", err)
	}
	sweep()
	c := &Cluster{opts: opts, daemons: map[string]*daemon{}}
	if err := c.up(ctx); err != nil {
		err = fmt.Errorf("test cluster: %w%s", err, c.LogTails())
		return nil, errors.Join(err, c.abandon())
	}
	return c, nil
}

// up does what Start says, but leaves what it has begun to the caller.
func (c *Cluster) up(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	// Slurm's accounts and PostgreSQL take a second or two each: together.
	ledger := make(chan error, 1)
	go func() { ledger <- c.firstPostgres(ctx) }()
	if err := errors.Join(c.startAccounting(ctx), <-ledger); err != nil {
		return err
	}
	if err := c.StartSlurmctld(ctx); err != nil {
		return err
	}
	for _, node := range c.Nodes() {
		if err := c.startSlurmd(node); err != nil {
			return err
		}
	}
	if err := c.startAgents(ctx); err != nil {
		return err
	}
	return c.WaitNodesIdle(ctx)
}

// prepare makes the files and the namespace the daemons need.
func (c *Cluster) prepare() error {
	var err error
	if os.Geteuid() != 0 {
		return errors.New("this needs root")
	}
	for name, a := range map[string]*account{"slurm": &c.slurm, "munge": &c.munge, "mysql": &c.mysql} {
		if *a, err = systemAccount(name); err != nil {
			return err
		}
	}
	if err := c.makeDirs(); err != nil {
		return err
	}
	if c.users, err = writeUsers(c.dir, c.opts.Users); err != nil {
		return err
	}
	if c.ports, err = reservePorts(c.opts.Nodes); err != nil {
		return err
	}
	if err := c.copyBuild(); err != nil {
		return err
	}
	if err := c.writeConfig(); err != nil {
		return err
	}
	if err := c.prepareAgents(); err != nil {
		return err
	}
	if c.ns, err = newNamespace(c.dir, c.opts.Detached, c.lock, c.ports.lock); err != nil {
		return err
	}
	if err := c.writeWrapper(); err != nil {
		return err
	}
	return c.writeHolder()
}

// startAccounting starts what Slurm's own daemons lean on.
func (c *Cluster) startAccounting(ctx context.Context) error {
	steps := []func(context.Context) error{c.startMunge}
	if c.opts.Slurmdbd {
		steps = append(steps, c.startMariaDB, c.startSlurmdbd, c.loadAccounts)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) firstPostgres(ctx context.Context) error {
	if err := c.StartPostgres(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, c.postgres.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+database)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	cfg, err := pgx.ParseConfig(c.DSN())
	if err != nil {
		return err
	}
	return migrations.Up(ctx, cfg, nil)
}

// Stop ends everything that runs, jobs included, and removes the files unless
// they are to be kept. It returns an error if slurmctld had ended by itself or
// does not end when told to.
func (c *Cluster) Stop() error {
	err := c.stopSlurmctldForGood()
	if err != nil {
		err = fmt.Errorf("test cluster: %w%s", err, c.LogTails())
	}
	return errors.Join(err, c.abandon())
}

// abandon ends everything that runs at once.
func (c *Cluster) abandon() error {
	var errs []error
	if c.ns != nil {
		errs = append(errs, c.ns.kill())
	}
	if err := c.StopPostgres(); err != nil {
		errs = append(errs, err)
	}
	if c.dir != "" && !c.opts.KeepFiles {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	for _, f := range []*os.File{c.ports.lock, c.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// KeepFiles leaves the files in place when the cluster stops.
func (c *Cluster) KeepFiles() { c.opts.KeepFiles = true }

// Dir is the folder with all files of the cluster.
func (c *Cluster) Dir() string { return c.dir }

// Name is the cluster's name in Slurm and in the ledger.
func (c *Cluster) Name() string { return c.opts.Name }

// Nodes are the names of the nodes: n1, n2, ...
func (c *Cluster) Nodes() []string {
	names := make([]string, c.opts.Nodes)
	for i := range names {
		names[i] = nodeName(i + 1)
	}
	return names
}

func nodeName(n int) string { return fmt.Sprintf("n%d", n) }

// GPUs is how many GPUs the cluster has.
func (c *Cluster) GPUs() int { return c.opts.Nodes * c.opts.GPUsPerNode }

// DSN is how to connect to gpubudget's database as its owner, for any user of
// the machine. It stays the same while PostgreSQL is stopped.
func (c *Cluster) DSN() string { return postgresDSN(c.dir) }

// SlurmConf is the path of slurm.conf, for SLURM_CONF.
func (c *Cluster) SlurmConf() string { return c.path("etc", "slurm.conf") }

// Conf is the path of gpubudget.conf.
func (c *Cluster) Conf() string { return c.path("etc", "gpubudget.conf") }

// Log is the path of a daemon's log: "slurmctld", "slurmdbd", "slurmd.n1", ...
func (c *Cluster) Log(daemon string) string { return c.path("log", daemon+".log") }

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(slices.Concat([]string{c.dir}, elem)...)
}

// LogTails is the end of each log with something in it, for error messages.
func (c *Cluster) LogTails() string {
	if c.dir == "" {
		return ""
	}
	const tailBytes = 3000
	paths, err := filepath.Glob(c.path("log", "*"))
	if err != nil {
		return "\n" + err.Error()
	}
	var all strings.Builder
	for _, path := range paths {
		if log, ok := strings.CutSuffix(path, ".out"); ok && slices.Contains(paths, log+".log") {
			continue // says the same
		}
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error())
		}
		if len(text) > tailBytes {
			text = text[len(text)-tailBytes:]
		}
		if len(text) > 0 {
			fmt.Fprintf(&all, "\n--- end of %s ---\n%s", path, text)
		}
	}
	return all.String()
}
