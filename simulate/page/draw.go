// SPDX-License-Identifier: GPL-2.0-or-later

package page

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"

	"gpubudget/simulate"
)

// hue is the colour of an account: neighbours in the list lie far apart.
func hue(i int) float64 { return math.Mod(float64(i)*137.508+20, 360) }

// lightness tells accounts apart whose hues are near each other: those are 5, 8 or
// 13 places away from one another.
func lightness(i int) float64 { return [...]float64{0.52, 0.40, 0.66}[i%3] }

// css is the colour of an account, readable on light and on dark.
func css(i int) string { return fmt.Sprintf("hsl(%.0f 60%% %.0f%%)", hue(i), 100*lightness(i)) }

// rgb is css in numbers.
func rgb(i int) color.NRGBA {
	const s = 0.60
	l := lightness(i)
	c := (1 - math.Abs(2*l-1)) * s
	h := hue(i) / 60
	x := c * (1 - math.Abs(math.Mod(h, 2)-1))
	r, g, b := c, x, 0.0
	switch int(h) {
	case 1:
		r, g, b = x, c, 0
	case 2:
		r, g, b = 0, c, x
	case 3:
		r, g, b = 0, x, c
	case 4:
		r, g, b = x, 0, c
	case 5:
		r, g, b = c, 0, x
	}
	m := l - c/2
	return color.NRGBA{uint8((r + m) * 255), uint8((g + m) * 255), uint8((b + m) * 255), 255}
}

// timeline draws who used which GPUs when: each job, if they are few, or the
// account that had most of some nodes for a while.
func (n *Panel) timeline() template.HTML {
	if n.many {
		return n.raster()
	}
	return n.bars()
}

// Sizes of a cell of a raster in pixels.
const (
	cellWidth  = 4
	cellHeight = 5
)

// raster is a picture: a row for each node or few nodes, a column for a stretch
// of time.
func (n *Panel) raster() template.HTML {
	rows, accounts := n.page.rows(), len(n.page.names)
	img := image.NewNRGBA(image.Rect(0, 0, columns*cellWidth, rows*cellHeight))
	perRow := float64(n.page.cluster.GPUs()) / float64(rows) * float64(n.page.span) / columns
	for cell := range rows * columns {
		most, sum := 0, 0.0
		for a := range accounts {
			used := n.cells[cell*accounts+a]
			sum += float64(used)
			if used > n.cells[cell*accounts+most] {
				most = a
			}
		}
		if sum == 0 {
			continue
		}
		fill(img, cell%columns*cellWidth, cell/columns*cellHeight, rgb(most), min(sum/perRow, 1), float64(n.open[cell]) > sum/2, n.cut[cell])
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		return "" // a picture in memory can be encoded
	}
	return template.HTML(fmt.Sprintf(`<img class="timeline" width="%d" height="%d" alt="which account had most of each node, over time" src="data:image/png;base64,%s">`, //nolint:gosec // made of numbers here
		columns*cellWidth, rows*cellHeight, base64.StdEncoding.EncodeToString(b.Bytes())))
}

// fill paints a cell: the fainter the less it is used, hatched if it may be
// preempted, with a dark edge where somebody was.
func fill(img *image.NRGBA, x, y int, c color.NRGBA, used float64, hatched, cut bool) {
	c.A = uint8(60 + 195*used)
	for i := range cellWidth {
		for k := range cellHeight - 1 {
			p := c
			if hatched && (x+i+y+k)%4 == 0 {
				p.R, p.G, p.B = p.R/2+110, p.G/2+110, p.B/2+110
			}
			if cut && i == cellWidth-1 {
				p = color.NRGBA{200, 20, 40, 255}
			}
			img.SetNRGBA(x+i, y+k, p)
		}
	}
}

