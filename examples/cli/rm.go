package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/provider"
)

const rmHelp = `Remove instances, by name, ID or UID, and wait until they are gone.

Only instances of --tag are removed. One that is not there is no error. An ID on
a host that the providers file does not have is let go of: what runs there is
its administrator's to remove.`

// rmFlags are the flags of rm.
type rmFlags struct {
	all     bool
	timeout time.Duration
}

func (a *app) rmCommand() *cobra.Command {
	var f rmFlags
	cmd := &cobra.Command{
		Use: "rm NAME|ID|UID...", Short: "Remove instances", Long: rmHelp,
		Example: `  egressctl rm proxy-abcdefghijklmnop
  egressctl rm --all`,
		ValidArgsFunction: a.completeInstance,
		Args:              func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(func(s *session) error {
				return (&removal{app: a, session: s, flags: &f}).run(cmd.Context(), args)
			})
		},
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "all of the tag")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

func (f *rmFlags) check(args []string) error {
	switch {
	case f.all && len(args) > 0:
		return usagef("give --all or names, not both")
	case !f.all && len(args) == 0:
		return usagef("name what to remove, or give --all")
	case f.timeout <= 0:
		return usagef("--timeout must be positive")
	}
	return nil
}

// removal is one call of rm.
type removal struct {
	*app
	*session
	flags *rmFlags

	mu     sync.Mutex
	result removed
}

// removed is the result for machines: IDs, or what was asked for where there is
// none.
type removed struct {
	Removed []string `json:"removed"`
	Absent  []string `json:"absent"`
	LetGo   []string `json:"letGo"`
}

// atOnce is how many instances are looked at or removed at a time.
const atOnce = 8

func (r *removal) run(ctx context.Context, args []string) error {
	r.result = removed{Removed: []string{}, Absent: []string{}, LetGo: []string{}}
	ctx, cancel := context.WithTimeout(ctx, r.flags.timeout)
	defer cancel()
	targets, err := r.targets(ctx, args)
	errs := make([]error, len(targets)+1)
	errs[len(targets)] = err
	each(len(targets), func(i int) { errs[i] = r.remove(ctx, targets[i]) })
	if r.app.flags.output == outputJSON {
		errs = append(errs, r.writeJSON(r.result))
	}
	return errors.Join(errs...)
}

// each calls f for 0 to n-1, some at a time.
func each(n int, f func(int)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	running.Wait()
}

// targets are the IDs that the arguments mean. A list is asked for only where
// an argument is no ID.
func (r *removal) targets(ctx context.Context, args []string) ([]string, error) {
	if !r.flags.all && !slices.ContainsFunc(args, func(arg string) bool { return !isID(arg) }) {
		return args, nil
	}
	list, listErr := r.p.ListByTag(ctx, r.app.flags.tag)
	partial, err := r.warn(listErr)
	if err != nil {
		return nil, err
	}
	if r.flags.all {
		if len(list) == 0 && !partial {
			r.screen.say("nothing has the tag %s", r.app.flags.tag)
		}
		return idsOf(list), r.notWhole(partial)
	}
	var ids []string
	var errs []error
	for _, arg := range args {
		in, found := among(list, arg)
		switch {
		case isID(arg):
			ids = append(ids, arg)
		case found:
			ids = append(ids, in.ID)
		case partial:
			errs = append(errs, notWhereRead(arg))
		default:
			r.absent(arg, fmt.Sprintf("nothing with the tag %s has that name or UID", r.app.flags.tag))
		}
	}
	return ids, errors.Join(errs...)
}

func idsOf(list []provider.Instance) []string {
	ids := make([]string, 0, len(list))
	for _, in := range list {
		ids = append(ids, in.ID)
	}
	return ids
}

// warn tells what a list is missing, and returns any other error.
func (a *app) warn(err error) (partial bool, other error) {
	var incomplete *provider.PartialError
	if !errors.As(err, &incomplete) {
		return false, err
	}
	for _, m := range incomplete.Missing {
		a.screen.say("warning: %s could not be read: %v", m.Scope, m.Err)
	}
	return true, nil
}

// notWhole is the error of a list that is partial.
func (a *app) notWhole(partial bool) error {
	if !partial {
		return nil
	}
	return advise(marked{errors.New("the list is not whole"), provider.ErrTransient}, "try again when what is named above answers")
}

func (r *removal) note(list *[]string, item string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*list = append(*list, item)
	slices.Sort(*list)
}

func (r *removal) absent(arg, why string) {
	r.note(&r.result.Absent, arg)
	r.screen.say("%s: not there, nothing to remove (%s)", arg, why)
}

// remove removes one instance of the tag.
func (r *removal) remove(ctx context.Context, id string) error {
	began := r.now()
	there, err := r.mayRemove(ctx, id)
	if err == nil {
		err = provider.WaitGone(ctx, r.p, id, provider.WaitOptions{Interval: r.poll, OnPoll: r.teller(ctx, id)})
	}
	switch {
	case provider.HasCode(err, provider.CodeUnconfigured):
		r.note(&r.result.LetGo, id)
		return advise(fmt.Errorf("letting go of %s: %w", id, err),
			"add its host to the providers file, or have its administrator remove %s there", id[strings.LastIndex(id, "/")+1:])
	case err != nil && ctx.Err() != nil:
		return advise(fmt.Errorf("%s is left: %w", id, err), "remove it by: %s", r.command("rm", id))
	case err != nil:
		return err
	case !there:
		r.absent(id, "the host knows no such instance")
		return nil
	}
	r.note(&r.result.Removed, id)
	r.screen.say("%s: removed (%s)", id, r.elapsed(began))
	return nil
}

// mayRemove refuses an instance of another tag, and tells whether there is one.
// It asks until the host answers.
func (r *removal) mayRemove(ctx context.Context, id string) (there bool, err error) {
	tell := r.teller(ctx, id)
	for {
		in, err := r.p.Get(ctx, id)
		switch {
		case errors.Is(err, provider.ErrNotFound):
			return false, nil
		case err == nil && in.Tag != r.app.flags.tag:
			return true, r.wrongTag(in, "rm")
		case err == nil:
			return true, nil
		case errors.Is(err, provider.ErrPermanent):
			return true, err
		}
		tell(in, err)
		if !sleep(ctx, r.poll) {
			return true, err
		}
	}
}

// teller says what is new while something is waited for.
func (r *removal) teller(ctx context.Context, id string) func(provider.Instance, error) {
	said := ""
	return func(in provider.Instance, err error) {
		text := "removing, it is " + word(in.State)
		if err != nil {
			text = fmt.Sprintf("not removed yet: %v", err)
		}
		if text != said && ctx.Err() == nil && !errors.Is(err, provider.ErrPermanent) {
			said = text
			r.screen.say("%s: %s", id, text)
		}
	}
}

// word is a state within a sentence.
func word(s provider.State) string { return strings.ToLower(string(s)) }
