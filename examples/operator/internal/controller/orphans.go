package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/provider"
)

// Orphans deletes machines of the tag that no Proxy owns: what a cut Create left
// that landed late, and what an abandoned record left. It runs on the leader.
//
// It is slow on purpose. It lists the machines first and their owners after that,
// from the API server itself; a machine must be without an owner in two passes and
// older than Grace; and a pass that finds most machines without an owner, or no
// owner at all, deletes nothing, since then the list of owners is more likely to be
// wrong than they.
type Orphans struct {
	// Live lists the owners, uncached.
	Live client.Reader
	// Namespaces are where owners live; all if empty.
	Namespaces []string
	Providers  Providers
	Tag        string
	// Interval is the time between two passes; 2 min if zero.
	Interval time.Duration
	// Grace is how old an orphan is at least, by its own creation time or since it
	// was first seen; 10 min if zero.
	Grace time.Duration
	// MaxDeletions bounds those of a pass; 5 if zero.
	MaxDeletions int
	// MaxPercent is how many of a provider's machines may be without an owner for a
	// pass to believe it; 50 if zero. 100 believes everything, an empty list too.
	MaxPercent int
	// CallTimeout bounds a call to a provider; 1 min if zero.
	CallTimeout time.Duration
	// Leads, if set, tells whether this process is sure to lead. While it is not,
	// nothing is deleted.
	Leads  func() bool
	Logger logr.Logger

	now  func() time.Time
	seen map[sighting]time.Time // orphans of the pass before, and when first seen
}

type sighting struct{ provider, id, uid string }

