package gcp

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/provider"
)

// Config says in which project instances are made, and how. [New] copies it.
// Literals must name their fields.
type Config struct {
	// Name is the provider's name in logs and errors; "gcp" if empty.
	Name string `json:"-"`

	// Project is the ID of the project. Required.
	Project string `json:"project"`
	// Zones are those that may be used. Empty means any.
	Zones []string `json:"zones,omitempty"`
	// Region is where Place looks for zones if Zones is empty and the placement has
	// no region. Empty means that a placement must say.
	Region string `json:"region,omitempty"`

	// MachineType is used where a placement has none, such as "e2-small". Empty
	// means that a placement must say.
	MachineType string `json:"machineType,omitempty"`
	// Image is used where a placement has none. Empty means that a placement must
	// say.
	Image string `json:"image,omitempty"`
	// DiskSizeGiB is the size of an instance's disk, in GiB; 10 if zero. The API
	// refuses less than the image's own.
	DiskSizeGiB int `json:"diskSizeGb,omitempty"`
	// DiskType is the kind of the disk, such as "pd-balanced". Empty means the API's
	// own default.
	DiskType string `json:"diskType,omitempty"`

	// Network is the VPC network: a name of the project's own, or a path such as
	// "projects/HOST/global/networks/NAME". Empty means that of the subnetwork, else
	// "default".
	Network string `json:"network,omitempty"`
	// Subnetwork is a name in the region of the zone, or a path such as
	// "projects/HOST/regions/REGION/subnetworks/NAME". Empty lets the API choose, which
	// it can in a network with automatic subnetworks.
	Subnetwork string `json:"subnetwork,omitempty"`
	// ExternalIP is "ephemeral" or "none". Instances without one reach the world
	// through Cloud NAT and share its addresses. Default "ephemeral".
	ExternalIP string `json:"externalIP,omitempty"`
	// IPv6 gives each instance an IPv6 address too, an external one unless ExternalIP
	// is "none". The subnetwork must have both families. Default false.
	IPv6 bool `json:"ipv6,omitempty"`
	// NetworkTags are what firewall rules aim at. Default none.
	NetworkTags []string `json:"networkTags,omitempty"`

	// ServiceAccount is the email address of the account that the instances act as.
	// Empty means none: a proxy needs no rights.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// ShieldedVM are switches of Shielded VM. Default the image's own.
	ShieldedVM ShieldedVM `json:"shieldedVM,omitzero"`
	// Spot makes spot instances: cheaper, and deleted when Google wants them back.
	// Default false.
	Spot bool `json:"spot,omitempty"`
	// MaxRunDuration is after what time Google deletes an instance by itself, 30s to
	// 2880h. Default never.
	MaxRunDuration provider.Duration `json:"maxRunDuration,omitempty"`
	// Labels are further labels of instances and disks. Keys that begin with
	// "egress-" are ours. Default none.
	Labels map[string]string `json:"labels,omitempty"`

	// Endpoint is the URL of the API where it is not Google's public one, such as that
	// of a Private Service Connect endpoint, or of a server for tests. It must be https,
	// but on loopback, because it is sent a token. An endpoint among the ClientOptions
	// is preferred. Default https://compute.googleapis.com.
	Endpoint string `json:"endpoint,omitempty"`
	// CallTimeout is for one call of the API, with its retries. Default 30s.
	CallTimeout provider.Duration `json:"callTimeout,omitempty"`
	// LogUserData has the payloads in the log at V(5) show user-data and consoles,
	// and so whatever secrets are in them. Default false.
	LogUserData bool `json:"logUserData,omitempty"`

	// ClientOptions are for the clients of the API: credentials, an endpoint, an HTTP
	// client. One of the latter must authenticate by itself.
	ClientOptions []option.ClientOption `json:"-"`
	// Logger is used where the context carries none. The zero value discards.
	Logger logr.Logger `json:"-"`
	// Trace, if set, is told of operations and of calls of the API.
	Trace *Trace `json:"-"`
}

// ShieldedVM are the switches of Shielded VM. Where one is given, the others have
// Google's defaults.
type ShieldedVM struct {
	// SecureBoot refuses what is not signed. Default off.
	SecureBoot provider.Toggle `json:"secureBoot,omitempty"`
	// VTPM gives the guest a TPM. Default on.
	VTPM provider.Toggle `json:"vtpm,omitempty"`
	// IntegrityMonitoring compares each boot with the first. Default on.
	IntegrityMonitoring provider.Toggle `json:"integrityMonitoring,omitempty"`
}

const (
	externalEphemeral = "ephemeral"
	externalNone      = "none"

	// ourPrefix begins the keys of our labels and metadata items.
	ourPrefix = "egress-"
	// maxLabels is the API's limit, of which ours are three.
	maxLabels = 64
	ourLabels = 3

	minRunDuration = 30 * time.Second
	maxRunDuration = 120 * 24 * time.Hour
)

