package gcp

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/egressfleet/egress/provider"
)

// ids is the form of our IDs.
var ids = provider.IDFormat{Scopes: "zones", Kinds: "instances"}

// linkPrefix is how the API writes links, whatever host was called.
const linkPrefix = "https://www.googleapis.com/compute/v1/"

// pathPattern is a path of the API, with or without its URL.
var pathPattern = regexp.MustCompile(`^(?:https://[a-z0-9.-]+/compute/[a-z0-9]+/)?[A-Za-z0-9][A-Za-z0-9.:/_-]*$`)

// isPath tells whether s is a path to something of that kind, such as "networks":
// its name follows the kind, and in front of an image's there may be "family/".
func isPath(s, kind string) bool {
	s = "/" + s
	at := strings.LastIndex(s, "/"+kind+"/")
	if at < 0 {
		return false
	}
	name := s[at+len(kind)+2:]
	if kind == "images" {
		name = strings.TrimPrefix(name, "family/")
	}
	return typePattern.MatchString(name) && pathPattern.MatchString(s[1:]) && !strings.Contains(s, "..")
}

// machineTypePath is the path of a machine type, given by its name or path. An
// empty zone leaves it open.
func machineTypePath(zone, s string) (string, error) {
	if typePattern.MatchString(s) {
		return "zones/" + zone + "/machineTypes/" + s, nil
	}
	if !isPath(s, "machineTypes") {
		return "", fmt.Errorf("%q: must be a machine type such as e2-small", s)
	}
	if zone != "" && !strings.Contains("/"+s, "/zones/"+zone+"/machineTypes/") {
		return "", fmt.Errorf("%q: is of another zone than %s: give the name alone", s, zone)
	}
	return s, nil
}

// imagePath is the path of an image or a family, given by its path or by the
// name alone where it is the project's own.
func imagePath(s string) (string, error) {
	family, isFamily := strings.CutPrefix(s, "family/")
	switch {
	case isFamily && namePattern.MatchString(family), namePattern.MatchString(s):
		return "global/images/" + s, nil
	case isPath(s, "images"):
		return s, nil
	}
	return "", fmt.Errorf("%q: must be like projects/debian-cloud/global/images/family/debian-13, "+
		"or family/NAME or NAME for one of the project's own", s)
}

func networkPath(s string) string {
	if namePattern.MatchString(s) {
		return "global/networks/" + s
	}
	return s
}

func subnetworkPath(zone, s string) string {
	if namePattern.MatchString(s) {
		return "regions/" + regionOf(zone) + "/subnetworks/" + s
	}
	return s
}

// regionOf is the region of a zone: europe-west1 for europe-west1-b.
func regionOf(zone string) string {
	if i := strings.LastIndexByte(zone, '-'); i > 0 {
		return zone[:i]
	}
	return ""
}

// lastPart is what stands behind the last slash.
func lastPart(link string) string { return link[strings.LastIndexByte(link, '/')+1:] }

// parseID takes an ID apart.
func parseID(id string) (zone, name string, err error) {
	zone, name, err = ids.Parse(id)
	if err == nil && !zonePattern.MatchString(zone) {
		err = &provider.Error{
			Class: provider.ErrPermanent, ID: id, Code: provider.CodeMalformedID,
			Err: errors.New("the zone has not the form of one, such as europe-west1-b"),
		}
	}
	return zone, name, err
}
