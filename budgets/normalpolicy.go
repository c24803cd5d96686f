// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

// NormalPolicy is a setting and its value as Policy.Value gives it: two values
// that mean the same have the same form. The error is an *InvalidPolicyError.
func NormalPolicy(setting, value string) (name, normal string, err error) {
	name, stored, err := canonicalPolicy(setting, value)
	if err != nil {
		return "", "", err
	}
	var p Policy
	if err := p.set(name, stored); err != nil {
		return "", "", err
	}
	return name, p.Value(name), nil
}
