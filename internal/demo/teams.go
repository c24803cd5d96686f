// SPDX-License-Identifier: GPL-2.0-or-later

package demo

import (
	"fmt"
	"slices"
	"strings"

	"gpubudget/internal/testcluster"
)

const (
	nodes       = 2
	gpusPerNode = 8
)

// teams are the accounts at the top and their budgets in percent.
var teams = []struct {
	name   string
	budget float64
}{
	{"language", 50}, {"vision", 30}, {"robots", 20},
}

// accounts is the tree: teams and their projects.
var accounts = []testcluster.Account{
	{Name: "language", Share: "50%"},
	{Name: "text", Parent: "language", Share: "60%", Users: []string{"gpub_ann", "gpub_bob"}},
	{Name: "speech", Parent: "language", Share: "40%", Users: []string{"gpub_cem"}},
	{Name: "vision", Share: "30%"},
	{Name: "images", Parent: "vision", Share: "70%", Users: []string{"gpub_dee"}},
	{Name: "video", Parent: "vision", Share: "30%", Users: []string{"gpub_eva"}},
	{Name: "robots", Share: "20%"},
	{Name: "arms", Parent: "robots", Share: "50%", Users: []string{"gpub_fay"}},
	{Name: "legs", Parent: "robots", Share: "50%", Users: []string{"gpub_gus"}},
}

// waiting is how many GPUs each user's jobs in the queue ask for, always. The
// team with the smallest budget asks for the most.
var waiting = map[string]int64{
	"gpub_ann": 3, "gpub_bob": 3, "gpub_cem": 3,
	"gpub_dee": 3, "gpub_eva": 3,
	"gpub_fay": 6, "gpub_gus": 6,
}

func users() []string {
	var names []string
	for _, a := range accounts {
		names = append(names, a.Users...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// teamOf is the team that an account belongs to.
func teamOf(account string) string {
	for _, a := range accounts {
		if a.Name == account && a.Parent != "" {
			return teamOf(a.Parent)
		}
	}
	return account
}

func budgetsLine() string {
	var parts []string
	for _, team := range teams {
		var projects []string
		for _, a := range accounts {
			if a.Parent == team.name {
				projects = append(projects, a.Name+" "+a.Share)
			}
		}
		parts = append(parts, fmt.Sprintf("%s %.0f%% (%s)", team.name, team.budget, strings.Join(projects, ", ")))
	}
	return strings.Join(parts, ", ")
}
