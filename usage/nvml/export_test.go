// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

// Functions are the names of the functions called, each with its versions, and
// the newest names of those without which nothing works.
func Functions() (all [][]string, must []string) {
	for _, f := range required {
		must = append(must, names[f][0])
	}
	return names[:], must
}
