// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// Additive is Slurm's multifactor priority with our fair-share factor: the sum
// of all factors, each multiplied by its weight in slurm.conf. It can be used
// from several goroutines.
//
// It adds up in Slurm's order, so that where the factor is Slurm's as well the
// sum is the same to the last bit, and so is the whole number it is cut to.
type Additive struct {
	ranking *Ranking
	weights Weights
	size    ClusterSize
}

// NewAdditive prepares the priorities of one pass. Without a ranking each job
// brings its own Fairshare.
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
	f.Partition = weigh(w.Partition, job.PartitionFactor)
	for i := range job.Parts {
		part := &job.Parts[i]
		rest := f.add(0, w.tres(part.TRES, nil))
		part.Priority = clampPriority(weigh(w.Partition, part.Factor) + rest)
	}
	f.Priority = clampPriority(f.add(f.Partition, w.tres(job.TRES, f.TRES)))
}

// add adds the columns up, in this order.
func (f *Factors) add(partition, tres float64) float64 {
	return f.Age + f.Assoc + f.Fairshare + f.JobSize + partition + f.QOS + tres + float64(f.Site) - float64(f.Nice)
}

// fairshare is the job's fair-share factor: 0 if it asks to be unallocated.
func (p *Additive) fairshare(job *Job) float64 {
	switch {
	case p.ranking == nil:
		return finite(job.Fairshare)
	case job.Unallocated:
		return 0
	}
	return p.factor(job.Account, job.User)
}

// factor is that of a user in an account; 0 if the account is unknown.
func (p *Additive) factor(account, user string) float64 {
	if p.ranking == nil {
		return 0
	}
	return p.factorAt(p.ranking.Seat(account, user))
}

func (p *Additive) factorAt(seat Seat) float64 {
	if p.ranking == nil {
		return 0
	}
	switch a, u := p.ranking.At(seat); {
	case u != nil:
		return u.Factor
	case a != nil:
		return a.Factor
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
