package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

const imagesHelp = `List, fetch and remove the base images on KVM hosts.

Each host keeps an image once, and every machine's disk is based on it. up and
serve fetch what they need by themselves.`

// imageKeeper is what kvm.Provider has beyond the contract.
type imageKeeper interface {
	ListImages(context.Context) ([]kvm.HostImage, error)
	PullImage(context.Context, kvm.PullRequest) (kvm.HostImage, error)
	PruneImages(context.Context, kvm.PruneRequest) ([]provider.Leftover, error)
}

var _ imageKeeper = (*kvm.Provider)(nil)

func (a *app) imagesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "images", Short: "List, fetch and remove base images", Long: imagesHelp, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("say what to do: images ls, pull or prune") },
	}
	cmd.AddCommand(a.imagesLsCommand(), a.imagesPullCommand(), a.imagesPruneCommand())
	return cmd
}

// keeper is a provider that has images.
type keeper struct {
	member
	imageKeeper
}

// withImages runs f with the providers that have images.
func (a *app) withImages(f func([]keeper) error) error {
	return a.withAll(func(all []member) error {
		var keepers []keeper
		var errs []error
		for _, m := range all {
			if k, ok := provider.As[imageKeeper](m.p); ok {
				keepers = append(keepers, keeper{m, k})
			} else if m.err != nil {
				errs = append(errs, unusable(m.err))
			}
		}
		if len(keepers) == 0 {
			return errors.Join(append(errs, advise(permanent(errors.New("no provider of the file keeps images")), "name another file by --providers: those of type kvm do"))...)
		}
		return errors.Join(append(errs, f(keepers))...)
	})
}

// image is one of a result's.
type image struct {
	Provider string `json:"provider"`
	kvm.HostImage
}

func (a *app) imagesLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the base images on the hosts", Args: cobra.NoArgs,
		Long: `List the base images on the hosts.

WHOLE is whether it has arrived, CONFIGURED whether a new machine would use it,
and USERS how many disks are based on it.`,
		Example: `  egressctl images ls
  egressctl images ls -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withImages(func(all []keeper) error { return a.imagesLs(cmd.Context(), all) })
		},
	}
}

func (a *app) imagesLs(ctx context.Context, all []keeper) error {
	images, gaps := []image{}, []missing{}
	var errs []error
	for _, k := range all {
		found, err := k.ListImages(ctx)
		gaps = append(gaps, missingOf(err)...)
		_, other := a.warn(err)
		errs = append(errs, other)
		for _, i := range found {
			images = append(images, image{k.name, i})
		}
	}
	return errors.Join(append(errs, a.writeImages(images, gaps), a.notWhole(len(gaps) > 0))...)
}

func (a *app) writeImages(all []image, gaps []missing) error {
	if a.flags.output == outputJSON {
		return a.writeJSON(map[string]any{"images": all, "missing": gaps})
	}
	if len(all) == 0 {
		a.screen.say("the hosts that answered have no images; fetch one by: %s", a.command("images", "pull"))
		return nil
	}
	t := table{header: []string{"PROVIDER", "HOST", "KEY", "FORMAT", "SIZE", "DISK", "WHOLE", "CONFIGURED", "USERS", "CHANGED", "VOLUME"}}
	for _, i := range all {
		t.add(i.Provider, i.Host, i.Key, i.Format, mib(int64(i.Bytes)), mib(int64(i.DiskBytes)), //nolint:gosec // sizes of disks fit.
			yesNo(i.Whole), yesNo(i.Configured), fmt.Sprint(i.Users), age(i.ChangedAt, a.now()), i.Volume)
	}
	return a.printTable(t)
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// pullFlags are the flags of images pull.
type pullFlags struct {
	hosts []string
	again bool
}

func (a *app) imagesPullCommand() *cobra.Command {
	var f pullFlags
	cmd := &cobra.Command{
		Use: "pull [KEY|URL]...", Short: "Fetch base images to the hosts",
		Long: `Fetch base images to the hosts, so that the next machine does not wait for them.

