package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/provider"
)

// ListByTag implements [provider.Provider]. It asks all zones at once, and
// carries addresses. Instances in zones that are not configured are left out.
func (p *Provider) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if err := provider.ValidTag(tag); err != nil {
		return nil, p.failure("ListByTag", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	found := listing{p: p, tag: tag}
	var partial *provider.PartialError
	err := p.operate(ctx, "ListByTag", place{}, func(ctx context.Context) error {
		if err := found.run(ctx); err != nil {
			return err
		}
		partial = found.partial()
		return nil
	})
	if err != nil {
		return found.sorted(), err
	}
	if partial != nil {
		return found.sorted(), partial
	}
	return found.sorted(), nil
}

// pageSize is the API's limit.
const pageSize = 500

// listing gathers what the pages have.
type listing struct {
	p   *Provider
	tag string

	instances []provider.Instance
	statuses  map[string]*computepb.Instance // by ID
	missing   map[string]error               // by scope
	strayed   []string                       // IDs in zones that are not configured
}

func (l *listing) run(ctx context.Context) error {
	l.statuses, l.missing = map[string]*computepb.Instance{}, map[string]error{}
	for token := ""; ; {
		page, err := l.page(ctx, token)
		if err != nil {
			return err
		}
		l.add(page)
		next := page.GetNextPageToken()
		switch next {
		case "":
			return nil
		case token:
			return provider.Transientf("", "a page of the list says that it is followed by itself")
		}
		token = next
	}
}

// page is one call of instances.aggregatedList. The iterator would do without,
// but drops what a page without instances says of zones that did not answer.
func (l *listing) page(ctx context.Context, token string) (*computepb.InstanceAggregatedList, error) {
	return call(ctx, l.p, CallInfo{Method: "instances.aggregatedList"},
		func(ctx context.Context, c *clients) (*computepb.InstanceAggregatedList, error) {
			it := c.instances.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{
				Project: l.p.cfg.Project,
				Filter:  proto.String(fmt.Sprintf("(labels.%s = %q) AND (labels.%s = %q)", labelManaged, managed, labelTag, l.tag)),
			}, retries())
			if _, _, err := it.InternalFetch(pageSize, token); err != nil {
				return nil, err
			}
			return it.Response.(*computepb.InstanceAggregatedList), nil
		})
}

func (l *listing) add(page *computepb.InstanceAggregatedList) {
	for _, scope := range page.GetUnreachables() {
		l.miss(scope, "UNREACHABLE", "it did not answer")
	}
	if w := page.GetWarning(); incomplete(w) {
		l.miss("project", w.GetCode(), w.GetMessage())
	}
	for scope, list := range page.GetItems() {
		if w := list.GetWarning(); incomplete(w) {
			l.miss(scope, w.GetCode(), w.GetMessage())
		}
		for _, in := range list.GetInstances() {
			l.read(scope, in)
		}
	}
}

// incomplete tells whether a warning says that something is missing. An empty
// scope is not.
func incomplete(w *computepb.Warning) bool {
	return w != nil && w.GetCode() != "" && w.GetCode() != "NO_RESULTS_ON_PAGE"
}

// miss notes a scope such as zones/europe-west1-b, unless it does not concern
// us.
func (l *listing) miss(scope, code, message string) {
	scope = lastPart(scope)
	if zonePattern.MatchString(scope) && !l.p.cfg.configured(scope) {
		return
	}
	l.missing[scope] = provider.Transientf(code, "%s", or(message, "it did not answer"))
}

// read adds one instance. The labels are looked at again: what a filter lets
// through is not ours by that.
func (l *listing) read(scope string, in *computepb.Instance) {
	zone := lastPart(or(in.GetZone(), scope))
	id := ids.Format(zone, in.GetName())
	r, err := readRecord(in)
	switch {
	case errors.Is(err, errNotOurs), in.GetLabels()[labelTag] != l.tag, !provider.IsName(in.GetName()):
	case !l.p.cfg.configured(zone):
		l.strayed = append(l.strayed, id)
	case err != nil:
		l.missing[id] = err
	case r.Tag == l.tag:
		l.instances = append(l.instances, instanceOf(zone, in, r))
		l.statuses[id] = in
	}
}

func (l *listing) sorted() []provider.Instance {
	slices.SortFunc(l.instances, func(a, b provider.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return l.instances
}

func (l *listing) partial() *provider.PartialError {
	if len(l.missing) == 0 {
		return nil
	}
	out := &provider.PartialError{}
	for _, scope := range slices.Sorted(maps.Keys(l.missing)) {
		at := ""
		if strings.Contains(scope, "/") {
			at = scope
		}
		out.Missing = append(out.Missing, provider.Missing{Scope: scope, Err: l.p.failure("ListByTag", at, scope, l.missing[scope])})
	}
	return out
}
