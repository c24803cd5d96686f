// SPDX-License-Identifier: GPL-2.0-or-later

package page_test

import (
	"bytes"
	"encoding/base64"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
		panel := p.Panel(name + " <x>")
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
