package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/egressfleet/egress/provider"
)

const lsHelp = `List the instances of --tag with their addresses.

Hosts that do not answer are named, and the exit code is 6. With --show-urls the
proxies' URLs are told, with their passwords, which are derived from the key
file.`

// lsFlags are the flags of ls.
type lsFlags struct {
	showURLs bool
	keyFile  string
}

func (a *app) lsCommand() *cobra.Command {
	var f lsFlags
	cmd := &cobra.Command{
		Use: "ls", Short: "List instances", Long: lsHelp, Args: cobra.NoArgs,
		Example: `  egressctl ls
  egressctl ls -o json --show-urls`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ls(cmd.Context(), &f)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *lsFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.showURLs, "show-urls", false, "tell the proxies' URLs, with their passwords")
	registerKeyFile(flags, &f.keyFile)
}

// list is the result for machines.
type list struct {
	Instances []instance `json:"instances"`
	Missing   []missing  `json:"missing"`
}

func (a *app) ls(ctx context.Context, f *lsFlags) error {
	var key []byte
	if f.showURLs {
		var err error
		if key, err = readKey(f.keyFile, existingKey); err != nil {
			return err
		}
	}
	return a.withSession(func(s *session) error {
		found, err := s.p.ListByTag(ctx, a.flags.tag)
		partial, other := a.warn(err)
		if other != nil {
			return other
		}
		out := list{Instances: []instance{}, Missing: missingOf(err)}
		for _, r := range a.look(ctx, s, found) {
			out.add(a, r)
		}
		if f.showURLs {
			a.addURLs(s, key, out.Instances)
		}
		return errors.Join(a.writeList(out, f.showURLs), a.notWhole(partial || len(out.Missing) > 0))
	})
}

func missingOf(err error) []missing {
	all := []missing{}
	var partial *provider.PartialError
	if errors.As(err, &partial) {
		for _, m := range partial.Missing {
			all = append(all, missing{m.Scope, m.Err.Error()})
		}
	}
	return all
}

// look is what was learnt of one instance: lists have no addresses.
type look struct {
	instance
	err error
}

// lookTimeout bounds the look at one instance.
const lookTimeout = 30 * time.Second

func (a *app) look(ctx context.Context, s *session, found []provider.Instance) []look {
	looks := make([]look, len(found))
	each(len(found), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		in, err := s.p.Get(ctx, found[i].ID)
		if err != nil {
			in = found[i]
		}
		looks[i] = look{describe(s.name, in), err}
	})
	return looks
}

// add takes an instance that is still there. One that did not answer is shown
// as the list had it.
func (l *list) add(a *app, r look) {
	if errors.Is(r.err, provider.ErrNotFound) {
		return
	}
	if r.err != nil {
		a.screen.say("warning: %s could not be read: %v", r.ID, r.err)
		l.Missing = append(l.Missing, missing{r.ID, r.err.Error()})
	}
	l.Instances = append(l.Instances, r.instance)
}

// addURLs tells the URLs of the instances that have an address.
func (a *app) addURLs(s *session, key []byte, all []instance) {
	for i, in := range all {
		if in.Address == "" {
			continue
		}
		e, err := endpointOf(s.p, key, in.Instance)
		if err != nil {
			a.screen.say("warning: no URL: %v", err)
			continue
		}
		all[i].setEndpoint(e)
	}
}

func (a *app) writeList(l list, urls bool) error {
	if a.flags.output == outputJSON {
		return a.writeJSON(l)
	}
	if len(l.Instances) == 0 {
		a.screen.say("nothing has the tag %s", a.flags.tag)
		return nil
	}
	return a.printTable(instanceTable(l.Instances, urls, a.now()))
}
