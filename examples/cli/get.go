package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/provider"
)

const getHelp = `Show one instance in full, by name, ID or UID.

With --show-url the proxy's URL is told, with its password, which is derived from
the key file.`

func (a *app) getCommand() *cobra.Command {
	var f lsFlags
	cmd := &cobra.Command{
		Use: "get NAME|ID|UID", Short: "Show one instance in full", Long: getHelp,
		Example: `  egressctl get proxy-abcdefghijklmnop
  egressctl get -o json --show-url hosts/kvm1/domains/proxy-abcdefghijklmnop`,
		Args: exactly(1, "name one instance"), ValidArgsFunction: a.completeInstance,
		RunE: func(cmd *cobra.Command, args []string) error { return a.get(cmd.Context(), &f, args[0]) },
	}
	cmd.Flags().BoolVar(&f.showURLs, "show-url", false, "tell the proxy's URL, with its password")
	registerKeyFile(cmd.Flags(), &f.keyFile)
	return cmd
}

// exactly demands n arguments.
func exactly(n int, otherwise string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s", otherwise)
		}
		return nil
	}
}

func (a *app) get(ctx context.Context, f *lsFlags, arg string) error {
	var key []byte
	if f.showURLs {
		var err error
		if key, err = readKey(f.keyFile, existingKey); err != nil {
			return err
		}
	}
	return a.withSession(func(s *session) error {
		in, err := a.find(ctx, s, "get", arg)
		if err != nil {
			return err
		}
		out := []instance{describe(s.name, in)}
		if f.showURLs {
			a.addURLs(s, key, out)
		}
		if a.flags.output == outputJSON {
			return a.writeJSON(out[0])
		}
		return a.printTable(out[0].details(a.now()))
	})
}

// details are all that is known of an instance, for people.
func (in instance) details(now time.Time) table {
	var t table
	t.add("name", in.Name)
	t.add("id", in.ID)
	t.add("uid", in.UID)
	t.add("tag", in.Tag)
	t.add("provider", in.Provider)
	t.add("zone", in.Zone)
	t.add("state", string(in.State))
	t.add("reason", in.Reason)
	t.add("created", created(in.Instance, now))
	t.add("address", in.Address)
	for _, a := range in.Addresses {
		t.add(word(provider.State(a.Type)), a.Addr.String())
	}
	t.add("port", orDash(in.Port))
	for _, key := range slices.Sorted(maps.Keys(in.Metadata)) {
		t.add("metadata "+key, in.Metadata[key])
	}
	if in.URL != "" {
		t.add("url", in.URL)
	}
	return t
}

func created(in provider.Instance, now time.Time) string {
	if in.CreatedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", in.CreatedAt.UTC().Format(time.RFC3339), age(in.CreatedAt, now))
}
