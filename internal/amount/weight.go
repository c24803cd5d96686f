// SPDX-License-Identifier: GPL-2.0-or-later

package amount

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"gpubudget/fairshare"
)

// WeightForms lists the accepted forms of a weight, for errors and help texts.
const WeightForms = "a number (1, 0.5, 2.25) from 0 to 1000, or default"

// defaultWeight is the word for a weight that is taken back.
const defaultWeight = "default"

var weightForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)$`)

// ParseWeight reads what a GPU counts for: a number from 0 to 1000 with at most
// three decimals, or the word "default".
func ParseWeight(text string) (fairshare.Weight, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	if s == defaultWeight {
		return fairshare.DefaultWeight, nil
	}
	if signedForm.MatchString(s) {
		return 0, fmt.Errorf("weight %q is negative: give %s", text, WeightForms)
	}
	if commaForm.MatchString(s) {
		return 0, fmt.Errorf("weight %q can be read in two ways, as a decimal comma or as thousands: give %s", text, WeightForms)
	}
	if !weightForm.MatchString(s) {
		return 0, fmt.Errorf("weight %q is not understood: give %s", text, WeightForms)
	}
	number, _ := new(big.Rat).SetString(strings.TrimSuffix(s, "."))
	thousandths := number.Mul(number, new(big.Rat).SetInt64(int64(fairshare.OneGPU)))
	if !thousandths.IsInt() {
		return 0, fmt.Errorf("weight %q has more than three decimals", text)
	}
	if thousandths.Cmp(new(big.Rat).SetInt64(int64(fairshare.MaxWeight))) > 0 {
		return 0, fmt.Errorf("weight %q is too much: give %s", text, WeightForms)
	}
	return fairshare.Weight(thousandths.Num().Int64()), nil
}

// Weight is w as a number with as many decimals as it needs, or "default". What it
// returns reads back as w.
func Weight(w fairshare.Weight) string {
	if w == fairshare.DefaultWeight {
		return defaultWeight
	}
	return trimZeros(fmt.Sprintf("%d.%03d", w/fairshare.OneGPU, w%fairshare.OneGPU))
}
