// SPDX-License-Identifier: GPL-2.0-or-later

package assoc

import (
	"fmt"
	"regexp"
	"strings"

	"gpubudget/fairshare"
)

// entryForm is a line of a dump: a kind, a name and options.
var entryForm = regexp.MustCompile(`(?i)^\s*(cluster|machine|parent|account|project|user)\s*-\s*(?:'([^']*)'|"([^"]*)"|([^:'"\s]+))\s*(?::(.*))?$`)

func isDump(text string) bool { return entryForm.MatchString(text) }

// readDump reads the lines of a dump: after "Parent" come the accounts and
// users that stand below that account.
func readDump(lines []line) (*Listing, error) {
	d := dump{listing: &Listing{HasParents: true}, parent: fairshare.RootAccount}
	for _, l := range lines {
		if err := d.read(l); err != nil {
			return nil, fmt.Errorf("line %d: %w", l.number, err)
		}
	}
	return d.listing, nil
}

// dump is how far a dump has been read.
type dump struct {
	listing         *Listing
	cluster, parent string
}

func (d *dump) read(l line) error {
	m := entryForm.FindStringSubmatch(l.text)
	if m == nil {
		return fmt.Errorf("%q is not a line of a sacctmgr dump: KIND - 'NAME':OPTION=VALUE", l.text)
	}
	name := m[2] + m[3] + m[4]
	if name == "" {
		return fmt.Errorf("%s has no name", m[1])
	}
	share, err := shareOption(m[5])
	if err != nil {
		return err
	}
	switch strings.ToLower(m[1]) {
	case "cluster", "machine":
		d.cluster, d.parent = strings.ToLower(name), fairshare.RootAccount
		d.add(Association{Line: l.number, Account: fairshare.RootAccount, Share: share})
	case "parent":
		d.parent = strings.ToLower(name)
	case "account", "project":
		d.add(Association{Line: l.number, Account: strings.ToLower(name), Parent: d.parent, Share: share})
	case "user":
		d.add(Association{Line: l.number, Account: d.parent, User: name, Partition: option(m[5], "partition"), Share: share})
	}
	return nil
}

func (d *dump) add(a Association) {
	a.Cluster = d.cluster
	d.listing.Associations = append(d.listing.Associations, a)
}

// shareOption is the raw share among options, 1 if there is none, as in Slurm.
func shareOption(options string) (int64, error) {
	for _, name := range []string{"fairshare", "share", "shares"} {
		if v := option(options, name); v != "" {
			return parseShare(v)
		}
	}
	return 1, nil
}

// option is the value of an option by its name in lower case, "" if it is not
// there. Options are NAME=VALUE with colons between them; a value in quotes
// may hold colons.
func option(options, name string) string {
	for options != "" {
		key, rest, ok := strings.Cut(options, "=")
		if !ok {
			return ""
		}
		value, after := cutValue(rest)
		if strings.ToLower(strings.TrimSpace(key)) == name {
			return value
		}
		options = after
	}
	return ""
}

// cutValue splits a value from the options that follow it.
func cutValue(s string) (value, after string) {
	if s != "" && (s[0] == '\'' || s[0] == '"') {
		if end := strings.IndexByte(s[1:], s[0]); end >= 0 {
			return s[1 : 1+end], strings.TrimPrefix(s[2+end:], ":")
		}
	}
	value, after, _ = strings.Cut(s, ":")
	return strings.TrimSpace(value), after
}
