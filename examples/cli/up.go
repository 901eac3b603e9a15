package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/provider"
)

// upFlags are the flags of up.
type upFlags struct {
	machineFlags
	probe   probeFlags
	count   int
	timeout time.Duration
	noProbe bool
	keep    bool
	hold    bool
}

const upHelp = `Make a proxy, wait until a fetch through it works, and print its URL.

Standard output gets the URL, with user name and password, and nothing else: one
line for each proxy, or with -o json what ls tells too. Anyone who has the
password may use the proxy, from the networks of --clients.

Without --zone the provider chooses the host with the most room, and another one
where that turns out to be full. Of what did not become healthy the end of its
console is shown, and it is removed again, unless --keep is given. Ctrl-C removes
all that this call made; a second Ctrl-C leaves it, and tells how to remove it.`

func (a *app) upCommand() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use: "up", Short: "Make a proxy and print its URL", Long: upHelp, Args: cobra.NoArgs,
		Example: `  egressctl up
  egressctl up --zone kvm1 --machine-type small --image debian13 --clients 203.0.113.0/24
  egressctl up --cloud-init user-data.yaml --port 8080
  curl --proxy "$(egressctl up)" https://example.com/`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), &f, cmd.Flags()) },
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.IntVar(&f.count, "count", 1, "how many")
	flags.DurationVar(&f.timeout, "timeout", provider.BootTimeout,
		"how long to wait for the host to take the instance, its image fetched, and then for the proxy to be healthy")
	f.probe.register(flags)
	flags.BoolVar(&f.noProbe, "no-probe", false, "end when the instance has an address, whether its proxy works or not")
	flags.BoolVar(&f.keep, "keep", false, "leave what failed or was interrupted, to look into it")
	flags.BoolVar(&f.hold, "hold", false, "stay, and remove the proxies at Ctrl-C; always so with a local provider")
	return cmd
}

// upRun is one call of up.
type upRun struct {
	*app
	*session
	flags   *upFlags
	machine setup.Machine
	prober  *health.Prober // nil to leave it out
	boots   []*boot
}

// up does all that can fail for its flags before anything is made.
func (a *app) up(ctx context.Context, f *upFlags, set *pflag.FlagSet) error {
	if f.count < 1 || f.timeout <= 0 {
		return usagef("--count and --timeout must be positive")
	}
	prober, err := f.prober()
	if err != nil {
		return err
	}
	machine, err := f.machine(set, a.stdin)
	if err != nil {
		return err
	}
	return a.withSession(func(s *session) error {
		u := &upRun{app: a, session: s, flags: f, machine: machine, prober: prober}
		for range f.count {
			uid := a.newUID()
			u.boots = append(u.boots, &boot{upRun: u, uid: uid, name: provider.Name(uid), began: a.now()})
		}
		return u.run(ctx)
	})
}

func (f *upFlags) prober() (*health.Prober, error) {
	if f.noProbe {
		return nil, nil
	}
	return f.probe.prober(20 * time.Second)
}

// run makes the proxies side by side, and removes those that came to nothing.
func (u *upRun) run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, b := range u.boots {
		running.Go(func() { b.err = b.run(ctx) })
	}
	running.Wait()
	if ctx.Err() != nil {
		return u.undo(u.boots)
	}
	good, bad := split(u.boots)
	err := u.print(good)
	for _, b := range bad {
		err = errors.Join(err, b.err)
	}
	err = errors.Join(err, u.undo(bad))
	if u.flags.hold || u.inProcess(u.p) && len(good) > 0 {
		return errors.Join(err, u.stay(ctx, good))
	}
	return err
}

func split(boots []*boot) (good, bad []*boot) {
	for _, b := range boots {
		if b.err == nil {
			good = append(good, b)
		} else {
			bad = append(bad, b)
		}
	}
	return good, bad
}

// print writes the result.
func (u *upRun) print(good []*boot) error {
	rows := make([]instance, 0, len(good))
	for _, b := range good {
		row := describe(u.name, b.in)
		row.setEndpoint(b.endpoint)
		row.Probe = b.probe
		rows = append(rows, row)
	}
	if u.app.flags.output == outputJSON {
		return u.writeJSON(map[string]any{"instances": rows})
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(u.stdout, row.URL); err != nil {
			return err
		}
	}
	return nil
}

// stay waits for an interrupt and removes the proxies.
func (u *upRun) stay(ctx context.Context, good []*boot) error {
	if len(good) == 0 {
		return nil
	}
	u.held = true
	u.screen.say("holding %d of them; Ctrl-C removes them", len(good))
	<-ctx.Done()
	return u.remove(good)
}

// undo removes what came to nothing, unless it is to be kept.
func (u *upRun) undo(boots []*boot) error {
	boots = slices.DeleteFunc(slices.Clone(boots), func(b *boot) bool { return b.nothing })
	if !u.flags.keep {
		return u.remove(boots)
	}
	for _, b := range boots {
		if b.id != "" {
			u.screen.say("kept %s; remove it by: %s", b.id, u.command("rm", b.id))
		}
	}
	return nil
}

// remove deletes what the boots made, until it is gone, the second interrupt
// comes or patience ends.
func (u *upRun) remove(boots []*boot) error {
	if len(boots) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(u.insistence, u.patience)
	defer cancel()
	u.screen.say("removing what was made; Ctrl-C%s leaves it", u.another())
	var running sync.WaitGroup
	for _, b := range boots {
		running.Go(func() { b.left = b.remove(ctx) })
	}
	running.Wait()
	u.late(ctx, boots)
	var errs []error
	for _, b := range boots {
		errs = append(errs, b.leftBehind())
	}
	return errors.Join(errs...)
}

// another tells which interrupt ends a.insistence.
func (a *app) another() string {
	if a.interrupted() {
		return " again"
	}
	return " twice"
}

// late removes what a call that was cut off made after all, and doubts where
// that cannot be told.
func (u *upRun) late(ctx context.Context, boots []*boot) {
	found, err := u.p.ListByTag(ctx, u.app.flags.tag)
	for _, b := range boots {
		i := slices.IndexFunc(found, func(in provider.Instance) bool { return in.Name == b.name })
		switch {
		case b.left != nil:
		case i >= 0:
			b.id = found[i].ID
			b.left = b.remove(ctx)
		case b.id == "":
			b.left = err
		}
	}
}

// leftBehind is the error about what could not be removed.
func (b *boot) leftBehind() error {
	which := cmp.Or(b.id, b.name)
	switch {
	case b.left == nil:
		return nil
	case b.accepted:
		return advise(fmt.Errorf("%s is left: %w", which, b.left), "remove it by: %s", b.command("rm", which))
	}
	return advise(fmt.Errorf("cannot tell whether something of %s was made: %w", which, b.left), "when the host answers: %s", b.command("rm", which))
}
