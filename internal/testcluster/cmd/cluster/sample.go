// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"strings"

	"gpubudget/internal/testcluster"
)

const clusterName = "gpub"

var sampleUsers = []string{"gpub_ann", "gpub_bob", "gpub_cem", "gpub_dee", "gpub_eva", "gpub_fay"}

func userList() string { return strings.Join(sampleUsers, ", ") }

// sample is a cluster with two levels of budgets.
func sample() testcluster.Options {
	ann, bob, cem, dee, eva, fay := sampleUsers[0], sampleUsers[1], sampleUsers[2], sampleUsers[3], sampleUsers[4], sampleUsers[5]
	return testcluster.Options{
		Name:     clusterName,
		Nodes:    4,
		Users:    sampleUsers,
		Slurmdbd: true,
		Priority: testcluster.Gpubudget,
		Detached: true,
		QOS:      map[string]int{"low": 0, "high": 100},
		Accounts: []testcluster.Account{
			{Name: "language", Share: "50%"},
			{Name: "text", Parent: "language", Share: "70%", Users: []string{ann, bob}},
			{Name: "speech", Parent: "language", Share: "30%", Users: []string{bob, cem}},
			{Name: "vision", Share: "30%"},
			{Name: "images", Parent: "vision", Share: "60%", Users: []string{dee}},
			{Name: "video", Parent: "vision", Share: "40%", Users: []string{dee, eva}},
			{Name: "robots", Share: "20%", Users: []string{fay}},
		},
	}
}
