// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// Additive is Slurm's multifactor priority with our fair-share factor: the sum
// of all factors, each multiplied by its weight in slurm.conf. It can be used
// from several goroutines.
type Additive struct {
	ranking *Ranking
	weights Weights
	size    ClusterSize
}

// NewAdditive prepares the priorities of one pass.
func NewAdditive(r *Ranking, w Weights, size ClusterSize) *Additive {
	return &Additive{ranking: r, weights: w, size: size}
}

// Priority works out the job's priority into f, and those of its Parts. It
// reuses f.TRES if that is large enough.
func (p *Additive) Priority(job *Job, f *Factors) {
	w := &p.weights
	f.reset(len(w.TRES))
	f.Age = float64(w.Age) * AgeFactor(job.Age, w.MaxAge)
	f.Assoc = weigh(w.Assoc, job.AssocFactor)
	f.Fairshare = float64(w.Fairshare) * p.fairshare(job)
	f.JobSize = float64(w.JobSize) * SizeFactor(job, w, p.size)
	f.QOS = weigh(w.QOS, job.QOSFactor)
	f.Site, f.Nice = job.Site, job.Nice
	common := f.Sum()
	for i := range job.Parts {
		part := &job.Parts[i]
		part.Priority = clampPriority(common + weigh(w.Partition, part.Factor) + w.tres(part.TRES, nil))
	}
	f.Partition = weigh(w.Partition, job.PartitionFactor)
	w.tres(job.TRES, f.TRES)
	f.Priority = clampPriority(f.Sum())
}

// fairshare is the factor of the job's user in its account; 0 if the account
// is unknown.
func (p *Additive) fairshare(job *Job) float64 {
	if user, ok := p.ranking.User(job.Account, job.User); ok {
		return user.Factor
	}
	if account, ok := p.ranking.Account(job.Account); ok {
		return account.Factor
	}
	return 0
}

func weigh(weight uint32, factor float64) float64 {
	if weight == 0 {
		return 0
	}
	return finite(float64(weight) * factor)
}

// tres is the weighted sum of TRES factors; the terms go to columns unless
// that is nil.
func (w *Weights) tres(factors, columns []float64) (sum float64) {
	for i := range min(len(w.TRES), len(factors)) {
		term := finite(w.TRES[i] * factors[i])
		sum += term
		if columns != nil {
			columns[i] = term
		}
	}
	return sum
}
