// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"cmp"
	"slices"
	"time"

	"gpubudget/fairshare"
)

// Capacity is how many GPUs there are, over time, in a run that begins then. Before
// it there were as many as there are without outages.
func (c *Cluster) Capacity(begin time.Time) []fairshare.Step[fairshare.MilliGPUs] {
	steps := Always(fairshare.MilliGPUs(c.GPUs()) * fairshare.GPU)
	for _, e := range c.losses() {
		last := &steps[len(steps)-1]
		at := fairshare.At(begin) + fairshare.Instant(e.at*1000)
		value := last.Value + fairshare.MilliGPUs(e.gpus)*fairshare.GPU
		if last.From == at {
			last.Value = value
			continue
		}
		last.Until = at
		steps = append(steps, fairshare.Step[fairshare.MilliGPUs]{Period: fairshare.Period{From: at, Until: fairshare.Never}, Value: value})
	}
	return steps
}

// loss is so many GPUs more or fewer from a second on.
type loss struct {
	at   int64
	gpus int
}

// losses are what nodes take with them when they go and bring back, in order.
func (c *Cluster) losses() []loss {
	away := make(map[int][]Outage)
	for _, o := range c.Outages {
		away[o.Node] = append(away[o.Node], o)
	}
	var losses []loss
	first := 0
	for _, p := range c.Partitions {
		for node := first; node < first+p.Nodes; node++ {
			for _, o := range joined(away[node]) {
				losses = append(losses, loss{o.From, -p.GPUsPerNode}, loss{o.Until, p.GPUsPerNode})
			}
		}
		first += p.Nodes
	}
	slices.SortFunc(losses, func(x, y loss) int { return cmp.Compare(x.at, y.at) })
	return losses
}

// joined are the outages of a node with those that overlap or touch put together.
func joined(outages []Outage) []Outage {
	slices.SortFunc(outages, func(x, y Outage) int { return cmp.Compare(x.From, y.From) })
	var all []Outage
	for _, o := range outages {
		if n := len(all); n > 0 && o.From <= all[n-1].Until {
			all[n-1].Until = max(all[n-1].Until, o.Until)
			continue
		}
		all = append(all, o)
	}
	return all
}
