// SPDX-License-Identifier: GPL-2.0-or-later

package assoc

import (
	"fmt"
	"strings"

	"gpubudget/fairshare"
)

// columns says where in a row each field stands, -1 for nowhere.
type columns struct {
	cluster, account, parent, user, partition, share int
}

// unnamed is the columns of Slurm's default format, which starts like this in
// all its versions.
var unnamed = columns{cluster: 0, account: 1, user: 2, partition: 3, share: 4, parent: -1}

// readTable reads rows of fields with | between them.
func readTable(lines []line) (*Listing, error) {
	c, hasHeader, err := header(lines[0])
	if err != nil {
		return nil, err
	}
	if hasHeader {
		lines = lines[1:]
	}
	l := &Listing{HasParents: c.parent >= 0}
	path := treePath{}
	for _, line := range lines {
		a, depth, err := c.row(line)
		if err != nil {
			return nil, err
		}
		if depth > 0 {
			l.HasParents = true
		}
		if err := path.place(&a, depth, c.parent < 0); err != nil {
			return nil, err
		}
		l.Associations = append(l.Associations, a)
	}
	// A listing of root alone needs no parents.
	if !l.HasParents && onlyRoot(l.Associations) {
		l.HasParents = true
	}
	return l, nil
}

// header finds the columns in a line of their names. A line without them is
// the first row of the default format.
func header(first line) (columns, bool, error) {
	c := columns{-1, -1, -1, -1, -1, -1}
	for i, name := range strings.Split(first.text, "|") {
		switch strings.ToLower(strings.ReplaceAll(name, " ", "")) {
		case "cluster":
			c.cluster = i
		case "account":
			c.account = i
		case "parentname", "parname":
			c.parent = i
		case "user":
			c.user = i
		case "partition":
			c.partition = i
		case "share", "fairshare":
			c.share = i
		}
	}
	if c == (columns{-1, -1, -1, -1, -1, -1}) {
		return unnamed, false, nil
	}
	for _, needed := range []struct {
		name string
		at   int
	}{{"Account", c.account}, {"User", c.user}, {"Share", c.share}} {
		if needed.at < 0 {
			return c, true, fmt.Errorf("line %d: there is no column %s: use %s", first.number, needed.name, Command)
		}
	}
	return c, true, nil
}

// row reads one row, and how far its account's name is indented.
func (c columns) row(l line) (Association, int, error) {
	fields := strings.Split(l.text, "|")
	field := func(i int) string {
		if i < 0 || i >= len(fields) {
			return ""
		}
		return fields[i]
	}
	if len(fields) <= max(c.account, c.user, c.share) {
		return Association{}, 0, fmt.Errorf("line %d: only %d columns: use %s", l.number, len(fields), Command)
	}
	name := field(c.account)
	account := strings.TrimLeft(name, " ")
	if account == "" {
		return Association{}, 0, fmt.Errorf("line %d: the account is empty", l.number)
	}
	share, err := parseShare(strings.TrimSpace(field(c.share)))
	if err != nil {
		return Association{}, 0, fmt.Errorf("line %d: %w; without a line of column names only the default format is understood: use %s", l.number, err, Command)
	}
	return Association{
		Line:      l.number,
		Cluster:   strings.ToLower(field(c.cluster)),
		Account:   strings.ToLower(strings.TrimSpace(account)),
		Parent:    strings.ToLower(strings.TrimSpace(field(c.parent))),
		User:      strings.TrimSpace(field(c.user)),
		Partition: strings.TrimSpace(field(c.partition)),
		Share:     share,
	}, len(name) - len(account), nil
}

// treePath is the accounts from root down to the row before, which the
// indentation of a listing with "tree" counts.
type treePath []string

// place sets the parent of an account by its indentation, if asked, and keeps
// the path.
func (p *treePath) place(a *Association, depth int, setParent bool) error {
	if a.User != "" {
		return nil
	}
	if depth > len(*p) {
		return fmt.Errorf("line %d: account %s is indented by %d, below no account", a.Line, a.Account, depth)
	}
	if setParent && depth > 0 {
		a.Parent = (*p)[depth-1]
	}
	*p = append((*p)[:depth], a.Account)
	return nil
}

func onlyRoot(rows []Association) bool {
	for _, a := range rows {
		if a.Account != fairshare.RootAccount {
			return false
		}
	}
	return true
}
