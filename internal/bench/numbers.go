// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// quantile is the smallest value that a part q of all values do not exceed.
func quantile[T ~uint32 | ~float64](values []T, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return float64(sorted[max(i, 0)])
}

// median is the middle value, the mean of the two middle ones of an even number.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// printer prints results, and keeps them to tell how they grow.
type printer struct {
	out     io.Writer
	err     error
	results []result
}

type result struct {
	side, name string
	jobs       int
	value      float64
}

func (p *printer) print(name string, value float64, unit string) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, "bench: %s %.4g %s\n", name, value, unit)
	}
}

// line prints a number that is of both sides.
func (p *printer) line(name string, jobs int, value float64, unit string) {
	p.print(fmt.Sprintf("%s/jobs=%d", name, jobs), value, unit)
}

// side prints a number of one side.
func (p *printer) side(side, name string, jobs int, value float64, unit string) {
	p.results = append(p.results, result{side, name, jobs, value})
	p.line(side+"/"+name, jobs, value, unit)
}

// ratio prints what is ours over what is stock's.
func (p *printer) ratio(name string, jobs int, value float64) {
	p.line("ratio/"+name, jobs, value, "x")
}

// growth prints how many times as much there is at each size as at the one
// before.
func (p *printer) growth(sizes []int) {
	at := make(map[result]float64)
	for _, r := range p.results {
		at[result{r.side, r.name, r.jobs, 0}] = r.value
	}
	for _, r := range p.results {
		i := slices.Index(sizes, r.jobs)
		if i < 1 || r.value == 0 {
			continue
		}
		before := at[result{r.side, r.name, sizes[i-1], 0}]
		if before > 0 {
			p.print(fmt.Sprintf("growth/%s/%s/jobs=%d..%d", r.side, r.name, sizes[i-1], r.jobs), r.value/before, "x")
		}
	}
}
