// SPDX-License-Identifier: GPL-2.0-or-later

// Package amount reads and writes GPU time and shares as people give them:
// hours and percent. Everything behind it is integer GPU-milliseconds and
// billionths.
package amount

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"gpubudget/fairshare"
)

// MaxHours is the greatest amount of GPU-hours that is read: a million GPUs
// for more than a century. The ledger takes no more in one entry.
const MaxHours = 1_000_000_000

// HoursForms lists the accepted forms of GPU time, for errors and help texts.
const HoursForms = "hours (100, 1.5), or with a unit: 100h, 90m, 30s, 2d, or D-HH:MM:SS"

var (
	// unitForm is a number and perhaps a unit.
	unitForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z-]*)$`)
	// daysForm is Slurm's days-hours:minutes:seconds, which has one reading
	// only if the days or all three others are there.
	daysForm   = regexp.MustCompile(`^([0-9]{1,9})-([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))?$`)
	clockForm  = regexp.MustCompile(`^([0-9]{1,9}):([0-9]{2}):([0-9]{2})$`)
	signedForm = regexp.MustCompile(`^-\s*[0-9.]`)
	commaForm  = regexp.MustCompile(`^[0-9]+(,[0-9]+)+`)
)

// milliseconds of a unit of time, by its names.
var unitMillis = map[string]int64{
	"": 3_600_000, "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000, "gpu-hours": 3_600_000, "gpu-hour": 3_600_000,
	"m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
	"s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000,
	"d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}

// ParseHours reads an amount of GPU time: a number of GPU-hours, or a number
// with one of the units h, m, s and d, or D-HH[:MM[:SS]] or HH:MM:SS. It must
// be more than zero and at most MaxHours; what is finer than a millisecond is
// rounded to the nearest.
func ParseHours(text string) (fairshare.GPUMillis, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	switch s {
	case "nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "unlimited":
		return 0, fmt.Errorf("GPU time %q is not a finite number: give %s", text, HoursForms)
	}
	if signedForm.MatchString(s) {
		return 0, fmt.Errorf("GPU time %q is negative: give a positive amount; to take GPU time from an account, transfer it to another", text)
	}
	if commaForm.MatchString(s) {
		return 0, fmt.Errorf("GPU time %q can be read in two ways, as a decimal comma or as thousands: write %s or %s",
			text, strings.ReplaceAll(s, ",", "."), strings.ReplaceAll(s, ",", ""))
	}
	millis, err := readMillis(text, s)
	if err != nil {
		return 0, err
	}
	return inRange(text, millis)
}

// readMillis is the exact number of milliseconds that s names.
func readMillis(text, s string) (*big.Rat, error) {
	if m := daysForm.FindStringSubmatch(s); m != nil {
		return readClock(text, m[1], m[2], m[3], m[4])
	}
	if m := clockForm.FindStringSubmatch(s); m != nil {
		return readClock(text, "", m[1], m[2], m[3])
	}
	if strings.Contains(s, ":") {
		return nil, fmt.Errorf("GPU time %q can be read as hours:minutes or as minutes:seconds: write HH:MM:SS", text)
	}
	m := unitForm.FindStringSubmatch(s)
	if m == nil {
		return nil, fmt.Errorf("GPU time %q is not understood: give %s", text, HoursForms)
	}
	unit, ok := unitMillis[m[2]]
	if !ok {
		return nil, fmt.Errorf("GPU time %q has an unknown unit %q: give %s", text, m[2], HoursForms)
	}
	number, _ := new(big.Rat).SetString(strings.TrimSuffix(m[1], "."))
	return number.Mul(number, new(big.Rat).SetInt64(unit)), nil
}

// readClock adds up days, hours, minutes and seconds given as digits, "" for
// none. Only the first of them may exceed what a clock shows.
func readClock(text, days, hours, minutes, seconds string) (*big.Rat, error) {
	d, h, m, s := digits(days), digits(hours), digits(minutes), digits(seconds)
	if m > 59 || s > 59 || (days != "" && h > 23) {
		return nil, fmt.Errorf("GPU time %q: hours go to 23, minutes and seconds to 59", text)
	}
	return new(big.Rat).SetInt64(((d*24+h)*60+m)*60_000 + s*1000), nil
}

// digits is the value of at most nine digits, 0 for none.
func digits(s string) int64 {
	var n int64
	for _, c := range s {
		n = 10*n + int64(c-'0')
	}
	return n
}

// inRange rounds millis and refuses nothing at all and too much.
func inRange(text string, millis *big.Rat) (fairshare.GPUMillis, error) {
	most := new(big.Rat).SetInt64(MaxHours * int64(fairshare.GPUHour))
	if millis.Cmp(most) > 0 {
		return 0, fmt.Errorf("GPU time %q is too much: the most is %d hours", text, MaxHours)
	}
	half := new(big.Rat).SetFrac64(1, 2)
	sum := half.Add(half, millis)
	rounded := new(big.Int).Quo(sum.Num(), sum.Denom())
	if rounded.Sign() == 0 {
		return 0, fmt.Errorf("GPU time %q is zero: give more than half a millisecond", text)
	}
	return fairshare.GPUMillis(rounded.Int64()), nil
}

// Hours is g in GPU-hours with at most six decimals, as short as it can be:
// 1.5 or 100.
func Hours(g fairshare.GPUMillis) string {
	return trimZeros(strconv.FormatFloat(g.Hours(), 'f', 6, 64))
}

// PercentForms lists the accepted forms of a share, for errors and help texts.
const PercentForms = "percent (30, 30%, 12.5%)"

var percentForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)$`)

