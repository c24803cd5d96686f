// SPDX-License-Identifier: GPL-2.0-or-later

package plan

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
	"gpubudget/internal/nearest"
)

// ReadYAML reads a tree from a YAML document:
//
//	cluster: titan
//	policy:
//	  lookback: 7d
//	weights: {h100: 2.5}     # what a GPU of a type counts for
//	users: [operator]        # members of root
//	accounts:
//	  vision:
//	    share: 60%           # of the account above
//	    min_runtime: 30m     # of jobs that name none; inherit takes it back
//	    users: [ann, bob]    # equal parts of what the accounts below leave
//	    accounts:
//	      detection:
//	        share: 70%
//	        users: {carol: 80%, dave: equal}
//
// All keys but share are optional. Errors name the line and the column after name.
func ReadYAML(r io.Reader, name string) (Tree, error) {
	return read(r, &decoder{name: name})
}

// ReadBudget is ReadYAML of a tree that is all there is: that shares below one
// account come to more than 100% is an error, too.
func ReadBudget(r io.Reader, name string) (Tree, error) {
	return read(r, &decoder{name: name, given: map[*Account]fairshare.Share{}})
}

func read(r io.Reader, d *decoder) (Tree, error) {
	name := d.name
	var document yaml.Node
	switch err := yaml.NewDecoder(r).Decode(&document); {
	case errors.Is(err, io.EOF):
		return Tree{}, fmt.Errorf("%s: it is empty: begin with the key accounts", name)
	case err != nil:
		return Tree{}, fmt.Errorf("%s: %w", name, err)
	}
	d.seen = map[string]int{fairshare.RootAccount: 0}
	t, err := d.tree(document.Content[0])
	if err != nil {
		return Tree{}, err
	}
	t.Root.Sort()
	return t, nil
}

type decoder struct {
	name string
	seen map[string]int // lines of the accounts read
	// given is by account what it has given away so far; nil if it may be more
	// than it has.
	given map[*Account]fairshare.Share
}

// fail is an error at a node.
func (d *decoder) fail(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %w", d.name, n.Line, n.Column, fmt.Errorf(format, args...))
}

func (d *decoder) tree(n *yaml.Node) (Tree, error) {
	t := Tree{Root: Account{Name: fairshare.RootAccount, Share: fairshare.Whole}}
	return t, d.fields(n, "the file", map[string]func(*yaml.Node) error{
		"cluster": func(v *yaml.Node) error {
			err := d.text(v, &t.Cluster)
			t.Cluster = strings.ToLower(t.Cluster)
			return err
		},
		"policy":   func(v *yaml.Node) error { return d.policy(v, &t) },
		"weights":  func(v *yaml.Node) error { return d.weights(v, &t) },
		"users":    func(v *yaml.Node) error { return d.users(v, &t.Root) },
		"accounts": func(v *yaml.Node) error { return d.accounts(v, &t.Root) },
	})
}

// fields calls the reader of every key of a mapping.
func (d *decoder) fields(n *yaml.Node, what string, readers map[string]func(*yaml.Node) error) error {
	return d.pairs(n, what, func(key, value *yaml.Node) error {
		read, ok := readers[key.Value]
		if !ok {
			return d.unknownKey(key, what, readers)
		}
		return read(value)
	})
}

func (d *decoder) unknownKey(key *yaml.Node, what string, readers map[string]func(*yaml.Node) error) error {
	known := make([]string, 0, len(readers))
	for name := range readers {
		known = append(known, name)
	}
	slices.Sort(known)
	if near := nearest.Word(key.Value, known); near != "" {
		return d.fail(key, "%s has an unknown key %q: did you mean %s?", what, key.Value, near)
	}
	return d.fail(key, "%s has an unknown key %q: known are %s", what, key.Value, strings.Join(known, ", "))
}

// pairs calls f for the keys and values of a mapping, each key once. A value
// left empty is an empty mapping.
func (d *decoder) pairs(n *yaml.Node, what string, f func(key, value *yaml.Node) error) error {
	n = resolve(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return d.fail(n, "%s must be KEY: VALUE lines", what)
	}
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if before, ok := seen[key.Value]; ok {
			return d.fail(key, "%q is there a second time (first in line %d)", key.Value, before)
		}
		seen[key.Value] = key.Line
		if err := f(key, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// resolve follows an alias to its anchor.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (d *decoder) text(n *yaml.Node, to *string) error {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		return d.fail(n, "a word is needed here")
	}
	*to = n.Value
	return nil
}

func (d *decoder) policy(n *yaml.Node, t *Tree) error {
	t.Policy = map[string]string{}
	return d.pairs(n, "policy", func(key, value *yaml.Node) error {
		var text string
		if err := d.text(value, &text); err != nil {
			return err
		}
		t.Policy[key.Value] = text
		return nil
	})
}

func (d *decoder) weights(n *yaml.Node, t *Tree) error {
	t.Weights = map[string]fairshare.Weight{}
	return d.pairs(n, "weights", func(key, value *yaml.Node) error {
		var text string
		if err := d.text(value, &text); err != nil {
			return err
		}
		w, err := amount.ParseWeight(text)
		if err != nil {
			return d.fail(value, "%w", err)
		}
		name := strings.ToLower(key.Value)
		if _, before := t.Weights[name]; before {
			return d.fail(key, "the weight of %s is there a second time", name)
		}
		t.Weights[name] = w
		return nil
	})
}

