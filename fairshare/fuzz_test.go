// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// source makes anything out of arbitrary bytes; when they run out, zeros.
type source []byte

func (s *source) byte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *source) number(n int) int { return int(s.byte()) % n }

func (s *source) word() uint64 {
	var w [8]byte
	*s = (*s)[copy(w[:], *s):]
	return binary.LittleEndian.Uint64(w[:])
}

// any is an extreme number, a small one, or any.
func (s *source) any() int64 {
	switch s.number(6) {
	case 0:
		return math.MaxInt64
	case 1:
		return math.MinInt64
	case 2:
		return int64(s.word())
	default:
		return int64(int8(s.byte()))
	}
}

func (s *source) instant() fairshare.Instant {
	if s.number(4) == 0 {
		return fairshare.Instant(s.any())
	}
	return start + fairshare.Instant(int8(s.byte()))*hour
}

func (s *source) period() fairshare.Period {
	return fairshare.Period{From: s.instant(), Until: s.instant()}
}

func (s *source) amount() fairshare.GPUMillis {
	if s.number(4) == 0 {
		return fairshare.GPUMillis(s.any())
	}
	return fairshare.GPUMillis(int8(s.byte())) * fairshare.GPUHour
}

func (s *source) share() fairshare.Share {
	switch s.number(4) {
	case 0:
		return fairshare.Share(s.any())
	case 1:
		return fairshare.EqualPart
	default:
		return percent(float64(s.number(101)))
	}
}

// name is one of few, root and none among them, so that they meet.
func (s *source) name() string {
	return []string{"root", "a", "b", "c", "d", "e", "f", ""}[s.number(8)]
}

func drawn[T any](s *source, value func() T) []fairshare.Step[T] {
	line := make([]fairshare.Step[T], 0, 3)
	for range s.number(4) {
		line = append(line, fairshare.Step[T]{Period: s.period(), Value: value()})
	}
	if len(line) == 0 {
		return always(value())
	}
	return line
}

// budget is one in which nothing need be right: names may come twice, steps
// overlap, shares be negative.
func (s *source) budget() *fairshare.Budget {
	b := &fairshare.Budget{Capacity: drawn(s, func() fairshare.MilliGPUs { return fairshare.MilliGPUs(s.any()) })}
	for range s.number(12) {
		a := fairshare.Account{Name: s.name(), Parent: drawn(s, s.name), Share: drawn(s, s.share)}
		for range s.number(4) {
			a.Users = append(a.Users, fairshare.Member{User: s.name(), In: drawn(s, s.share)})
		}
		for range s.number(3) {
			a.Grants = append(a.Grants, fairshare.Grant{Period: s.period(), Amount: s.amount()})
		}
		b.Accounts = append(b.Accounts, a)
	}
	return b
}

func (s *source) charges() (charges []fairshare.Charge) {
	for range s.number(8) {
		charges = append(charges, fairshare.Charge{Period: s.period(), Account: s.name(), User: s.name(), Amount: s.amount()})
	}
	return charges
}

func (s *source) float() float64 {
	switch s.number(6) {
	case 0:
		return math.NaN()
	case 1:
		return math.Inf(1 - 2*s.number(2))
	case 2:
		return math.Float64frombits(s.word())
	default:
		return float64(s.byte()) / 255
	}
}

func (s *source) floats() []float64 {
	all := make([]float64, s.number(4))
	for i := range all {
		all[i] = s.float()
	}
	return all
}

func (s *source) job() fairshare.Job {
	job := fairshare.Job{
		Account: s.name(), User: s.name(), QOSPriority: uint32(s.any()), Nice: s.any(), Site: s.any(), Age: s.any(),
		CPUs: uint32(s.any()), MinNodes: uint32(s.any()), TimeLimit: uint32(s.any()),
		AssocFactor: s.float(), PartitionFactor: s.float(), QOSFactor: s.float(), TRES: s.floats(),
	}
	for range s.number(3) {
		job.Parts = append(job.Parts, fairshare.JobPart{Factor: s.float(), TRES: s.floats()})
	}
	return job
}

