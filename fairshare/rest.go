// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// rest is the last digit: Slurm's weighted sum, scaled so that the largest sum
// there can be fills the digit.
type rest struct {
	weights Weights
	size    ClusterSize
	steps   int64
	scale   float64 // steps for each point of the weighted sum
	siteLow int64
}

// newRest scales the digit. If slurm.conf gives no weights at all, age alone
// fills it.
func newRest(w Weights, size ClusterSize, seen *Seen, steps int64) rest {
	largest := seen.largestSum(&w)
	if largest == 0 {
		w.Age, largest = 1, 1
	}
	return rest{weights: w, size: size, steps: steps, scale: finite(float64(steps-1) / largest), siteLow: seen.extremes.SiteLow}
}

// fill sets the columns of the rest and returns their sum, which is at most
// steps-1: what would be more is cut off the columns in their order here.
func (r *rest) fill(job *Job, f *Factors) int64 {
	w, left := &r.weights, r.steps-1
	f.Age = float64(r.take(&left, float64(w.Age)*AgeFactor(job.Age, w.MaxAge)))
	f.JobSize = float64(r.take(&left, float64(w.JobSize)*SizeFactor(job, w, r.size)))
	f.Assoc = float64(r.take(&left, float64(w.Assoc)*factor(job.AssocFactor)))
	f.Site = r.take(&left, float64(job.Site)-float64(r.siteLow))
	f.Partition = float64(r.take(&left, float64(w.Partition)*factor(job.PartitionFactor)))
	for i := range min(len(w.TRES), len(job.TRES)) {
		f.TRES[i] = float64(r.take(&left, factor(w.TRES[i])*factor(job.TRES[i])))
	}
	return r.steps - 1 - left
}

// part is the rest in one of several partitions, f being filled.
func (r *rest) part(f *Factors, part *JobPart) int64 {
	w, left := &r.weights, r.steps-1-int64(f.Age+f.JobSize+f.Assoc)-f.Site
	r.take(&left, float64(w.Partition)*factor(part.Factor))
	for i := range min(len(w.TRES), len(part.TRES)) {
		r.take(&left, factor(w.TRES[i])*factor(part.TRES[i]))
	}
	return r.steps - 1 - left
}

// take turns points of the weighted sum into whole steps, of those left.
func (r *rest) take(left *int64, points float64) int64 {
	steps := int64(min(max(points*r.scale, 0), float64(*left)))
	*left -= steps
	return steps
}
