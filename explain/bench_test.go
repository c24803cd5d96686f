// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"fmt"
	"testing"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// BenchmarkAccount explains the last of 500 accounts in 25 programs, with 5,000
// users of whom each second used something in each hour of the window.
func BenchmarkAccount(b *testing.B) {
	var accounts []fairshare.Account
	var charged []fairshare.Charge
	for p := range 25 {
		program := fmt.Sprint("p", p)
		accounts = append(accounts, account(program, "root", 4))
		for a := range 20 {
			name := fmt.Sprint(program, "a", a)
			team := account(name, program, 5)
			for u := range 10 {
				user := fmt.Sprint(name, "u", u)
				team.Users = append(team.Users, equal(user))
				for h := u % 2; h < 100; h += 2 {
					charged = append(charged, charge(name, user, period(fairshare.Instant(h), fairshare.Instant(h+1)), int64(1+(p*a*u+h)%7+p)))
				}
			}
			accounts = append(accounts, team)
		}
	}
	rec := record(budgets.Strict, accounts...)
	rec.Charged = charged
	for _, a := range accounts {
		rec.Queue = append(rec.Queue, usage.Queue{Account: a.Name, User: a.Name + "u0", PendingJobs: 1, PendingGPUs: 1})
	}
	b.ResetTimer()
	for range b.N {
		if e, ok := Account(rec, Subject{"p24a19", "p24a19u1"}); !ok || len(e.Changes) == 0 {
			b.Fatal("nothing to change")
		}
	}
}