func (s *source) weights() fairshare.Weights {
	return fairshare.Weights{
		Age: uint32(s.any()), Assoc: uint32(s.any()), Fairshare: uint32(s.any()), JobSize: uint32(s.any()),
		Partition: uint32(s.any()), QOS: uint32(s.any()), TRES: s.floats(), MaxAge: uint32(s.any()),
		FavorSmall: s.number(2) == 1, Flags: fairshare.Flags(s.any()),
	}
}

// seed gives the fuzzer something to start from. It is a test of its own
// whenever the tests run.
func seed(f *testing.F) {
	f.Helper()
	f.Add([]byte{})
	for i := range uint64(200) {
		rng := rand.New(rand.NewPCG(i, 0))
		b := make([]byte, 200+rng.IntN(1500))
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		f.Add(b)
	}
}

func FuzzEntitlements(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := source(data)
		b, w := s.budget(), s.period()
		e := b.Entitlements(w)
		tree := b.Tree(w.Until)
		require.Equal(t, fairshare.RootAccount, tree.Nodes[0].Name)
		for i, node := range tree.Nodes {
			require.Less(t, node.Parent, i)
			require.GreaterOrEqual(t, e.Account(node.Name), fairshare.GPUMillis(0))
			require.True(t, node.ShareOfCluster >= 0 && node.ShareOfCluster <= 1.000001)
			for _, user := range node.Users {
				require.GreaterOrEqual(t, e.User(node.Name, user.Name), fairshare.GPUMillis(0))
				require.True(t, user.Share >= 0 && user.ShareOfCluster >= 0 && user.ShareOfCluster <= 1.000001)
			}
		}
	})
}

func FuzzRank(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := source(data)
		in := fairshare.Input{Budget: s.budget(), Window: s.period(), Charges: s.charges(), Ahead: s.charges()}
		r := fairshare.Rank(in)
		requireSound(t, r)
		require.Equal(t, r, fairshare.Rank(in))
	})
}

func FuzzPriority(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := source(data)
		r := fairshare.Rank(fairshare.Input{Budget: s.budget(), Window: s.period(), Charges: s.charges()})
		w, size := s.weights(), fairshare.ClusterSize{Nodes: uint32(s.any()), CPUs: uint32(s.any())}
		jobs := make([]fairshare.Job, 1+s.number(6))
		var seen fairshare.Seen
		for i := range jobs {
			jobs[i] = s.job()
			if i > 0 { // the first is not seen
				seen.Add(&jobs[i])
			}
		}
		strict, additive := fairshare.NewStrict(r, w, size, &seen), fairshare.NewAdditive(r, w, size)
		for i := range jobs {
			var f fairshare.Factors
			strict.Priority(&jobs[i], &f)
			requireColumns(t, &f)
			for _, part := range jobs[i].Parts {
				require.True(t, part.Priority >= 1 && part.Priority <= fairshare.MaxStrict)
			}
			additive.Priority(&jobs[i], &f)
			require.GreaterOrEqual(t, f.Priority, uint32(1))
			require.False(t, math.IsNaN(f.Sum()) || math.IsInf(f.Sum(), 0))
			for _, part := range jobs[i].Parts {
				require.GreaterOrEqual(t, part.Priority, uint32(1))
			}
		}
	})
}

func FuzzDeliver(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := source(data)
		in := fairshare.DeliveryInput{
			Budget: s.budget(), Window: hours(fairshare.Instant(int8(s.byte())), fairshare.Instant(int8(s.byte()))),
			Bucket: time.Duration(s.byte()) * time.Minute, Charges: s.charges(), Unallocated: s.charges(),
		}
		for _, c := range s.charges() {
			in.Demand = append(in.Demand, fairshare.Demand{Period: c.Period, Account: c.Account, Amount: c.Amount})
		}
		for _, d := range fairshare.Deliver(in) {
			require.True(t, d.Owed <= d.Demand && d.Owed <= d.Entitled && d.Capped <= d.Owed && d.Capped >= 0)
			require.True(t, d.StrictPercent() >= 0 && d.StrictPercent() <= d.Percent() && d.Percent() <= 100)
		}
	})
}
