// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// namespace is a private process and mount namespace that a whole cluster runs
// in. Its first process, the holder, does nothing but live: when it ends, the
// kernel ends every process in there, job steps and their children included,
// and it ends with our end of its standard input, however we die.
//
// Within it /etc/passwd and /etc/group are files of our own, so that a cluster
// has users the machine knows nothing of, and /proc/driver shows MIG instances if it
// is to have any.
type namespace struct {
	pid    int           // the holder's, as seen from outside
	lease  io.Closer     // the holder lives while this is open; nil if detached
	exited chan struct{} // closed when the holder has ended
}

// holderScript prepares the namespace and becomes the holder, which ignores
// SIGCHLD so that the kernel itself reaps the orphans a first process inherits.
const holderScript = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$1/etc/passwd" /etc/passwd
mount --bind "$1/etc/group" /etc/group
if [ -s "$1/etc/mig-minors" ]; then
	mount -t tmpfs tmpfs /proc/driver
	mkdir /proc/driver/nvidia-caps
	cp "$1/etc/mig-minors" /proc/driver/nvidia-caps
fi
echo ready
shift
exec env --ignore-signal=CHLD "$@" >/dev/null 2>&1
`

// newNamespace makes a namespace with the passwd and group files in dir/etc. A
// detached one lives until kill; files are inherited by the holder and so stay
// open (and locked) as long as it lives.
func newNamespace(dir string, detached bool, files ...*os.File) (*namespace, error) {
	hold := []string{"cat"}
	if detached {
		hold = []string{"sleep", "infinity"}
	}
	cmd := exec.Command("sh", append([]string{"-c", holderScript, "sh", dir}, hold...)...) //nolint:noctx // it outlives the call
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + systemPath}
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a namespace: %w", err)
	}
	var lease io.WriteCloser
	if !detached {
		if lease, err = cmd.StdinPipe(); err != nil {
			return nil, fmt.Errorf("make a namespace: %w", err)
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a namespace (this needs root and CAP_SYS_ADMIN): %w", err)
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if line != "ready\n" {
		err := cmd.Wait()
		return nil, fmt.Errorf("make a namespace: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	ns := &namespace{pid: cmd.Process.Pid, exited: make(chan struct{})}
	if lease != nil {
		ns.lease = lease
	}
	go func() {
		defer close(ns.exited)
		_ = cmd.Wait() // it ends by being killed
	}()
	return ns, nil
}

// start starts cmd within the namespace; cmd stays a child of ours.
func (ns *namespace) start(cmd *exec.Cmd) error {
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	result := make(chan error)
	go func() {
		// A thread that has changed its namespaces can't go back: it stays
		// locked to this goroutine and ends with it.
		runtime.LockOSThread()
		result <- func() error {
			if err := ns.enter(); err != nil {
				return fmt.Errorf("enter the cluster's namespace: %w", err)
			}
			return cmd.Start()
		}()
	}()
	return <-result
}

func (ns *namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for _, space := range []struct {
		name string
		kind int
	}{{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", ns.pid, space.name))
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), space.kind)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("%s namespace: %w", space.name, err)
		}
	}
	return nil
}

// kill ends every process of the namespace and waits until they are gone.
func (ns *namespace) kill() error {
	if err := syscall.Kill(ns.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the cluster's processes: %w", err)
	}
	select {
	case <-ns.exited:
	case <-time.After(10 * time.Second):
		return fmt.Errorf("end the cluster's processes: process %d does not end", ns.pid)
	}
	if ns.lease == nil {
		return nil
	}
	if err := ns.lease.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("end the cluster's processes: %w", err)
	}
	return nil
}

// birth is when the process started, in the kernel's own unit since boot: with
// its id it names a process for good. An error wraps os.ErrNotExist if there is
// no such process.
func birth(pid int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses and may hold
	// anything; the ones after the last parenthesis are numbers.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const startTime = 19 // 22nd of all
	if len(fields) <= startTime {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	if fields[0] == "Z" {
		return 0, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}
