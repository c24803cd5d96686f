// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"regexp"
	"time"
)

// utcStamp is a time as the ledger's errors show it.
var utcStamp = regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`)

// message is an error's text with its times in the zone that all other output
// is in.
func (p *program) message(err error) string {
	return utcStamp.ReplaceAllStringFunc(err.Error(), func(stamp string) string {
		t, err := time.Parse(time.RFC3339, stamp)
		if err != nil {
			return stamp
		}
		return p.formatTime(t)
	})
}
