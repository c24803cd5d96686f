// SPDX-License-Identifier: GPL-2.0-or-later

package page_test

import (
	"bytes"
	"encoding/base64"
	"image/png"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/simulate"
	"gpubudget/simulate/page"
)

// drawn is the page of two policies on so many nodes.
func drawn(t *testing.T, nodes int) string {
	t.Helper()
	g := simulate.DefaultGenerator()
	g.GPUs, g.Days, g.Accounts, g.Users, g.LargestJob = nodes*8, 2, 3, 2, 8
	w, b, err := g.Generate()
	require.NoError(t, err)
	cluster := simulate.Cluster{Partitions: []simulate.Partition{{Nodes: nodes, GPUsPerNode: 8}}}
	p := page.New(w, &cluster, w.Span()+1)
	p.Notes = []string{`a note with <b> & "quotes"`}
	for _, name := range []string{"contract", "fifo"} {
		policy, err := simulate.DefaultPolicy(name)
		require.NoError(t, err)
		panel := p.Panel(name+" <x>", b)
		r, err := simulate.Run(simulate.Config{Workload: w, Cluster: cluster, Budget: b, Policy: policy, Until: w.Span() + 1, Record: panel.Record})
		require.NoError(t, err)
		panel.Finish(r)
	}
	var out bytes.Buffer
	require.NoError(t, p.Write(&out))
	return out.String()
}

func TestPageNeedsNothingElse(t *testing.T) {
	for _, nodes := range []int{2, 40} {
		html := drawn(t, nodes)
		require.NotContains(t, html, "<script")
		require.NotContains(t, html, "http://")
		require.NotContains(t, html, "https://")
		require.NotContains(t, html, "ZgotmplZ", "a value was not trusted by the template")
		require.NotContains(t, html, "NaN")
		require.NotContains(t, html, "<x>", "labels are escaped")
		require.Contains(t, html, "contract &lt;x&gt;")
		require.Contains(t, html, "a note with &lt;b&gt; &amp; &#34;quotes&#34;")
		for _, account := range []string{"team01", "team02", "team03"} {
			require.Equal(t, 3, strings.Count(html, account+"</span>")+strings.Count(html, "<figcaption>"+account+" "), "in the legend and with each policy")
		}
		for _, element := range []string{"svg", "div", "figure", "ul", "defs"} {
			require.Equal(t, strings.Count(html, "<"+element), strings.Count(html, "</"+element+">"), element)
		}
	}
}

// The dashed line of an account follows its share, its grants and the capacity.
func TestTheEntitlementIsDrawnOverTime(t *testing.T) {
	const hour, hours = 3600, 288 // an hour is a column
	begin := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	at := func(hour int) fairshare.Instant { return fairshare.At(begin.Add(time.Duration(hour) * time.Hour)) }
	w := &simulate.Workload{Begin: begin, Owners: []simulate.Owner{{Account: "vision", User: "ann"}, {Account: "speech", User: "bob"}}}
	w.Jobs = []simulate.Job{{Run: hour, Limit: hour, MinRuntime: simulate.Undeclared, GPUs: 4}}
	b := w.EqualBudget()
	vision := &b.Accounts[1]
	require.Equal(t, "vision", vision.Name)
	vision.Share = []fairshare.Step[fairshare.Share]{
		{Period: fairshare.Period{From: fairshare.Always, Until: at(50)}, Value: fairshare.Whole / 2},
		{Period: fairshare.Period{From: at(50), Until: fairshare.Never}, Value: fairshare.Whole / 4},
	}
	vision.Grants = []fairshare.Grant{{Period: fairshare.Period{From: at(100), Until: at(150)}, Amount: 100 * fairshare.GPUHour}}
	cluster := simulate.Cluster{
		Partitions: []simulate.Partition{{Nodes: 2, GPUsPerNode: 8}},
		Outages:    []simulate.Outage{{Node: 1, From: 200 * hour, Until: 300 * hour}, {Node: 1, From: 220 * hour, Until: 250 * hour}},
	}
	policy, err := simulate.DefaultPolicy("contract")
	require.NoError(t, err)
	p := page.New(w, &cluster, hours*hour)
	panel := p.Panel("contract", b)
	r, err := simulate.Run(simulate.Config{Workload: w, Cluster: cluster, Budget: b, Policy: policy, Until: hours * hour, Record: panel.Record})
	require.NoError(t, err)
	panel.Finish(r)
	var out bytes.Buffer
	require.NoError(t, p.Write(&out))

	var lines []string
	for _, line := range regexp.MustCompile(`<path d="([^"]+)" class="due"/>`).FindAllStringSubmatch(out.String(), -1) {
		lines = append(lines, line[1])
	}
	// Of 64 pixels 2 stand for 8 GPUs: speech has 8 and then 4; vision 8, 4, with the
	// grant 6, 4 and with half of the cluster 2.
	require.Equal(t, []string{"M0 2.0H200V33.0H288", "M0 2.0H50V33.0H100V17.5H150V33.0H200V48.5H288"}, lines)
	require.InDelta(t, 50*8+50*4+50*6+50*4+88*2, r.Accounts[1].EntitledHours, 0.01, "as in the result")
}

func TestAFewJobsAreDrawnOneByOneAndManyAsAPicture(t *testing.T) {
	few, many := drawn(t, 2), drawn(t, 40)
	require.Contains(t, few, `aria-label="which job had which GPU, over time"`)
	require.Contains(t, few, `class="cut"`, "somebody was preempted")
	require.NotContains(t, few, "data:image/png")
	pictures := regexp.MustCompile(`data:image/png;base64,([^"]+)"`).FindAllStringSubmatch(many, -1)
	require.Len(t, pictures, 2)
	for _, p := range pictures {
		raw, err := base64.StdEncoding.DecodeString(p[1])
		require.NoError(t, err)
		picture, err := png.Decode(bytes.NewReader(raw))
		require.NoError(t, err)
		colours := map[any]bool{}
		for y := range picture.Bounds().Dy() {
			for x := range picture.Bounds().Dx() {
				colours[picture.At(x, y)] = true
			}
		}
		require.Greater(t, len(colours), 3, "not one flat colour")
	}
}