Without an image all of the providers file are fetched, and without --host to all
hosts. What is there already stays, unless its checksums file names another one.
Ctrl-C ends it; what has arrived of an image is sent anew by the next pull.`,
		Example: `  egressctl images pull
  egressctl images pull debian13 --host kvm1`,
		ValidArgsFunction: a.completeImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withImages(func(all []keeper) error { return a.imagesPull(cmd.Context(), &f, all, args) })
		},
	}
	cmd.Flags().StringSliceVar(&f.hosts, "host", nil, "`host` to fetch to; may be given more than once")
	cmd.Flags().BoolVar(&f.again, "again", false, "fetch an image again that has neither a digest nor a checksums file, unless it is in use")
	return cmd
}

// pull is one image on its way to one host.
type pull struct {
	keeper
	kvm.PullRequest
	image image
	err   error
}

func (a *app) imagesPull(ctx context.Context, f *pullFlags, all []keeper, images []string) error {
	var pulls []*pull
	known := map[string]bool{}
	for _, k := range all {
		hosts, keys := a.namesOf(k.name)
		for _, host := range hosts {
			known[host] = true
			if len(f.hosts) > 0 && !slices.Contains(f.hosts, host) {
				continue
			}
			for _, key := range orAll(images, keys) {
				pulls = append(pulls, &pull{keeper: k, PullRequest: kvm.PullRequest{Host: host, Image: key, Again: f.again}})
			}
		}
	}
	for _, host := range f.hosts {
		if !known[host] {
			return usagef("--host: %q: the providers have %q", host, slices.Sorted(maps.Keys(known)))
		}
	}
	if len(pulls) == 0 {
		return usagef("name an image by its URL: the providers file has none")
	}
	a.pullAll(ctx, pulls)
	return a.writePulls(pulls)
}

// namesOf are the hosts and images that a provider's entry has.
func (a *app) namesOf(name string) (hosts, images []string) {
	cfg := a.kvms[name]
	for _, h := range cfg.Hosts {
		hosts = append(hosts, h.Name)
	}
	return hosts, slices.Sorted(maps.Keys(cfg.Images))
}

func orAll(wanted, all []string) []string {
	if len(wanted) > 0 {
		return wanted
	}
	return all
}

// pullAll fetches to all hosts side by side, and to each one image after another.
func (a *app) pullAll(ctx context.Context, pulls []*pull) {
	byHost := map[string][]*pull{}
	for _, p := range pulls {
		byHost[p.name+" "+p.Host] = append(byHost[p.name+" "+p.Host], p)
	}
	var running sync.WaitGroup
	for _, queue := range byHost {
		running.Go(func() {
			for _, p := range queue {
				began := a.now()
				p.image.Provider = p.name
				p.image.HostImage, p.err = p.PullImage(ctx, p.PullRequest)
				if p.err == nil {
					a.screen.say("%s: %s is there as %s (%s)", p.Host, p.Image, p.image.Volume, a.elapsed(began))
				}
			}
		})
	}
	running.Wait()
}

func (a *app) writePulls(pulls []*pull) error {
	images := []image{}
	var errs []error
	for _, p := range pulls {
		if p.err == nil {
			images = append(images, p.image)
			continue
		}
		if text := p.err.Error(); !strings.Contains(text, p.Host) {
			p.err = fmt.Errorf("%s: %s: %w", p.Host, p.Image, p.err)
		}
		errs = append(errs, p.err)
	}
	var err error
	if a.flags.output == outputJSON {
		err = a.writeJSON(map[string]any{"images": images})
	}
	return errors.Join(append(errs, err)...)
}

// pruneFlags are the flags of images prune.
type pruneFlags struct {
	dryRun, all bool
	olderThan   time.Duration
	host        string
}

func (a *app) imagesPruneCommand() *cobra.Command {
	var f pruneFlags
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove base images that nothing uses", Args: cobra.NoArgs,
		Long: `Remove base images that no disk is based on, and tell which.

It asks nothing, for an image can be fetched again. Those that a new machine would
use stay, unless --all is given.`,
		Example: `  egressctl images prune --dry-run
  egressctl images prune --older-than 168h
  egressctl images prune --all --older-than 0s`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.olderThan < 0 {
				return usagef("--older-than must not be negative")
			}
			return a.withImages(func(all []keeper) error { return a.imagesPrune(cmd.Context(), &f, all) })
		},
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "remove nothing")
	cmd.Flags().BoolVar(&f.all, "all", false, "also those that a new machine would use")
	cmd.Flags().StringVar(&f.host, "host", "", "`host` to look at; all if empty")
	registerOlderThan(cmd, &f.olderThan)
	return cmd
}

func (a *app) imagesPrune(ctx context.Context, f *pruneFlags, keepers []keeper) error {
	req := kvm.PruneRequest{Host: f.host, Configured: f.all, MinAge: atLeast(f.olderThan), DryRun: f.dryRun}
	var all []member
	for _, k := range keepers {
		hosts, _ := a.namesOf(k.name)
		if f.host == "" || slices.Contains(hosts, f.host) {
			all = append(all, k.member)
		}
	}
	if len(all) == 0 {
		return usagef("--host: %q: no provider has it", f.host)
	}
	return a.clean(all, "images", f.dryRun, func(m member) ([]provider.Leftover, error) {
		k, _ := provider.As[imageKeeper](m.p)
		return k.PruneImages(ctx, req)
	})
}
