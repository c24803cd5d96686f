// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version string

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "print the version",
		Description: describe("The same as gpubudget --version.", "gpubudget version"),
		Action: func(c *cli.Context) error {
			if err := wantArguments(c, 0); err != nil {
				return err
			}
			return p.printVersion(c)
		},
	}
}

func (p *program) printVersion(c *cli.Context) error {
	if c.Bool(optJSON) {
		return output.JSON(p.stdout, struct {
			Version string `json:"version"`
		}{buildVersion()})
	}
	_, err := fmt.Fprintln(p.stdout, "gpubudget", buildVersion())
	return err
}

// buildVersion is the version that the build set, else what the Go tool
// recorded of the module and the commit.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