func (d *decoder) accounts(n *yaml.Node, parent *Account) error {
	return d.pairs(n, "accounts of "+parent.Name, func(key, value *yaml.Node) error {
		name := strings.ToLower(key.Value)
		if before, ok := d.seen[name]; ok {
			if before == 0 {
				return d.fail(key, "account %s needs no mention: its users and accounts stand at the top", name)
			}
			return d.fail(key, "account %s is there a second time (first in line %d)", name, before)
		}
		d.seen[name] = key.Line
		a, err := d.account(name, parent, key, value)
		parent.Accounts = append(parent.Accounts, a)
		return err
	})
}

func (d *decoder) account(name string, parent *Account, key, value *yaml.Node) (Account, error) {
	a := Account{Name: name}
	hasShare := false
	err := d.fields(value, "account "+name, map[string]func(*yaml.Node) error{
		"share": func(v *yaml.Node) error {
			hasShare = true
			if err := d.share(v, amount.ParsePercent, &a.Share); err != nil {
				return err
			}
			return d.give(v, parent, a.Share)
		},
		"min_runtime": func(v *yaml.Node) error { return d.minRuntime(v, &a) },
		"users":       func(v *yaml.Node) error { return d.users(v, &a) },
		"accounts":    func(v *yaml.Node) error { return d.accounts(v, &a) },
	})
	if err == nil && !hasShare {
		err = d.fail(key, "account %s has no share: add share: and percent of the account above", name)
	}
	return a, err
}

func (d *decoder) minRuntime(n *yaml.Node, a *Account) error {
	var text string
	if err := d.text(n, &text); err != nil {
		return err
	}
	var err error
	if a.MinRuntime, err = budgets.NormalMinRuntime(a.Name, text); err != nil {
		return d.fail(n, "%w", err)
	}
	return nil
}

func (d *decoder) share(n *yaml.Node, parse func(string) (fairshare.Share, error), to *fairshare.Share) error {
	var text string
	if err := d.text(n, &text); err != nil {
		return err
	}
	s, err := parse(text)
	if err != nil {
		return d.fail(n, "%w", err)
	}
	*to = s
	return nil
}

// give checks that an account has a share to give that stands at a node.
func (d *decoder) give(n *yaml.Node, from *Account, share fairshare.Share) error {
	if d.given == nil {
		return nil
	}
	d.given[from] += share
	if sum := d.given[from]; sum > fairshare.Whole {
		return d.fail(n, "below account %s shares come to %s: they can be 100%% at most", from.Name, amount.Percent(sum))
	}
	return nil
}

// users reads a list of names, or names with shares.
func (d *decoder) users(n *yaml.Node, a *Account) error {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		return d.pairs(n, "users of "+a.Name, func(key, value *yaml.Node) error {
			u := User{Name: key.Value}
			if err := d.share(value, amount.ParseUserShare, &u.Share); err != nil {
				return err
			}
			a.Users = append(a.Users, u)
			return d.give(value, a, max(u.Share, 0))
		})
	}
	seen := map[string]bool{}
	for _, item := range n.Content {
		u := User{Share: fairshare.EqualPart}
		if err := d.text(item, &u.Name); err != nil {
			return err
		}
		if seen[u.Name] {
			return d.fail(item, "user %s is in account %s a second time", u.Name, a.Name)
		}
		seen[u.Name] = true
		a.Users = append(a.Users, u)
	}
	return nil
}

// WriteYAML writes a tree so that ReadYAML reads it back.
func WriteYAML(w io.Writer, t Tree) error {
	top := &yaml.Node{Kind: yaml.MappingNode}
	if t.Cluster != "" {
		put(top, "cluster", word(t.Cluster))
	}
	if len(t.Policy) > 0 {
		policy := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range sortedKeys(t.Policy) {
			put(policy, name, word(t.Policy[name]))
		}
		put(top, "policy", policy)
	}
	if len(t.Weights) > 0 {
		weights := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range sortedKeys(t.Weights) {
			put(weights, name, number(amount.Weight(t.Weights[name])))
		}
		put(top, "weights", weights)
	}
	fill(top, &t.Root)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(top), e.Close()); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// put adds a key and its value to a mapping.
func put(mapping *yaml.Node, key string, value *yaml.Node) {
	mapping.Content = append(mapping.Content, word(key), value)
}

// word is a string, quoted where YAML would take it for something else.
func word(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// number is a weight, which YAML may take for a number.
func number(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// fill adds what stands below an account to its mapping.
func fill(mapping *yaml.Node, a *Account) {
	if len(a.Users) > 0 {
		put(mapping, "users", usersNode(a.Users))
	}
	if len(a.Accounts) == 0 {
		return
	}
	accounts := &yaml.Node{Kind: yaml.MappingNode}
	for i := range a.Accounts {
		child := &yaml.Node{Kind: yaml.MappingNode}
		put(child, "share", word(amount.Percent(a.Accounts[i].Share)))
		if d := a.Accounts[i].MinRuntime; d != "" {
			put(child, "min_runtime", word(d))
		}
		fill(child, &a.Accounts[i])
		put(accounts, a.Accounts[i].Name, child)
	}
	put(mapping, "accounts", accounts)
}

// usersNode is a list of names if nobody has a share of his own.
func usersNode(users []User) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	shares := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	equal := true
	for _, u := range users {
		equal = equal && u.Share == fairshare.EqualPart
		list.Content = append(list.Content, word(u.Name))
		put(shares, u.Name, word(amount.Percent(u.Share)))
	}
	if equal {
		return list
	}
	return shares
}
