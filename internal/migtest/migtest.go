// SPDX-License-Identifier: GPL-2.0-or-later

// Package migtest knows the MIG profiles of NVIDIA's GPUs and where on a GPU their
// instances may lie, as the MIG user guide and `nvidia-smi mig -lgipp` have them.
package migtest

// GPU is a model that can be divided.
type GPU struct {
	Model    string
	Slices   int // of compute
	Memory   int // slices of memory
	Profiles []Profile
}

// Profile is an instance that a GPU can have.
type Profile struct {
	Name   string // as in 1g.10gb
	Slices int    // of compute
	Memory int    // slices of memory that it takes
	Starts []int  // the slices of memory at which one may begin
}

// Layout is instances that a GPU can be divided into at the same time.
type Layout []Profile

// Slices is how many slices of compute and of memory the instances have.
func (l Layout) Slices() (compute, memory int) {
	for _, p := range l {
		compute += p.Slices
		memory += p.Memory
	}
	return compute, memory
}

// GPUs are all that MIG is documented for, with the names that are common for them.
func GPUs() []GPU {
	return []GPU{
		seven("nvidia_a100-sxm4-40gb", "5gb", "10gb", "10gb", "20gb", "40gb"),
		seven("a100", "10gb", "20gb", "20gb", "40gb", "80gb"), // and H100, of 80 GB
		seven("h100_nvl", "12gb", "24gb", "24gb", "47gb", "94gb"),
		seven("gh200", "12gb", "24gb", "24gb", "48gb", "96gb"), // and H20
		seven("h200", "18gb", "35gb", "35gb", "71gb", "141gb"),
		seven("gh200_144g", "18gb", "36gb", "36gb", "72gb", "144gb"),
		seven("b200", "23gb", "45gb", "45gb", "90gb", "180gb"),
		seven("gb200", "23gb", "47gb", "47gb", "93gb", "186gb"),
		seven("nvidia_gb200", "24gb", "47gb", "47gb", "95gb", "189gb"), // by its first drivers
		seven("b300", "34gb", "67gb", "67gb", "135gb", "269gb"),
		seven("gb300", "35gb", "70gb", "70gb", "139gb", "278gb"),
		four("a30", "6gb", "12gb", "24gb"),
		four("rtx_pro_6000", "24gb", "48gb", "96gb"),
		{"rtx_pro_4500", 2, 2, []Profile{{"1g.16gb", 1, 1, []int{0, 1}}, {"2g.32gb", 2, 2, []int{0}}}},
	}
}

// seven is a GPU of seven slices of compute and eight of memory.
func seven(model, one, twice, two, half, whole string) GPU {
	return GPU{model, 7, 8, []Profile{
		{"1g." + one, 1, 1, []int{0, 1, 2, 3, 4, 5, 6}},
		{"1g." + twice, 1, 2, []int{0, 2, 4, 6}},
		{"2g." + two, 2, 2, []int{0, 2, 4}},
		{"3g." + half, 3, 4, []int{0, 4}},
		{"4g." + half, 4, 4, []int{0}},
		{"7g." + whole, 7, 8, []int{0}},
	}}
}

// four is a GPU of four slices of both.
func four(model, one, two, whole string) GPU {
	return GPU{model, 4, 4, []Profile{
		{"1g." + one, 1, 1, []int{0, 1, 2, 3}},
		{"2g." + two, 2, 2, []int{0, 2}},
		{"4g." + whole, 4, 4, []int{0}},
	}}
}

// Layouts are all sets of instances that a GPU can be divided into, those that leave
// something of it unused among them; each once.
func (g GPU) Layouts() []Layout {
	var all []Layout
	seen := map[[8]int]bool{}
	var fill func(layout Layout, of [8]int, start int)
	fill = func(layout Layout, of [8]int, start int) {
		if len(layout) > 0 && !seen[of] {
			seen[of] = true
			all = append(all, append(Layout(nil), layout...))
		}
		for i, p := range g.Profiles {
			for _, at := range p.Starts {
				if at < start {
					continue
				}
				more := of
				more[i]++
				fill(append(layout, p), more, at+p.Memory)
			}
		}
	}
	fill(nil, [8]int{}, 0)
	return all
}
