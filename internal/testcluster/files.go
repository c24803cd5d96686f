// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	tempPrefix = "gpubudget-cluster-"
	database   = "gpubudget"
	// maxSocketPath is what the kernel takes for the path of a Unix socket.
	maxSocketPath = 107
)

// makeDirs makes the cluster's folder, locks it and makes what is in it.
func (c *Cluster) makeDirs() error {
	dir := c.opts.Dir
	var err error
	if dir == "" {
		dir, err = MakeTempDir()
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if c.lock, err = lockNewDir(dir); err != nil {
		return err
	}
	c.dir = dir
	if err := searchable(dir); err != nil {
		return err
	}
	for _, socket := range []string{c.mungeSocket(), c.path("pg", "run", ".s.PGSQL.5432")} {
		if len(socket) > maxSocketPath {
			return fmt.Errorf("the path of the socket %s is too long, choose a shorter folder", socket)
		}
	}
	for _, sub := range []struct {
		name  string
		owner account
	}{
		{"etc", account{}}, {"bin", account{}}, {"plugins", account{}}, {"gpus", account{}},
		{"home", account{}}, {"spool", account{}}, {"run", account{}}, {"lib", account{}}, {"agent", account{}},
		{"log", c.slurm}, {"state", c.slurm}, {"munge", c.munge}, {"mariadb", c.mysql}, {"mariadb/tmp", c.mysql},
	} {
		if err := os.MkdirAll(c.path(sub.name), 0o755); err != nil {
			return err
		}
		if err := os.Chown(c.path(sub.name), int(sub.owner.uid), int(sub.owner.gid)); err != nil {
			return err
		}
	}
	return c.makeGPUs()
}

// MakeTempDir makes a folder for Options.Dir in the temp folder.
func MakeTempDir() (string, error) {
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// lockNewDir locks a folder, which need not have a lock file. It gets one that is
// locked: another start, as it sweeps, may come at any moment.
func lockNewDir(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "lock-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is in a folder of ours
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = os.Link(f.Name(), filepath.Join(dir, "lock"))
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, fs.ErrExist) {
		return lockDir(dir)
	}
	return nil, fmt.Errorf("lock %s: %w", dir, err)
}

// lockDir locks the folder of a cluster: whoever holds the lock owns what lies
// in there.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, &RunningError{Dir: dir}
	}
	return nil, fmt.Errorf("lock %s: %w", dir, err)
}

// RunningError is the refusal to start a cluster in the folder of another one.
type RunningError struct{ Dir string }

func (e *RunningError) Error() string {
	return fmt.Sprintf("a cluster is running in %s already", e.Dir)
}

// sweep removes what clusters left in the temp folder whose process was killed
// before it could. It is a courtesy: errors are the next one's to meet.
func sweep() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		// Without its lock file it is being made just now, or not ours.
		if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
			continue
		}
		if lock, err := lockDir(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// searchable makes sure that every user can reach what lies in dir.
func searchable(dir string) error {
	for above := dir; ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%s is not searchable by all, so the daemons' users can't reach %s: choose another folder", above, dir)
		}
		if above == filepath.Dir(above) {
			return nil
		}
	}
}

// makeGPUs makes the device files that stand for GPUs, and for capabilities of MIG
// instances: null devices, or links to one where none can be made.
func (c *Cluster) makeGPUs() error {
	const null = 1<<8 | 3 // major 1, minor 3
	var names []string
	for i := range c.opts.GPUsPerNode {
		names = append(names, fmt.Sprintf("gpu%d", i))
	}
	for line := range strings.Lines(c.opts.MIGMinors) { // gpu3/gi1/access 30
		names = append(names, "nvidia-cap"+line[strings.LastIndexByte(line, ' ')+1:len(line)-1])
	}
	for _, name := range names {
		path := c.path("gpus", name)
		err := syscall.Mknod(path, syscall.S_IFCHR|0o666, null)
		if errors.Is(err, syscall.EPERM) {
			err = os.Symlink("/dev/null", path)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a fake GPU: %w", err)
		}
	}
	return nil
}

// copyBuild copies our plugins and commands into the cluster: the repository
// may lie where only root can read.
func (c *Cluster) copyBuild() error {
	system, err := slurmPluginDir()
	if err != nil {
		return err
	}
	c.plugin = system
	if err := copyAll(c.agentBuild()); err != nil {
		return err
	}
	if c.opts.Priority != Gpubudget {
		return nil
	}
	c.plugin += ":" + c.path("plugins")
	copies := map[string]string{}
	plugins := []string{"priority_gpubudget.so", "libgpubudget.so"}
	if c.opts.Preempt {
		plugins = append(plugins, "preempt_gpubudget.so", "spank_gpubudget.so")
	}
	if c.opts.Submit {
		plugins = append(plugins, "job_submit_gpubudget.so")
	}
	for _, name := range plugins {
		copies[filepath.Join(c.opts.PluginDir, name)] = c.path("plugins", name)
	}
	for _, name := range []string{"gpubudget", "gshare"} {
		copies[filepath.Join(c.opts.BinDir, name)] = c.path("bin", name)
	}
	return copyAll(copies)
}

// slurmPluginDir is where the distribution keeps Slurm's plugins.
func slurmPluginDir() (string, error) {
	for _, pattern := range []string{"/usr/lib/*/slurm-wlm", "/usr/lib/*/slurm", "/usr/lib64/slurm"} {
		found, err := filepath.Glob(filepath.Join(pattern, "priority_multifactor.so"))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return filepath.Dir(found[0]), nil
		}
	}
	return "", errors.New("Slurm's plugins are not installed: run scripts/provision") //nolint:staticcheck // it begins with a name
}
