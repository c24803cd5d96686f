// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "strings"

// Prices tell what requests for GPUs count for at an instant. They remember what
// they were asked, so that many requests are cheap. Set them first.
type Prices struct {
	weights GPUWeights
	at      Instant
	units   map[string]price // by type as requests name it
	usual   int64            // what one of unknown type counts for
}

// price is what is asked for: GPUs of a type, or of several types those that the
// list names, which count for so much.
type price struct {
	Unit
	list int64
}

// Set has them tell by these weights from now on, on a cluster of these GPUs.
func (p *Prices) Set(w GPUWeights, cluster Holding, at Instant) {
	if p.units == nil {
		p.units = make(map[string]price)
	}
	clear(p.units)
	p.weights, p.at, p.usual = w, at, Millionths
	if cluster.GPUs > 0 {
		p.usual = w.RateAt(cluster, at) / cluster.GPUs
	}
}

// Of is what a request counts for, in millionths of a GPU of weight 1. Who names no
// type waits for any: that counts for what the cluster's GPUs do in the mean. The
// name of the type is copied if it is kept.
func (p *Prices) Of(asked Holding) int64 {
	amount := asked.Millionths()
	if asked.Type == "" {
		if p.usual == Millionths {
			return amount
		}
		return int64(Charged(amount, p.usual))
	}
	u, known := p.units[asked.Type]
	if !known {
		name := strings.Clone(asked.Type)
		u = p.price(name)
		p.units[name] = u
	}
	return u.list + u.Of(amount) // of a list the latter is 0
}

// RateOf is Of as Request.Rate has it.
func (p *Prices) RateOf(asked Holding) int64 {
	if rate := p.Of(asked); rate != 0 {
		return rate
	}
	return CountsNothing
}

func (p *Prices) price(name string) price {
	if strings.Contains(name, ":") {
		return price{list: p.weights.RateAt(Holding{Type: name}, p.at)}
	}
	return price{Unit: p.weights.UnitAt(name, p.at)}
}
