// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "math"

// Additive is Slurm's multifactor priority with our fair-share factor: the sum
// of all factors, each multiplied by its weight in slurm.conf. It can be used
// from several goroutines.
//
// It adds up in Slurm's order, so that where the factor is Slurm's as well the
// sum is the same to the last bit, and so is the whole number it is cut to.
//
// By a ranking, allocated jobs have a band more, in the column of the fair-share
// factor, and unallocated ones nothing there: their priorities are cut at the
// band, so that none is as high as that of any allocated job.
type Additive struct {
	ranking *Ranking
	weights Weights
	size    ClusterSize
	band    float64 // a whole number; 0 without a ranking: nothing is unallocated
}

// NewAdditive prepares the priorities of one pass. Without a ranking each job
// brings its own Fairshare.
func NewAdditive(r *Ranking, w Weights, size ClusterSize) *Additive {
	p := &Additive{ranking: r, weights: w, size: size}
	if r != nil {
		p.band = w.band()
	}
	return p
}

// The least and the largest band. Below the first there is room for nice values and
// site factors, which no weight tells of; above the largest for sums of allocated
// jobs.
const (
	minBand = 1_000_000
	maxBand = 1_000_000_000
)

// band is a power of ten that no sum of weighted factors but the fair-share
// factor's reaches, as far as there is room for it. It depends on the weights alone, so
// that priorities stay as they are from one pass to the next.
func (w *Weights) band() float64 {
	if w.raw() {
		return maxBand // nobody knows how large factors are
	}
	sum := float64(w.Age) + float64(w.Assoc) + float64(w.JobSize) + float64(w.Partition) + float64(w.QOS)
	for _, weight := range w.TRES {
		sum += factor(weight)
	}
	band := float64(minBand)
	for band <= sum && band < maxBand {
		band *= 10
	}
	return band
}

// IsBand tells whether this is a band, and so may be the highest priority that an
// unallocated job can have in additive mode.
func IsBand(priority uint32) bool {
	for band := uint32(minBand); band <= maxBand; band *= 10 {
		if priority == band {
			return true
		}
	}
	return false
}

// raw tells whether some factor that has a weight may be above 1.
func (w *Weights) raw() bool {
	return w.Assoc > 0 && w.Flags.Has(NoNormalAssoc) || w.Partition > 0 && w.Flags.Has(NoNormalPart) ||
		w.QOS > 0 && w.Flags.Has(NoNormalQOS) || len(w.TRES) > 0 && w.Flags.Has(NoNormalTRES)
}

// Priority works out the job's priority into f, and those of its Parts. It
// reuses f.TRES if that is large enough.
func (p *Additive) Priority(job *Job, f *Factors) {
	w := &p.weights
	f.reset(len(w.TRES))
	f.Age = float64(w.Age) * AgeFactor(job.Age, w.MaxAge)
	f.Assoc = p.weigh(w.Assoc, job.AssocFactor)
	f.Fairshare = p.column(job)
	f.JobSize = float64(w.JobSize) * SizeFactor(job, w, p.size)
	f.QOS = p.weigh(w.QOS, job.QOSFactor)
	f.Site, f.Nice = p.carried(job.Site), p.carried(job.Nice)
	f.Partition = p.weigh(w.Partition, job.PartitionFactor)
	least, most := p.bounds(f.Fairshare)
	for i := range job.Parts {
		part := &job.Parts[i]
		rest := f.add(0, p.tres(part.TRES, nil))
		part.Priority = clampPriority(p.weigh(w.Partition, part.Factor)+rest, least, most)
	}
	sum := f.add(f.Partition, p.tres(job.TRES, f.TRES))
	f.Priority = clampPriority(sum, least, most)
	if p.band > 0 {
		f.settle(sum)
	}
}

// add adds the columns up, in this order.
func (f *Factors) add(partition, tres float64) float64 {
	return f.Age + f.Assoc + f.Fairshare + f.JobSize + partition + f.QOS + tres + float64(f.Site) - float64(f.Nice)
}

// bounds are those of the priority of a job that has this in its column of the
// fair-share factor.
func (p *Additive) bounds(column float64) (least, most float64) {
	switch {
	case p.band == 0:
		return 1, math.MaxUint32
	case column > 0:
		return p.band + 1, math.MaxUint32
	}
	return 1, p.band
}

// settle has the columns add up to the priority again where that was cut by a point
// or more: the column NICE takes up the difference, others what it can't hold. That
// of the fair-share factor never has to.
func (f *Factors) settle(sum float64) {
	left := math.Floor(sum - float64(f.Priority))
	if left == 0 || left == -1 {
		return
	}
	nice := min(max(float64(f.Nice)+left, math.MinInt32), math.MaxInt32)
	left -= nice - float64(f.Nice)
	f.Nice = int64(nice)
	site := float64(f.Site)
	give(&site, &left)
	f.Site = int64(site)
	for _, column := range []*float64{&f.QOS, &f.Partition, &f.Assoc, &f.JobSize, &f.Age} {
		give(column, &left)
	}
	for i := range f.TRES {
		give(&f.TRES[i], &left)
	}
}

// give takes off a column what is left to be taken, as far as it isn't beyond 0.
func give(column, left *float64) {
	part := min(max(*column, 0), *left)
	if *left < 0 {
		part = max(min(*column, 0), *left)
	}
	*column -= part
	*left -= part
}

// column is what a job has in the column of the fair-share factor: 0 if it is
// unallocated.
func (p *Additive) column(job *Job) float64 {
	switch {
	case p.ranking == nil:
		return p.RowOf(job.Fairshare).Fairshare
	case job.Unallocated:
		return 0
	}
	return p.columnAt(p.ranking.Seat(job.Account, job.User))
}

// columnAt is that of an allocated job; 0 if the account isn't funded, or unknown.
func (p *Additive) columnAt(seat Seat) float64 {
	if p.ranking == nil {
		return 0
	}
	a, u := p.ranking.At(seat)
	switch {
	case a == nil || !a.Funded:
		return 0
	case u != nil:
		return p.band + float64(p.weights.Fairshare)*u.Factor
	}
	return p.band + float64(p.weights.Fairshare)*a.Factor
}

// within is a column as it is added up. By a ranking there is no more in any than
// a priority has room for: so sums are exact, and can be settled.
func (p *Additive) within(x float64) float64 {
	if p.band == 0 {
		return finite(x)
	}
	return min(max(finite(x), -math.MaxUint32), math.MaxUint32)
}

// carried is a site factor or a nice value as far as Slurm's protocol can carry it.
func (p *Additive) carried(x int64) int64 {
	if p.band == 0 {
		return x
	}
	return min(max(x, math.MinInt32), math.MaxInt32)
}

func (p *Additive) weigh(weight uint32, factor float64) float64 {
	if weight == 0 {
		return 0
	}
	return p.within(float64(weight) * factor)
}

// tres is the weighted sum of TRES factors; the terms go to columns unless
// that is nil.
func (p *Additive) tres(factors, columns []float64) (sum float64) {
	weights := p.weights.TRES
	for i := range min(len(weights), len(factors)) {
		term := p.within(weights[i] * factors[i])
		sum += term
		if columns != nil {
			columns[i] = term
		}
	}
	return sum
}