// bars is a row for each GPU and a bar for each job.
func (n *Panel) bars() template.HTML {
	const width, height = 1152.0, 12.0
	gpus := n.page.cluster.GPUs()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="timeline" viewBox="0 0 %g %g" role="img" aria-label="which job had which GPU, over time">`, width, height*float64(gpus))
	b.WriteString(`<defs><pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V5" stroke="#fff" stroke-opacity=".55" stroke-width="2"/></pattern></defs>`)
	scale := width / float64(n.page.span)
	for _, bar := range n.seat() {
		s := bar.stint
		x, w := float64(s.Start)*scale, max(float64(min(s.End, n.page.span)-s.Start)*scale, 0.5)
		y := float64(bar.gpu) * height
		job := &n.page.workload.Jobs[s.Job]
		fmt.Fprintf(&b, `<rect x="%.2f" y="%g" width="%.2f" height="%g" fill="%s"><title>%s, job %d, %d GPUs</title></rect>`,
			x, y, w, height-1, css(n.page.account[job.Owner]), template.HTMLEscapeString(n.page.workload.Owners[job.Owner].Account), s.Job, job.GPUs)
		if open := float64(max(s.ProtectedUntil, s.Start)) * scale; open < x+w {
			fmt.Fprintf(&b, `<rect x="%.2f" y="%g" width="%.2f" height="%g" fill="url(#h)"/>`, open, y, x+w-open, height-1)
		}
		if s.Ended == simulate.Preempted {
			fmt.Fprintf(&b, `<rect x="%.2f" y="%g" width="2" height="%g" class="cut"/>`, x+w-1, y, height-1)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // names in it are escaped
}

// bar is a stint on one GPU.
type bar struct {
	stint *simulate.Stint
	gpu   int
}

// seat gives the stints GPUs of their nodes: the simulator only counts them.
func (n *Panel) seat() []bar {
	order := make([]*simulate.Stint, len(n.stints))
	for i := range n.stints {
		order[i] = &n.stints[i]
	}
	slices.SortStableFunc(order, func(x, y *simulate.Stint) int {
		return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.End, y.End))
	})
	first, free := n.page.firstGPU(), make([]int64, n.page.cluster.GPUs())
	var bars []bar
	for _, s := range order {
		for _, x := range s.Pieces {
			left := int(x.GPUs)
			for gpu := first[x.Node]; gpu < first[x.Node+1] && left > 0; gpu++ {
				if free[gpu] <= s.Start {
					free[gpu] = s.End
					bars = append(bars, bar{s, gpu})
					left--
				}
			}
		}
	}
	return bars
}

// firstGPU is the number of each node's first GPU, and how many there are.
func (p *Page) firstGPU() []int {
	first := []int{0}
	for _, part := range p.cluster.Partitions {
		for range part.Nodes {
			first = append(first, first[len(first)-1]+part.GPUsPerNode)
		}
	}
	return first
}

// usage is what an account was charged beside what it was entitled to, over time.
func (n *Panel) usage(account string) template.HTML {
	const width, height = 288.0, 64.0
	at, found := slices.BinarySearch(n.page.names, account)
	if !found {
		return ""
	}
	slot := float64(n.page.span) / columns
	due := n.due[at*columns : (at+1)*columns]
	top := max(slices.Max(due), 1)
	for k := range columns {
		top = max(top, (n.charged[at*columns+k]+n.free[at*columns+k])/slot)
	}
	y := func(gpus float64) float64 { return height - gpus/top*(height-2) }
	area := func(gpus func(k int) float64) string {
		var b strings.Builder
		fmt.Fprintf(&b, "M0 %g", height)
		for k := range columns {
			fmt.Fprintf(&b, "L%d %.1f", k, y(gpus(k)))
		}
		fmt.Fprintf(&b, "L%g %gZ", width-1, height)
		return b.String()
	}
	charged := func(k int) float64 { return n.charged[at*columns+k] / slot }
	all := func(k int) float64 { return (n.charged[at*columns+k] + n.free[at*columns+k]) / slot }
	return template.HTML(fmt.Sprintf( //nolint:gosec // made of numbers here
		`<svg viewBox="0 0 %g %g" role="img" aria-label="GPUs over time"><path d="%s" fill="%s" opacity=".35"/><path d="%s" fill="%s"/><path d="%s" class="due"/><text x="2" y="10">%.0f</text></svg>`,
		width, height, area(all), css(at), area(charged), css(at), stairs(due, y), top))
}

