// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"strings"
	"time"

	"gpubudget/fairshare"
)

// Test budgets begin at an instant that is round in no unit.
const start fairshare.Instant = 1_772_000_000_123

// hour is an hour in milliseconds.
const hour = fairshare.Instant(time.Hour / time.Millisecond)

// hours is the period from the given to the other hour since start.
func hours(from, until fairshare.Instant) fairshare.Period {
	return fairshare.Period{From: start + from*hour, Until: start + until*hour}
}

// always is a timeline of one value.
func always[T any](value T) []fairshare.Step[T] {
	return []fairshare.Step[T]{{Period: fairshare.Period{From: fairshare.Always, Until: fairshare.Never}, Value: value}}
}

// change is a new value from an hour since start on.
type change[T any] struct {
	hour  fairshare.Instant
	value T
}

func changing[T any](first T, changes ...change[T]) []fairshare.Step[T] {
	line := always(first)
	for _, c := range changes {
		at := start + c.hour*hour
		line[len(line)-1].Until = at
		line = append(line, fairshare.Step[T]{Period: fairshare.Period{From: at, Until: fairshare.Never}, Value: c.value})
	}
	return line
}

func percent(p float64) fairshare.Share {
	return fairshare.Share(math.Round(p * float64(fairshare.Whole) / 100))
}

// account is one that always stood where it stands.
func account(name, parent string, share float64, users ...fairshare.Member) fairshare.Account {
	return fairshare.Account{Name: name, Parent: always(parent), Share: always(percent(share)), Users: users}
}

func equal(user string) fairshare.Member {
	return fairshare.Member{User: user, In: always(fairshare.EqualPart)}
}

func withShare(user string, share float64) fairshare.Member {
	return fairshare.Member{User: user, In: always(percent(share))}
}

func budget(gpus int64, accounts ...fairshare.Account) *fairshare.Budget {
	return &fairshare.Budget{Accounts: accounts, Capacity: always(fairshare.MilliGPUs(gpus) * fairshare.GPU)}
}

func charge(account, user string, p fairshare.Period, gpuHours int64) fairshare.Charge {
	return fairshare.Charge{Period: p, Account: account, User: user, Amount: fairshare.GPUMillis(gpuHours) * fairshare.GPUHour}
}

// cutUser splits account/user.
func cutUser(name string) (account, user string, isUser bool) { return strings.Cut(name, "/") }
