// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Uids, and gids, of a cluster's own users: above what login programs hand out.
// The first few lie below the 16-bit limit, and with it below "nobody".
const (
	firstUID = 61000
	lastUID  = 64999
	moreUIDs = 100000 // from here on, if those are not enough
)

// nextUID is the uid that follows another.
func nextUID(id uint32) uint32 {
	if id == lastUID {
		return moreUIDs
	}
	return id + 1
}

// account is somebody processes of the cluster run as.
type account struct {
	name       string
	uid, gid   uint32
	home       string
	credential *syscall.Credential
}

func newAccount(name string, uid, gid uint32, home string) account {
	return account{name, uid, gid, home, &syscall.Credential{Uid: uid, Gid: gid}}
}

// systemAccount is a user that a package of the machine has made.
func systemAccount(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("no user %s on this machine (scripts/provision installs what makes it): %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("uid of %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("gid of %s: %w", name, err)
	}
	return newAccount(name, uint32(uid), uint32(gid), u.HomeDir), nil
}

// writeUsers makes the cluster's own users: passwd and group files in dir/etc
// that hold the machine's users too, and a home directory each.
func writeUsers(dir string, names []string) (map[string]account, error) {
	var passwd, group strings.Builder
	users := make(map[string]account, len(names))
	id := uint32(firstUID)
	for _, name := range names {
		u := newAccount(name, id, id, filepath.Join(dir, "home", name))
		if _, twice := users[name]; twice {
			return nil, fmt.Errorf("user %s is named twice", name)
		}
		users[name] = u
		fmt.Fprintf(&passwd, "%s:x:%d:%d::%s:/bin/bash\n", name, id, id, u.home)
		fmt.Fprintf(&group, "%s:x:%d:\n", name, id)
		if err := os.MkdirAll(u.home, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chown(u.home, int(id), int(id)); err != nil {
			return nil, err
		}
		id = nextUID(id)
	}
	for file, lines := range map[string]string{"passwd": passwd.String(), "group": group.String()} {
		machine, err := os.ReadFile(filepath.Join("/etc", file))
		if err != nil {
			return nil, err
		}
		all := strings.TrimRight(string(machine), "\n") + "\n" + lines
		if err := os.WriteFile(filepath.Join(dir, "etc", file), []byte(all), 0o644); err != nil {
			return nil, err
		}
	}
	return users, nil
}

// UID is the uid, and the gid, of one of the cluster's own users.
func (c *Cluster) UID(name string) (uint32, error) {
	u, ok := c.users[name]
	if !ok {
		return 0, fmt.Errorf("%s is no user of the cluster", name)
	}
	return u.uid, nil
}