// ParsePercent reads a share in percent, from 0 to 100 with at most seven
// decimals. The % sign may be left out, but not of a number below 1: 0.3 would
// be read as 30% by some.
func ParsePercent(text string) (fairshare.Share, error) {
	s := strings.TrimSpace(text)
	if signedForm.MatchString(s) {
		return 0, fmt.Errorf("share %q is negative: give %s from 0 to 100", text, PercentForms)
	}
	m := percentForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("share %q is not understood: give %s from 0 to 100", text, PercentForms)
	}
	percent, _ := new(big.Rat).SetString(strings.TrimSuffix(m[1], "."))
	if percent.Cmp(new(big.Rat).SetInt64(100)) > 0 {
		return 0, fmt.Errorf("share %q is more than 100%% of the parent: give %s from 0 to 100", text, PercentForms)
	}
	if m[2] == "" && percent.Sign() > 0 && percent.Cmp(new(big.Rat).SetInt64(1)) < 0 {
		return 0, fractionError(text, percent)
	}
	billionths := percent.Mul(percent, new(big.Rat).SetInt64(int64(fairshare.Whole/100)))
	if !billionths.IsInt() {
		return 0, fmt.Errorf("share %q has more than seven decimals", text)
	}
	return fairshare.Share(billionths.Num().Int64()), nil
}

func fractionError(text string, percent *big.Rat) error {
	asFraction := new(big.Rat).Mul(percent, new(big.Rat).SetInt64(100))
	return fmt.Errorf("share %q can be read in two ways, as %s%% or as a fraction: write %s%% or %s%%",
		text, decimal(percent), decimal(percent), decimal(asFraction))
}

func decimal(r *big.Rat) string { return trimZeros(r.FloatString(9)) }

// equalPart is the word for a user without a share of his own.
const equalPart = "equal"

// ParseUserShare reads a user's share: percent, or the word "equal" for an
// equal part of what the others leave.
func ParseUserShare(text string) (fairshare.Share, error) {
	if strings.EqualFold(strings.TrimSpace(text), equalPart) {
		return fairshare.EqualPart, nil
	}
	s, err := ParsePercent(text)
	if err != nil {
		return 0, fmt.Errorf("%w, or %s", err, equalPart)
	}
	return s, nil
}

// Percent is s as a percentage with as many decimals as it needs, or "equal".
// What it returns reads back as s.
func Percent(s fairshare.Share) string {
	if s == fairshare.EqualPart {
		return equalPart
	}
	return trimZeros(fmt.Sprintf("%d.%07d", s/10_000_000, s%10_000_000)) + "%"
}

// trimZeros drops the zeros at the end of decimals.
func trimZeros(s string) string {
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
