package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/egressfleet/egress/provider"
)

// isID tells an ID from a name and a UID.
func isID(arg string) bool { return strings.Contains(arg, "/") }

// among finds the instance of that name or UID.
func among(list []provider.Instance, arg string) (provider.Instance, bool) {
	i := slices.IndexFunc(list, func(in provider.Instance) bool { return in.UID == arg || in.Name == arg })
	if i < 0 {
		return provider.Instance{}, false
	}
	return list[i], true
}

// find returns the instance of the tag that an ID, a name or a UID means. verb is
// the command that wants it.
func (a *app) find(ctx context.Context, s *session, verb, arg string) (provider.Instance, error) {
	id := arg
	if !isID(arg) {
		list, err := s.p.ListByTag(ctx, a.flags.tag)
		partial, other := a.warn(err)
		if other != nil {
			return provider.Instance{}, other
		}
		in, found := among(list, arg)
		switch {
		case !found && partial:
			return in, notWhereRead(arg)
		case !found:
			return in, advise(marked{fmt.Errorf("%s: nothing with the tag %s has that name or UID", arg, a.flags.tag), provider.ErrNotFound},
				"see what there is: %s", a.command("ls"))
		}
		id = in.ID
	}
	in, err := s.p.Get(ctx, id)
	if err == nil && in.Tag != a.flags.tag {
		err = a.wrongTag(in, verb)
	}
	return in, err
}

// notWhereRead is the error about what may be on a host that did not answer.
func notWhereRead(arg string) error {
	return advise(marked{fmt.Errorf("%s: not found where the list could be read", arg), provider.ErrTransient},
		"try again when the hosts above answer, or give its ID")
}

func (a *app) wrongTag(in provider.Instance, verb string) error {
	return advise(permanent(fmt.Errorf("%s has the tag %s and not %s", in.ID, in.Tag, a.flags.tag)),
		"if it is yours: %s", a.commandFor(in.Tag, verb, in.ID))
}

// member is one provider of the file, or why there is none.
type member struct {
	name string
	p    provider.Provider
	err  error
}

// withAll runs f with the provider that --provider names, or with all of the file.
func (a *app) withAll(f func([]member) error) (err error) {
	file, err := a.load()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	names := file.Names()
	if a.flags.provider != "" {
		if !slices.Contains(names, a.flags.provider) {
			return unknownProvider(a.flags.provider, names)
		}
		names = []string{a.flags.provider}
	}
	var all []member
	for _, name := range names {
		p, err := file.Get(name)
		all = append(all, member{name, p, err})
	}
	return f(all)
}

func unknownProvider(name string, names []string) error {
	return usagef("--provider: %q: the providers file has %q", name, names)
}

func unusable(err error) error {
	return advise(permanent(err), "correct the provider's entry in the providers file")
}
