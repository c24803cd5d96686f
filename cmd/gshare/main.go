// SPDX-License-Identifier: GPL-2.0-or-later

// gshare reports how accounts and users stand: what share of the GPUs they are
// due, what they got, and who is served next. Its options are sshare's.
package main

import (
	"context"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &program{
		stdout: os.Stdout,
		stderr: os.Stderr,
		now:    time.Now,
		zone:   time.Local,
		caller: unixUser(),
	}
	code := p.run(ctx, os.Args)
	stop()
	os.Exit(code)
}

// unixUser is the name of the user who runs the program, or his uid if it has
// none.
func unixUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}