// NeedLeaderElection has it run on the leader alone.
func (o *Orphans) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends.
func (o *Orphans) Start(ctx context.Context) error {
	o.defaults()
	ticker := time.NewTicker(o.Interval)
	defer ticker.Stop()
	for {
		if err := o.Sweep(ctx); err != nil && ctx.Err() == nil {
			o.Logger.Error(err, "orphans were not swept everywhere")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (o *Orphans) defaults() {
	for _, d := range []struct {
		of *time.Duration
		is time.Duration
	}{{&o.Interval, 2 * time.Minute}, {&o.Grace, 10 * time.Minute}, {&o.CallTimeout, time.Minute}} {
		if *d.of == 0 {
			*d.of = d.is
		}
	}
	if o.MaxDeletions == 0 {
		o.MaxDeletions = 5
	}
	if o.MaxPercent == 0 {
		o.MaxPercent = 50
	}
	if o.now == nil {
		o.now = time.Now
	}
}

// Sweep is one pass over every provider. One that fails does not keep the others
// from being swept.
func (o *Orphans) Sweep(ctx context.Context) error {
	o.defaults()
	seen := map[sighting]time.Time{}
	var errs []error
	for _, name := range o.Providers.Names() {
		if err := o.sweep(ctx, name, seen); err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", name, err))
			o.keepSightings(name, seen)
		}
	}
	o.seen = seen
	return errors.Join(errs...)
}

// keepSightings has a failed pass count neither for nor against an orphan.
func (o *Orphans) keepSightings(name string, seen map[sighting]time.Time) {
	for s, first := range o.seen {
		if s.provider == name {
			seen[s] = first
		}
	}
}

func (o *Orphans) sweep(ctx context.Context, name string, seen map[sighting]time.Time) error {
	prov, err := o.Providers.Get(name)
	if err != nil {
		return err
	}
	machines, err := o.list(ctx, prov)
	if err != nil || len(machines) == 0 {
		return err
	}
	owners, err := o.owners(ctx)
	if err != nil {
		return fmt.Errorf("the owners: %w", err)
	}
	orphans := owners.without(machines)
	if len(orphans) == 0 {
		return nil
	}
	if o.MaxPercent < 100 && (len(owners) == 0 || 100*len(orphans) > o.MaxPercent*len(machines) && len(orphans) > 1) {
		return fmt.Errorf("%d of %d machines have no Proxy, and there are %d Proxies: that looks like a list of owners that is not whole, and nothing is deleted; if it is right, raise --orphan-max-percent to 100 for a while",
			len(orphans), len(machines), len(owners))
	}
	return o.end(ctx, name, prov, orphans, seen)
}

// list is what the provider has of the tag. A list that is not whole is taken for
// what it is: machines that are there.
func (o *Orphans) list(ctx context.Context, prov provider.Provider) ([]provider.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, o.CallTimeout)
	defer cancel()
	machines, err := prov.ListByTag(ctx, o.Tag)
	var partial *provider.PartialError
	if errors.As(err, &partial) {
		o.Logger.V(1).Info("a list is not whole: what it shows is swept", "error", err.Error())
		err = nil
	}
	mine := machines[:0]
	for _, in := range machines {
		if in.Tag == o.Tag && o.judges(in) {
			mine = append(mine, in)
		}
	}
	return mine, err
}

// judges tells whether the machine's owner would be seen: one that was made for another
// namespace is left alone.
func (o *Orphans) judges(in provider.Instance) bool {
	ns, known := in.Metadata[metadataNamespace]
	return !known || len(o.Namespaces) == 0 || slices.Contains(o.Namespaces, ns)
}

// end deletes orphans that have been seen before and are old enough.
func (o *Orphans) end(ctx context.Context, name string, prov provider.Provider, orphans []provider.Instance, seen map[sighting]time.Time) error {
	var errs []error
	deleted := 0
	for _, in := range orphans {
		s := sighting{name, in.ID, in.UID}
		first, again := o.seen[s]
		if !again {
			first = o.now()
		}
		seen[s] = first
		born := in.CreatedAt
		if born.IsZero() {
			born = first
		}
		if !again || o.now().Sub(born) < o.Grace || deleted == o.MaxDeletions {
			continue
		}
		if o.Leads != nil && !o.Leads() {
			return errors.New("another replica may lead by now: nothing more is deleted")
		}
		if in.State != provider.StateStopping { // else it is on its way already
			deleted++
		}
		call, cancel := context.WithTimeout(ctx, o.CallTimeout)
		err := prov.Delete(call, in.ID)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o.Logger.Info("deleted a machine that no Proxy owns", "provider", name, "id", in.ID, "uid", in.UID, "created", in.CreatedAt)
	}
	return errors.Join(errs...)
}

// owners are what the Proxies say of their machines, by the Proxies' UIDs.
type owners map[string]v1alpha1.ProxyStatus

func (o *Orphans) owners(ctx context.Context) (owners, error) {
	found := owners{}
	namespaces := o.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, ns := range namespaces {
		options := []client.ListOption{client.InNamespace(ns), client.Limit(500)}
		for next := ""; ; {
			var list v1alpha1.ProxyList
			if err := o.Live.List(ctx, &list, append(options, client.Continue(next))...); err != nil {
				return nil, err
			}
			for i := range list.Items {
				found[string(list.Items[i].UID)] = list.Items[i].Status
			}
			if next = list.Continue; next == "" {
				break
			}
		}
	}
	return found, nil
}

// without are the machines that nobody owns. A machine is owned by the Proxy whose
// record names it, and by one that may be about to write its record: whose count of
// machines has not gone beyond it.
func (o owners) without(machines []provider.Instance) (orphans []provider.Instance) {
	for _, in := range machines {
		proxy, incarnation, ok := splitUID(in.UID)
		st, lives := o[proxy]
		owned := lives && (st.Machine != nil && st.Machine.UID == in.UID || ok && incarnation > st.Incarnation)
		if !owned {
			orphans = append(orphans, in)
		}
	}
	return orphans
}

// splitUID takes a machine's UID apart, which is that of the Proxy and a number.
func splitUID(uid string) (proxy string, incarnation int64, ok bool) {
	i := strings.LastIndexByte(uid, '-')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(uid[i+1:], 10, 64)
	return uid[:i], n, err == nil
}
