// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"strings"

	"gpubudget/fairshare"
)

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

// price makes ready to weigh what jobs wait for, on a cluster of these GPUs.
func (t *tracker) price(gpus fairshare.Holding) {
	clear(t.units)
	t.usual = fairshare.Millionths
	if gpus.GPUs > 0 {
		t.usual = t.weights.RateAt(gpus, t.now) / gpus.GPUs
	}
}

// wanted is what that a job of this pass waits for counts for, for each of its
// tasks, in millionths of a GPU. Who names no type waits for any: that counts for
// what the cluster's GPUs do in the mean.
func (t *tracker) wanted(j *Job) int64 {
	amount := j.gpus()*fairshare.Millionths + j.parts()
	if j.GPUType.IsNil() {
		if t.usual == fairshare.Millionths {
			return amount
		}
		return int64(fairshare.Charged(amount, t.usual))
	}
	name := j.GPUType.borrow()
	u, known := t.units[name]
	if !known {
		name = strings.Clone(name)
		u = t.unit(name)
		t.units[name] = u
	}
	return u.list + u.Of(amount) // of a list the latter is 0
}

// unit is what jobs wait for: GPUs of a type, or of several types those that the
// list names, which count for so much.
type unit struct {
	fairshare.Unit
	list int64
}

func (t *tracker) unit(name string) unit {
	if strings.Contains(name, ":") {
		return unit{list: t.weights.RateAt(fairshare.Holding{Type: name}, t.now)}
	}
	return unit{Unit: t.weights.UnitAt(name, t.now)}
}
