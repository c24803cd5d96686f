// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// workedExample is the example of docs/algorithm.md: 16 GPUs, a window of a
// week, in which vision's share grew at language's cost five days after it
// began, and robots got a deposit of 100 GPU-hours.
func workedExample() fairshare.Input {
	w := hours(0, 168)
	language, vision, robots := account("language", "root", 0, equal("ada"), equal("alan")), account("vision", "root", 0, equal("vera")), account("robots", "root", 20, equal("rosa"))
	language.Share = changing(percent(60), change[fairshare.Share]{120, percent(50)})
	vision.Share = changing(percent(20), change[fairshare.Share]{120, percent(30)})
	robots.Grants = []fairshare.Grant{{Period: w, Amount: 100 * fairshare.GPUHour}}
	return fairshare.Input{
		Budget: budget(16, language, vision, robots, account("scratch", "root", 0, equal("sam"))),
		Window: w,
		Charges: []fairshare.Charge{
			charge("language", "ada", w, 700), charge("language", "alan", w, 500),
			charge("vision", "vera", w, 300), charge("robots", "rosa", w, 300),
		},
	}
}

// workedJobs are the pending jobs of the example.
func workedJobs() []fairshare.Job {
	return []fairshare.Job{
		{Account: "robots", User: "rosa", QOSPriority: 10, Nice: 100, Age: 86_400},
		{Account: "vision", User: "vera", QOSPriority: 10, Age: 3 * 86_400},
		{Account: "language", User: "ada", QOSPriority: 50},
		{Account: "language", User: "alan", QOSPriority: 10, Age: 86_400},
		{Account: "language", User: "ada", QOSPriority: 10, Age: 7 * 86_400},
		{Account: "language", User: "alan", QOSPriority: 10, Nice: 100, Age: 7 * 86_400},
		{Account: "scratch", User: "sam", QOSPriority: 50},
	}
}

// workedTables is what docs/algorithm.md prints, block by block.
func workedTables() []string {
	in := workedExample()
	r := fairshare.Rank(in)
	blocks := make([]strings.Builder, 3)

	fmt.Fprintf(&blocks[0], "%-10s%10s%8s%8s%8s%9s%6s\n", "account", "entitled", "used", "S", "U", "LevelFS", "rank")
	var due, used fairshare.GPUMillis
	for _, a := range r.Accounts[1:] {
		due, used = due+a.Entitled, used+a.Used
	}
	for _, a := range r.Accounts[1:] {
		fmt.Fprintf(&blocks[0], "%-10s%10.1f%8.0f%8.4f%8.4f%9.4f%6d\n", a.Name, a.Entitled.Hours(), a.Used.Hours(),
			float64(a.Entitled)/float64(due), float64(a.Used)/float64(used), a.LevelFS, a.Rank)
	}

	fmt.Fprintf(&blocks[1], "%-10s%-6s%10s%8s%9s%6s%8s\n", "account", "user", "entitled", "used", "LevelFS", "rank", "factor")
	for _, u := range r.Users {
		fmt.Fprintf(&blocks[1], "%-10s%-6s%10.1f%8.0f%9.4f%6d%8.1f\n", u.Account, u.User, u.Entitled.Hours(), u.Used.Hours(), u.LevelFS, u.Rank, u.Factor)
	}

	weights := fairshare.Weights{Age: 1000, MaxAge: 7 * 86_400}
	jobs := workedJobs()
	s := strictOf(r, weights, jobs)
	fmt.Fprintf(&blocks[2], "%-10s%-6s%4s%6s%6s%12s%11s%11s%10s%10s\n", "account", "user", "qos", "nice", "days", "PRIORITY", "FAIRSHARE", "QOS", "NICE", "AGE")
	for i := range jobs {
		job := &jobs[i]
		var f fairshare.Factors
		s.Priority(job, &f)
		fmt.Fprintf(&blocks[2], "%-10s%-6s%4d%6d%6d%12d%11.0f%11.0f%10d%10.0f\n", job.Account, job.User, job.QOSPriority, job.Nice,
			job.Age/86_400, f.Priority, f.Fairshare, f.QOS, f.Nice, f.Age)
	}
	return []string{blocks[0].String(), blocks[1].String(), blocks[2].String()}
}

// The numbers of the worked example in docs/algorithm.md are those that come
// out of the package.
func TestWorkedExample(t *testing.T) {
	document, err := os.ReadFile("../docs/algorithm.md")
	require.NoError(t, err)
	for _, table := range workedTables() {
		require.Contains(t, string(document), "```text\n"+table+"```\n")
	}
}
