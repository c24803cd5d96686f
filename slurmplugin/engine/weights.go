// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import "gpubudget/fairshare"

// weigh takes what GPUs count for from now on. Runs that have ended stay in the tail
// as they were charged: soon the snapshot will hold them.
func (t *tracker) weigh(w fairshare.GPUWeights) {
	t.weights = w
	t.weighing++
}

// rate makes sure that a run has the rates that the weights give it.
func (t *tracker) rate(r *run) {
	if r.weighed == t.weighing {
		return
	}
	r.weighed = t.weighing
	r.Rates = t.weights.Rates(r.Holding(), fairshare.Period{From: fairshare.At(r.StartedAt), Until: fairshare.Never})
}

// wanted is what that a job of this pass waits for counts for, for each of its
// tasks, in millionths of a GPU.
func (t *tracker) wanted(j *Job) int64 { return t.prices.Of(j.wants()) }

// rateOf is wanted as the contract's rules have it.
func (t *tracker) rateOf(j *Job) int64 { return t.prices.RateOf(j.wants()) }

// wants is what a job waits for; the name of the type is borrowed.
func (j *Job) wants() fairshare.Holding {
	return fairshare.Holding{Type: j.GPUType.borrow(), GPUs: j.gpus(), Parts: j.parts()}
}