// stairs is a line that goes on at one height for as long as a value stays.
func stairs(values []float64, y func(value float64) float64) string {
	var b strings.Builder
	before := ""
	for k, value := range values {
		switch height := fmt.Sprintf("%.1f", y(value)); {
		case k == 0:
			b.WriteString("M0 " + height)
			before = height
		case height != before:
			fmt.Fprintf(&b, "H%dV%s", k, height)
			before = height
		}
	}
	fmt.Fprintf(&b, "H%d", len(values))
	return b.String()
}

// dashes tell the policies apart: colours are the accounts'.
var dashes = []string{"", "7 3", "2 2", "12 3 2 3", "4 5", "12 3 2 3 2 3"}

// axis is the time below a timeline: days, or hours if there are few.
func (p *Page) axis() template.HTML {
	const width, height, mostTicks = 1152.0, 18.0, 16
	step, unit, name := int64(3600), int64(3600), "h"
	for _, hours := range []int64{1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24, 91 * 24, 365 * 24} {
		if step = hours * 3600; p.span/step < mostTicks {
			break
		}
	}
	if step >= 86_400 {
		unit, name = 86_400, "d"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="axis" viewBox="0 0 %g %g" role="img" aria-label="time">`, width, height)
	for at := step; at < p.span; at += step {
		x := float64(at) / float64(p.span) * width
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f 0v4"/><text x="%.1f" y="15" text-anchor="middle">%d %s</text>`, x, x, at/unit, name)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // made of numbers here
}

// waitsChart is the part of a class of jobs that have started after a wait, by policy. Who
// has not started by the end of the run keeps the line below the whole.
func waitsChart(panels []*Panel, class string, of func(*Panel) []float64) template.HTML {
	const width, height, left, bottom, right = 860.0, 260.0, 40.0, 30.0, 220.0
	const longest = 30 * 86_400.0
	x := func(seconds float64) float64 {
		return left + math.Log(1+min(seconds, longest))/math.Log(1+longest)*(width-left-right)
	}
	y := func(part float64) float64 { return height - bottom - part*(height-bottom-10) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="waits">`, width, height)
	for _, tick := range []struct {
		seconds float64
		name    string
	}{{0, "0"}, {10, "10 s"}, {60, "1 min"}, {600, "10 min"}, {3600, "1 h"}, {6 * 3600, "6 h"}, {86_400, "1 d"}, {7 * 86_400, "7 d"}, {longest, "30 d"}} {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f 10V%g"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(tick.seconds), height-bottom, x(tick.seconds), height-bottom+16, tick.name)
	}
	for _, part := range []float64{0, 0.5, 0.9, 1} {
		fmt.Fprintf(&b, `<path class="grid" d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%.0f%%</text>`, left, y(part), width-right, left-4, y(part)+4, part*100)
	}
	for i, n := range panels {
		waits := of(n)
		slices.Sort(waits)
		line := fmt.Sprintf(`class="line" stroke-dasharray="%s" style="stroke-opacity:%.2f"`, dashes[i%len(dashes)], 1-0.5*float64(i/len(dashes)%2))
		fmt.Fprintf(&b, `<path %s d="M%.1f %.1f`, line, x(0), y(0))
		all := n.result.Wait(class)
		for step := range 201 {
			if len(waits) == 0 {
				break
			}
			at := min(int(math.Ceil(float64(step)/200*float64(len(waits)))), len(waits))
			fmt.Fprintf(&b, "L%.1f %.1f", x(waits[max(at-1, 0)]), y(float64(at)/float64(all.Jobs)))
		}
		if len(waits) > 0 {
			fmt.Fprintf(&b, "H%g", width-right)
		}
		label := n.label
		if all.Waiting > 0 {
			label += fmt.Sprintf(", %d not started", all.Waiting)
		}
		fmt.Fprintf(&b, `"/><path %s d="M%g %dh26"/><text x="%g" y="%d" class="label">%s</text>`, line, width-right+8, 16+15*i, width-right+40, 20+15*i, template.HTMLEscapeString(label))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // names in it are escaped
}
