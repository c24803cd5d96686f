// SPDX-License-Identifier: GPL-2.0-or-later

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrNotInstalled is returned by Start where the machine has no PostgreSQL
// server.
var ErrNotInstalled = errors.New("PostgreSQL's server is not installed " +
	"(no initdb in /usr/lib/postgresql/*/bin nor in PATH): apt-get install postgresql")

// installation is the machine's PostgreSQL: where its programs lie and as whom
// they run.
type installation struct {
	binDir     string
	credential *syscall.Credential // nil: as ourselves
}

func (in installation) bin(name string) string { return filepath.Join(in.binDir, name) }

// installed finds the machine's newest PostgreSQL.
func installed() (installation, error) {
	binDir, err := findBinDir()
	if err != nil {
		return installation{}, err
	}
	credential, err := serverCredential()
	if err != nil {
		return installation{}, err
	}
	return installation{binDir, credential}, nil
}

func findBinDir() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", fmt.Errorf("look for PostgreSQL: %w", err)
	}
	newest, newestVersion := "", -1
	for _, initdb := range found {
		dir := filepath.Dir(initdb)
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && version > newestVersion {
			newest, newestVersion = dir, version
		}
	}
	if newest != "" {
		return newest, nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", ErrNotInstalled
	}
	return filepath.Dir(initdb), nil
}

// serverCredential is the user postgres if we are root, as whom the server
// refuses to run.
func serverCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no credential is our own
	}
	u, err := user.Lookup(superuser)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root and there is no user %s "+
			"(apt-get install postgresql makes it): %w", superuser, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("uid of %s: %w", superuser, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("gid of %s: %w", superuser, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// makeDirs makes the server's directories: data for the server alone, run with
// the socket for everybody.
func (in installation) makeDirs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for path, mode := range map[string]os.FileMode{dataDir(dir): 0o700, runDir(dir): 0o755} {
		if err := os.MkdirAll(path, mode); err != nil {
			return err
		}
		if in.credential == nil {
			continue
		}
		if err := os.Chown(path, int(in.credential.Uid), int(in.credential.Gid)); err != nil {
			return err
		}
	}
	return nil
}
