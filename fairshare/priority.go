// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "math"

// Flags are slurm.conf's PriorityFlags, in the bits of bridge.h.
type Flags uint32

// The priority flags. Only SizeRelative has an effect on a job's priority here.
// FairTreeFlag and DepthOblivious are for SlurmPolicy; the others are the
// plugin's matter: with NoNormal* it gives raw factors.
const (
	AccrueAlways Flags = 1 << iota
	CalculateRunning
	DepthOblivious
	FairTreeFlag
	IncrOnly
	MaxTRES
	MaxTRESGRES
	NoNormalAssoc
	NoNormalPart
	NoNormalQOS
	NoNormalTRES
	SizeRelative
)

// Has tells whether all of the given flags are set.
func (f Flags) Has(flags Flags) bool { return f&flags == flags }

// Weights are the PriorityWeight* settings of slurm.conf and what goes with
// them.
type Weights struct {
	Age, Assoc, Fairshare, JobSize, Partition, QOS uint32

	TRES       []float64 // PriorityWeightTRES in slurmctld's order; nil if not set
	MaxAge     uint32    // PriorityMaxAge, seconds
	FavorSmall bool      // PriorityFavorSmall
	Damping    uint32    // FairShareDampeningFactor, of classic fair share
	Flags      Flags
}

// ClusterSize is what a job's size is compared to.
type ClusterSize struct {
	Nodes, CPUs uint32
}

// Unlimited is the TimeLimit of a job that has none.
const Unlimited = math.MaxUint32

// Job is what the priority of a job depends on.
type Job struct {
	Account, User string
	QOSPriority   uint32 // raw
	Nice          int64  // higher is later; without Slurm's offset
	Site          int64  // from the site_factor plugin; without Slurm's offset
	Age           int64  // seconds since its age began to count; negative if it hasn't
	CPUs          uint32 // 0 if unknown
	MinNodes      uint32
	TimeLimit     uint32 // minutes, or Unlimited
	// Unallocated: by what it asks for no budget is charged for it, see Terms. It
	// comes after all that is allocated.
	Unallocated bool

	// Factors as Slurm gives them: 0 to 1, or raw numbers with the flag
	// NoNormal* of their kind.
	AssocFactor, PartitionFactor, QOSFactor float64

	// Fairshare is the fair-share factor, where it does not follow from a
	// Ranking.
	Fairshare float64

	TRES []float64 // as long as Weights.TRES

	Parts []JobPart // one for each partition if the job names several
}

// JobPart is one of several partitions a job names.
type JobPart struct {
	Factor   float64   // in place of Job.PartitionFactor
	TRES     []float64 // in place of Job.TRES
	Priority uint32    // set by Priority: the job's in this partition
}

// Factors is what a priority is made of, as sprio shows it:
//
//	Age + Assoc + Fairshare + JobSize + Partition + QOS + Site + ΣTRES - Nice
//
// cut to a whole number between 1 and 2^32-1.
type Factors struct {
	Age, Assoc, Fairshare, JobSize, Partition, QOS float64

	Site, Nice int64
	TRES       []float64 // nil if TRES have no weights
	Priority   uint32
}

// Sum is what the columns add up to.
func (f *Factors) Sum() float64 {
	sum := f.Age + f.Assoc + f.Fairshare + f.JobSize + f.Partition + f.QOS
	for _, tres := range f.TRES {
		sum += tres
	}
	return sum + float64(f.Site) - float64(f.Nice)
}

// reset clears f but keeps the memory of f.TRES, for n of them.
func (f *Factors) reset(n int) {
	tres := f.TRES[:0]
	if cap(tres) < n {
		tres = make([]float64, 0, n)
	}
	*f = Factors{TRES: tres[:n]}
	clear(f.TRES)
	if n == 0 {
		f.TRES = nil
	}
}

// AgeFactor is how long a job has waited, as a part of PriorityMaxAge, 0 to 1;
// 0 if its age is negative, that is if it doesn't count yet.
func AgeFactor(age int64, maxAge uint32) float64 {
	if age < 0 {
		return 0
	}
	if age >= int64(maxAge) {
		return 1
	}
	return float64(age) / float64(maxAge)
}

// SizeFactor is how large a job is, 0 to 1; with PriorityFavorSmall how small.
// As in Slurm it is the mean of the job's parts of the nodes and the CPUs; with
// the flag SizeRelative it is the part of the CPUs (a node counts for the
// average number) for each minute of the time limit. A job that is larger than
// the cluster counts as being as large.
func SizeFactor(job *Job, w *Weights, size ClusterSize) float64 {
	switch {
	case w.Flags.Has(SizeRelative) && w.FavorSmall:
		return 1 - unit(relativeSize(job, size))
	case w.Flags.Has(SizeRelative):
		return unit(relativeSize(job, size))
	case w.FavorSmall:
		return unit(meanPart(job, size, func(of, all float64) float64 { return ratio(all-of, all) }))
	}
	return unit(meanPart(job, size, ratio))
}

// meanPart is the mean over nodes and CPUs, as far as these are known.
func meanPart(job *Job, size ClusterSize, part func(of, all float64) float64) float64 {
	nodes := part(float64(job.MinNodes), float64(size.Nodes))
	if job.CPUs == 0 {
		return nodes
	}
	return (nodes + part(float64(job.CPUs), float64(size.CPUs))) / 2
}

func relativeSize(job *Job, size ClusterSize) float64 {
	onNodes := ratio(float64(job.MinNodes)*float64(size.CPUs), float64(size.Nodes))
	cpus := max(onNodes, float64(job.CPUs))
	return ratio(cpus/float64(max(job.TimeLimit, 1)), float64(size.CPUs))
}

// ratio is a/b, 0 if there is no b.
func ratio(a, b float64) float64 {
	if !(b > 0) {
		return 0
	}
	return a / b
}

// unit is x between 0 and 1; 0 for NaN.
func unit(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// finite is x without NaN (0) and within ±2^53, where floats still count in
// whole numbers.
func finite(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(x, -1<<53), 1<<53)
}

// clampPriority is a sum of columns as a priority within bounds. 0 is kept for
// held jobs.
func clampPriority(sum, least, most float64) uint32 {
	if !(sum >= least) {
		return uint32(least)
	}
	return uint32(min(sum, most))
}
