package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/provider"
)

const sweepHelp = `Show what crashes left on the hosts, and with --yes remove it: machines of --tag
that nobody finished making or deleting, and images that nobody finished sending.

Without --yes nothing is removed, for what goes cannot be had back. Whole machines
stay in any case (rm removes them), and so does what nothing tells the owner of:
it is shown with the command that removes it. All providers of the file are
swept, or the one of --provider.`

// sweepFlags are the flags of sweep.
type sweepFlags struct {
	yes, dryRun bool
	olderThan   time.Duration
}

func (a *app) sweepCommand() *cobra.Command {
	var f sweepFlags
	cmd := &cobra.Command{
		Use: "sweep", Short: "Remove what crashes left behind", Long: sweepHelp, Args: cobra.NoArgs,
		Example: `  egressctl sweep
  egressctl sweep --yes --older-than 24h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.yes && f.dryRun:
				return usagef("give --yes or --dry-run, not both")
			case f.olderThan < 0:
				return usagef("--older-than must not be negative")
			}
			return a.withAll(func(all []member) error { return a.sweep(cmd.Context(), &f, all) })
		},
	}
	cmd.Flags().BoolVar(&f.yes, "yes", false, "remove it")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "remove nothing, which is the default")
	registerOlderThan(cmd, &f.olderThan)
	return cmd
}

func registerOlderThan(cmd *cobra.Command, d *time.Duration) {
	cmd.Flags().DurationVar(d, "older-than", provider.DefaultSweepAge, "leave alone what is younger, or has changed since")
}

// atLeast is an age for a request in which zero means another.
func atLeast(d time.Duration) time.Duration { return max(d, 1) }

func (a *app) sweep(ctx context.Context, f *sweepFlags, all []member) error {
	req := provider.SweepRequest{Tag: a.flags.tag, MinAge: atLeast(f.olderThan), DryRun: !f.yes}
	return a.clean(all, "leftovers", req.DryRun, func(m member) ([]provider.Leftover, error) {
		return provider.Sweep(ctx, m.p, req)
	})
}

// leftover is one of a result's, for machines.
type leftover struct {
	Provider   string `json:"provider"`
	Scope      string `json:"scope"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	AgeSeconds int64  `json:"ageSeconds"`
	// Removed is whether it is gone; in a dry run whether it would be.
	Removed bool   `json:"removed"`
	Reason  string `json:"reason"`
	Error   string `json:"error,omitempty"`
}

// clean has every provider clean up, and tells what it did. what is the word for
// it in the result.
func (a *app) clean(all []member, what string, dryRun bool, do func(member) ([]provider.Leftover, error)) error {
	found := make([][]provider.Leftover, len(all))
	errs := make([]error, len(all))
	each(len(all), func(i int) {
		if errs[i] = all[i].err; errs[i] == nil {
			found[i], errs[i] = do(all[i])
		} else {
			errs[i] = unusable(errs[i])
		}
	})
	lefts, gaps := []leftover{}, []missing{}
	var failed []error
	for i, m := range all {
		gaps = append(gaps, missingOf(errs[i])...)
		_, other := a.warn(errs[i])
		failed = append(failed, other)
		for _, l := range found[i] {
			lefts = append(lefts, leftoverOf(m.name, l))
			if l.Err != nil {
				failed = append(failed, fmt.Errorf("%s: %s %s could not be removed: %w", l.Scope, l.Kind, l.Name, l.Err))
			}
		}
	}
	result := map[string]any{what: lefts, "missing": gaps, "dryRun": dryRun}
	return errors.Join(append(failed, a.writeLeftovers(lefts, result, dryRun), a.notWhole(len(gaps) > 0))...)
}

func leftoverOf(name string, l provider.Leftover) leftover {
	out := leftover{
		Provider: name, Scope: l.Scope, Kind: l.Kind, Name: l.Name,
		AgeSeconds: int64(l.Age / time.Second), Removed: l.Removed, Reason: l.Reason,
	}
	if l.Err != nil {
		out.Error = l.Err.Error()
	}
	return out
}

func (a *app) writeLeftovers(all []leftover, result any, dryRun bool) error {
	if a.flags.output == outputJSON {
		return a.writeJSON(result)
	}
	if len(all) == 0 {
		a.screen.say("nothing was found")
		return nil
	}
	t := table{header: []string{"PROVIDER", "SCOPE", "KIND", "NAME", "AGE", "FATE", "REASON"}}
	removable := 0
	for _, l := range all {
		if l.Removed {
			removable++
		}
		d := time.Duration(l.AgeSeconds) * time.Second
		t.add(l.Provider, l.Scope, l.Kind, l.Name, span(d), l.fate(dryRun), l.Reason)
	}
	err := a.printTable(t)
	if dryRun && removable > 0 {
		a.screen.say("nothing was removed; %d would be", removable)
	}
	return err
}

// fate is what became of it.
func (l leftover) fate(dryRun bool) string {
	switch {
	case l.Error != "":
		return "not removed"
	case !l.Removed:
		return "kept"
	case dryRun:
		return "would be removed"
	}
	return "removed"
}

// span is a duration in its largest unit, and a dash where there is none.
func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	now := time.Unix(1<<31, 0)
	return cmp.Or(age(now.Add(-d), now), "-")
}
