// SPDX-License-Identifier: GPL-2.0-or-later

// Cluster leaves a small Slurm cluster with budgets running, to try things on,
// and ends it again: "cluster up" and "cluster down". It is what make
// cluster-up and make cluster-down call, in the repository's folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"gpubudget/internal/testcluster"
)

// link leads to the folder of the cluster that "cluster up" has started. The
// folder itself lies in the temp folder: daemons run as several users, who may
// not be able to reach the repository.
const link = "build/cluster"

const startTimeout = 2 * time.Minute

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1) //nolint:gocritic // which ends what cancel would
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 1 {
		switch args[0] {
		case "up":
			return up(ctx)
		case "down":
			return down()
		}
	}
	return errors.New("usage: cluster up|down")
}

func up(ctx context.Context) error {
	dir, running, err := current()
	if err != nil {
		return err
	}
	if running {
		fmt.Println("a cluster is running already; make cluster-down ends it")
		printHowTo(dir)
		return nil
	}
	if dir != "" {
		if err := remove(dir); err != nil {
			return err
		}
	}
	if dir, err = makeDir(); err != nil {
		return err
	}
	began := time.Now()
	if err := start(ctx, dir); err != nil {
		return errors.Join(err, remove(dir))
	}
	fmt.Printf("up in %.1f s: cluster %s, 4 nodes with 8 GPUs each, PriorityType=priority/gpubudget\n", time.Since(began).Seconds(), clusterName)
	printHowTo(dir)
	return nil
}

func start(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	opts := sample()
	opts.Dir = dir
	c, err := testcluster.Start(ctx, opts)
	if err != nil {
		return err
	}
	if err := c.LoadBudgets(ctx, map[string]string{"lookback": "1h"}); err != nil {
		return errors.Join(err, testcluster.StopDetached(dir))
	}
	return nil
}

func down() error {
	dir, running, err := current()
	if err != nil {
		return err
	}
	if dir == "" {
		fmt.Println("no cluster is running")
		return nil
	}
	if err := remove(dir); err != nil {
		return err
	}
	if running {
		fmt.Println("the cluster is down")
	} else {
		fmt.Println("the cluster had ended by itself; removed what it left")
	}
	return nil
}

// current is the folder of the last cluster, empty if it was taken down, and
// whether it runs.
func current() (dir string, running bool, err error) {
	dir, err = os.Readlink(link)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	running, err = testcluster.Running(dir)
	return dir, running, err
}

// makeDir makes a cluster's folder and the link to it, first of all: whatever
// ends us later, cluster down finds what there is to clean up.
func makeDir() (string, error) {
	dir, err := testcluster.MakeTempDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return "", err
	}
	return dir, os.Symlink(dir, link)
}

func remove(dir string) error {
	if err := testcluster.StopDetached(dir); err != nil {
		return err
	}
	return os.Remove(link)
}

func printHowTo(dir string) {
	here, err := filepath.Abs("bin")
	if err != nil {
		here = "bin"
	}
	fmt.Printf(`
For Slurm's and gpubudget's commands as root, in this shell:
  export SLURM_CONF=%[1]s/etc/slurm.conf GPUBUDGET_CONF=%[1]s/etc/gpubudget.conf PATH=%[2]s:$PATH
As one of its users (%[3]s), who exist in there only:
  %[4]s %[5]s sbatch --gpus=4 --wrap 'sleep 120'
  %[4]s %[5]s gshare
Then, for example:
  sprio -l
  gshare -a
  gpubudget tree
  gpubudget share set text 50%% --why 'speech has a deadline'
  squeue --sort=-p
Logs: %[1]s/log. The end: make cluster-down
`, dir, here, userList(), testcluster.WrapperPath(link), sampleUsers[0])
}
