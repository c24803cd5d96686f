// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// loadAccounts makes Slurm's associations and QOS, before slurmctld reads them.
func (c *Cluster) loadAccounts(ctx context.Context) error {
	if _, err := c.Exec(ctx, "root", "sacctmgr", "--immediate", "add", "cluster", c.opts.Name); err != nil {
		return err
	}
	if len(c.opts.Accounts) == 0 {
		return nil
	}
	file := c.path("etc", "accounts")
	if err := os.WriteFile(file, []byte(accountsDump(c.opts.Name, c.opts.Accounts)), 0o644); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "root", "sacctmgr", "--immediate", "load", "file="+file); err != nil {
		return err
	}
	return c.addQOS(ctx)
}

// addQOS makes the QOS and opens them to all accounts, which inherit root's.
func (c *Cluster) addQOS(ctx context.Context) error {
	if len(c.opts.QOS) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(c.opts.QOS))
	for _, name := range names {
		_, err := c.Exec(ctx, "root", "sacctmgr", "--immediate", "add", "qos", name, fmt.Sprintf("priority=%d", c.opts.QOS[name]))
		if err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, "root", "sacctmgr", "--immediate", "modify", "account", "where", "name=root", "set", "qos+="+strings.Join(names, ","))
	return err
}

// accountsDump is the tree in sacctmgr's own dump format.
func accountsDump(cluster string, accounts []Account) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Cluster - '%s':Fairshare=1\n", cluster)
	text.WriteString("Parent - 'root'\nUser - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1\n")
	defaults := map[string]bool{}
	for _, a := range accounts {
		parent := a.Parent
		setDefault(&parent, "root")
		fmt.Fprintf(&text, "Parent - '%s'\nAccount - '%s':Description='%[2]s':Organization='%[2]s':Fairshare=1\n", parent, a.Name)
	}
	for _, a := range accounts {
		fmt.Fprintf(&text, "Parent - '%s'\n", a.Name)
		for _, user := range a.Users {
			fmt.Fprintf(&text, "User - '%s'", user)
			if !defaults[user] {
				defaults[user] = true
				fmt.Fprintf(&text, ":DefaultAccount='%s'", a.Name)
			}
			text.WriteString(":Fairshare=1\n")
		}
	}
	return text.String()
}

// LoadBudgets puts Options.Accounts with their shares into the ledger, through
// gpubudget's own command, with policy settings if there are any.
func (c *Cluster) LoadBudgets(ctx context.Context, policy map[string]string) error {
	return c.loadBudgets(ctx, policy)
}

// LoadBudgetsFrom is LoadBudgets with all in force from an instant on, which may
// be in the past.
func (c *Cluster) LoadBudgetsFrom(ctx context.Context, from time.Time, policy map[string]string) error {
	return c.loadBudgets(ctx, policy, "--from", from.UTC().Format(time.RFC3339))
}

func (c *Cluster) loadBudgets(ctx context.Context, policy map[string]string, options ...string) error {
	file := c.path("etc", "budgets.yaml")
	if err := os.WriteFile(file, []byte(budgetsYAML(c.opts.Name, c.opts.Accounts, policy)), 0o644); err != nil {
		return err
	}
	args := append([]string{"apply", "-i", "-f", file, "--why", "test cluster"}, options...)
	_, err := c.Exec(ctx, "root", "gpubudget", args...)
	return err
}

// budgetsYAML is the tree as gpubudget apply reads it.
func budgetsYAML(cluster string, accounts []Account, policy map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "cluster: %s\n", cluster)
	if len(policy) > 0 {
		text.WriteString("policy:\n")
		for _, setting := range slices.Sorted(maps.Keys(policy)) {
			fmt.Fprintf(&text, "  %s: %s\n", setting, policy[setting])
		}
	}
	writeYAML(&text, accounts, "root", "")
	return text.String()
}

// writeYAML writes the accounts below parent.
func writeYAML(text *strings.Builder, accounts []Account, parent, indent string) {
	first := true
	for _, a := range accounts {
		above := a.Parent
		setDefault(&above, "root")
		if above != parent {
			continue
		}
		if first {
			fmt.Fprintf(text, "%saccounts:\n", indent)
			first = false
		}
		fmt.Fprintf(text, "%s  %s:\n", indent, a.Name)
		if a.Share != "" {
			fmt.Fprintf(text, "%s    share: %s\n", indent, a.Share)
		}
		if len(a.Users) > 0 {
			fmt.Fprintf(text, "%s    users: [%s]\n", indent, strings.Join(a.Users, ", "))
		}
		writeYAML(text, accounts, a.Name, indent+"    ")
	}
}
