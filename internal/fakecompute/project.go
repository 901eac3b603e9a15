package fakecompute

import (
	"net/http"
	"slices"
	"strings"
)

func (s *Server) project(_ *http.Request, c Call) (any, *Error) {
	return map[string]any{"kind": "compute#project", "name": c.Project, "quotas": s.quotasOf(true)}, nil
}

// quotasOf are the project's, or those of a region.
func (s *Server) quotasOf(project bool) []any {
	some := []any{}
	for _, q := range s.quotas {
		if strings.HasSuffix(q["metric"].(string), "_ALL_REGIONS") == project {
			some = append(some, q)
		}
	}
	return some
}

func regionOf(zone string) string { return zone[:strings.LastIndexByte(zone, '-')] }

func (s *Server) listZones(r *http.Request, c Call) (any, *Error) {
	var all []any
	for _, zone := range s.cfg.Zones {
		all = append(all, map[string]any{
			"kind": "compute#zone", "name": zone, "status": "UP",
			"region": host + "projects/" + c.Project + "/regions/" + regionOf(zone),
		})
	}
	from, to, token := s.window(r.URL.Query().Get("pageToken"), r.URL.Query().Get("maxResults"), len(all))
	out := map[string]any{"kind": "compute#zoneList", "items": all[from:to]}
	if token != "" {
		out["nextPageToken"] = token
	}
	return out, nil
}

func (s *Server) region(_ *http.Request, c Call) (any, *Error) {
	if !slices.ContainsFunc(s.cfg.Zones, func(z string) bool { return regionOf(z) == c.Name }) {
		return nil, notFound("projects/" + c.Project + "/regions/" + c.Name)
	}
	return map[string]any{"kind": "compute#region", "name": c.Name, "status": "UP", "quotas": s.quotasOf(false)}, nil
}

func (s *Server) network(r *http.Request, c Call) (any, *Error) {
	if !slices.Contains(s.cfg.Networks, c.Name) {
		return nil, notFound(strings.TrimPrefix(r.URL.Path, "/compute/v1/"))
	}
	return map[string]any{"name": c.Name, "selfLink": host + strings.TrimPrefix(r.URL.Path, "/compute/v1/")}, nil
}

func (s *Server) imageFamily(r *http.Request, c Call) (any, *Error) { return s.image(r, c) }

func (s *Server) image(r *http.Request, c Call) (any, *Error) {
	path := strings.TrimPrefix(r.URL.Path, "/compute/v1/")
	own := strings.TrimPrefix(path, "projects/"+s.cfg.Project+"/")
	if len(s.cfg.Images) > 0 && !slices.Contains(s.cfg.Images, path) && !slices.Contains(s.cfg.Images, own) {
		return nil, notFound(path)
	}
	return map[string]any{"kind": "compute#image", "name": c.Name, "status": "READY", "diskSizeGb": "10", "architecture": "X86_64", "creationTimestamp": "2026-11-01T00:00:00.000-07:00"}, nil
}

func (s *Server) machineType(r *http.Request, c Call) (any, *Error) {
	if len(s.cfg.MachineTypes) > 0 && !slices.Contains(s.cfg.MachineTypes, c.Name) {
		return nil, notFound(strings.TrimPrefix(r.URL.Path, "/compute/v1/"))
	}
	return map[string]any{"kind": "compute#machineType", "name": c.Name, "zone": c.Zone, "guestCpus": 2, "memoryMb": 2048}, nil
}

func (s *Server) effectivePolicy(_ *http.Request, _ Call) (any, *Error) {
	out := map[string]any{"constraint": "constraints/compute.vmExternalIpAccess"}
	if s.policy != nil {
		out["listPolicy"] = s.policy
	}
	return out, nil
}
