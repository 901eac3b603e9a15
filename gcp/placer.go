package gcp

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Placer = (*Provider)(nil)

// Place implements [provider.Placer]. The candidates are [Config].Zones, those of
// the placement's region where it has one; or, where Zones is empty, all zones of
// the placement's or the configured region that are up, which are asked for every
// ten minutes. Their order depends on the UID alone, so that many UIDs spread over
// the zones, and one UID gets the same zone again; the first that is not to be
// avoided is it. Google does not tell in advance where there is room. Region,
// machine type and image are filled in too.
func (p *Provider) Place(ctx context.Context, req provider.PlaceRequest) (out provider.Placement, err error) {
	err = p.operate(ctx, "Place", place{}, func(ctx context.Context) error {
		out, err = p.choose(ctx, req)
		return err
	})
	if err != nil {
		return provider.Placement{}, err
	}
	return out, nil
}

func (p *Provider) choose(ctx context.Context, req provider.PlaceRequest) (out provider.Placement, err error) {
	out = req.Placement
	out.MachineType, out.Image = or(out.MachineType, p.cfg.MachineType), or(out.Image, p.cfg.Image)
	candidates := []string{out.Zone}
	if out.Zone == "" {
		if candidates, err = p.candidates(ctx, or(out.Region, p.cfg.Region), out.Region != ""); err != nil {
			return out, err
		}
	}
	order(candidates, req.UID)
	for _, zone := range candidates {
		if _, _, err := p.cfg.machine(zone, out); err != nil {
			return out, err
		}
		chosen := out
		chosen.Zone, chosen.Region = zone, or(out.Region, regionOf(zone))
		if _, err := p.cfg.zone(zone); err != nil {
			return out, err
		}
		if !slices.ContainsFunc(req.Avoid, func(a provider.Placement) bool { return covers(a, chosen) }) {
			return chosen, nil
		}
	}
	return out, provider.Quotaf(codeNoZoneLeft, "every zone had no room lately: %s", strings.Join(candidates, ", "))
}

// covers tells whether a placement to avoid is about that one. What it leaves
// open counts for all, but for the zone.
func covers(avoid, place provider.Placement) bool {
	return avoid.Zone == place.Zone &&
		(avoid.MachineType == "" || avoid.MachineType == place.MachineType) &&
		(avoid.Image == "" || avoid.Image == place.Image)
}

// candidates are the zones to choose from. A region that the placement demands
// narrows the configured zones too.
func (p *Provider) candidates(ctx context.Context, region string, demanded bool) ([]string, error) {
	zones := slices.Clone(p.cfg.Zones)
	if demanded {
		zones = slices.DeleteFunc(zones, func(z string) bool { return regionOf(z) != region })
	}
	switch {
	case len(zones) > 0:
		return zones, nil
	case len(p.cfg.Zones) > 0:
		return nil, provider.Permanentf(codeBadPlacement, "placement.region: %q: has none of the configured zones, %s", region, strings.Join(p.cfg.Zones, ", "))
	case region == "":
		return nil, provider.Permanentf(codeBadPlacement, "placement.zone: give a zone or a region, or set the provider's region")
	case !namePattern.MatchString(region):
		return nil, provider.Permanentf(codeBadPlacement, "placement.region: %q: must be a region, such as europe-west1", region)
	}
	zones, err := p.regions.zones(ctx, p, region)
	if err == nil && len(zones) == 0 {
		err = provider.Permanentf(codeBadPlacement, "placement.region: %q: has no zone that is up", region)
	}
	return zones, err
}

// order sorts zones by a hash of each with the UID.
func order(zones []string, uid string) {
	slices.SortFunc(zones, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(uid, a), rank(uid, b)), cmp.Compare(a, b))
	})
}

func rank(uid, zone string) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid + "\x00" + zone))
	// The last bytes of FNV are mixed little.
	return hash.Sum64() * 0x9e3779b97f4a7c15
}

// zonesAge is how long the zones of a region are taken for the same.
const zonesAge = 10 * time.Minute

// zoneCache keeps the zones of regions. The zero value is ready.
type zoneCache struct {
	mu      sync.Mutex
	regions map[string]regionZones
}

type regionZones struct {
	zones []string
	read  time.Time
}

// zones returns a copy.
func (z *zoneCache) zones(ctx context.Context, p *Provider, region string) ([]string, error) {
	z.mu.Lock()
	known, ok := z.regions[region]
	z.mu.Unlock()
	if ok && time.Since(known.read) < zonesAge {
		return slices.Clone(known.zones), nil
	}
	zones, err := p.listZones(ctx, region)
	if err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.regions == nil {
		z.regions = map[string]regionZones{}
	}
	z.regions[region] = regionZones{zones, time.Now()}
	return slices.Clone(zones), nil
}

// listZones are the zones of a region that are up and not given up.
func (p *Provider) listZones(ctx context.Context, region string) ([]string, error) {
	return call(ctx, p, CallInfo{Method: "zones.list", Scope: region}, func(ctx context.Context, c *clients) (zones []string, err error) {
		for it := c.zones.List(ctx, &computepb.ListZonesRequest{Project: p.cfg.Project}, retries()); ; {
			zone, err := it.Next()
			if errors.Is(err, iterator.Done) {
				return zones, nil
			}
			if err != nil {
				return nil, err
			}
			if lastPart(zone.GetRegion()) == region && zone.GetStatus() == "UP" && zone.GetDeprecated().GetState() == "" {
				zones = append(zones, zone.GetName())
			}
		}
	})
}