var (
	projectPattern    = regexp.MustCompile(`^(?:[-a-z0-9.]+:)?(?:[0-9]{1,19}|[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)$`)
	namePattern       = regexp.MustCompile(`^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
	zonePattern       = regexp.MustCompile(`^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?-(?:[a-z]|ai[0-9]+[a-z])$`)
	typePattern       = regexp.MustCompile(`^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKeyPattern   = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$`)
	labelValuePattern = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)
)

// Validate reports every problem of c at once, each with the path of its field.
// [New] calls it.
func (c Config) Validate() error {
	var problems check.Problems
	problems.Require(c.Project != "", "project", "give the ID of the project, as gcloud config get project prints it")
	matches(&problems, "project", c.Project, projectPattern, "must be the ID of a project")
	for i, zone := range c.Zones {
		path := fmt.Sprintf("zones[%d]", i)
		problems.Require(zone != "", path, "give a zone, such as europe-west1-b")
		matches(&problems, path, zone, zonePattern, "must be a zone, such as europe-west1-b")
		if slices.Contains(c.Zones[:i], zone) {
			problems.Add(path, zone, "is there twice")
		}
	}
	matches(&problems, "region", c.Region, namePattern, "must be a region, such as europe-west1")
	c.checkMachine(&problems)
	c.checkNetwork(&problems)
	c.checkLabels(&problems)
	checkEndpoint(&problems, c.Endpoint)
	if c.CallTimeout < 0 {
		problems.Add("callTimeout", c.CallTimeout, "must be positive, or be left out for 30s")
	}
	return problems.Err()
}

// matches reports a value that is given and has not the form.
func matches(problems *check.Problems, path, value string, pattern *regexp.Regexp, problem string) {
	if value != "" && !pattern.MatchString(value) {
		problems.Add(path, value, problem)
	}
}

// checkEndpoint shows nothing of a URL that may have a password in it.
func checkEndpoint(problems *check.Problems, endpoint string) {
	u, err := url.Parse(endpoint)
	switch {
	case endpoint == "":
	case err != nil, u.Host == "", u.User != nil, strings.Trim(u.Path, "/") != "", u.RawQuery != "", u.Fragment != "", u.Scheme != "https" && u.Scheme != "http":
		problems.Missing("endpoint", "must be a URL of scheme and host alone, such as https://compute-egress.p.googleapis.com")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		problems.Add("endpoint", endpoint, "must be https: a token is sent to it")
	}
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func (c Config) checkMachine(problems *check.Problems) {
	if c.MachineType != "" {
		_, err := machineTypePath("", c.MachineType)
		problems.Within("machineType", err)
	}
	if c.Image != "" {
		_, err := imagePath(c.Image)
		problems.Within("image", err)
	}
	if c.DiskSizeGiB < 0 || c.DiskSizeGiB > 64<<10 {
		problems.Add("diskSizeGb", c.DiskSizeGiB, "must lie between 1 and 65536, or be left out for 10")
	}
	matches(problems, "diskType", c.DiskType, typePattern, "must be the name of a disk type, such as pd-balanced")
	if strings.ContainsAny(c.ServiceAccount, " \t\r\n/") || c.ServiceAccount != "" && !strings.Contains(c.ServiceAccount, "@") {
		problems.Add("serviceAccount", c.ServiceAccount, "must be the email address of a service account")
	}
	if d := time.Duration(c.MaxRunDuration); d != 0 && (d < minRunDuration || d > maxRunDuration || d%time.Second != 0) {
		problems.Add("maxRunDuration", c.MaxRunDuration, "must be whole seconds from 30s to 2880h, or be left out for no limit")
	}
}

func (c Config) checkNetwork(problems *check.Problems) {
	for path, value := range map[string]string{"network": c.Network, "subnetwork": c.Subnetwork} {
		if value != "" && !namePattern.MatchString(value) && !isPath(value, path+"s") {
			problems.Add(path, value, "must be a name, or a path such as projects/PROJECT/…/"+path+"s/NAME")
		}
	}
	if !slices.Contains([]string{"", externalEphemeral, externalNone}, c.ExternalIP) {
		problems.Add("externalIP", c.ExternalIP, "must be ephemeral or none")
	}
	for i, tag := range c.NetworkTags {
		if !namePattern.MatchString(tag) {
			problems.Add(fmt.Sprintf("networkTags[%d]", i), tag, "must be 1 to 63 lower-case letters, digits and dashes, begin with a letter and not end with a dash")
		}
	}
}

func (c Config) checkLabels(problems *check.Problems) {
	if len(c.Labels) > maxLabels-ourLabels {
		problems.Add("labels", len(c.Labels), fmt.Sprintf("are more than %d", maxLabels-ourLabels))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		path := fmt.Sprintf("labels[%q]", key)
		switch {
		case !labelKeyPattern.MatchString(key):
			problems.Missing(path, "the key must be 1 to 63 lower-case letters, digits, dashes and underscores, and begin with a letter")
		case strings.HasPrefix(key, ourPrefix):
			problems.Missing(path, "keys that begin with "+ourPrefix+" are this package's own")
		}
		if !labelValuePattern.MatchString(c.Labels[key]) {
			problems.Add(path, c.Labels[key], "must be at most 63 lower-case letters, digits, dashes and underscores")
		}
	}
}

// withDefaults returns a deep copy in which every default is filled in.
func (c Config) withDefaults() Config {
	c.Name = or(c.Name, "gcp")
	c.DiskSizeGiB = or(c.DiskSizeGiB, 10)
	c.ExternalIP = or(c.ExternalIP, externalEphemeral)
	c.CallTimeout = or(c.CallTimeout, provider.Duration(30*time.Second))
	c.Zones, c.NetworkTags = slices.Clone(c.Zones), slices.Clone(c.NetworkTags)
	c.ClientOptions = slices.Clone(c.ClientOptions)
	c.Labels = maps.Clone(c.Labels)
	if c.Trace != nil {
		trace := *c.Trace
		c.Trace = &trace
	}
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	return c
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
