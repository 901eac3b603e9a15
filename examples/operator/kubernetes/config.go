package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/provider"
)

// Config says in which namespace pods are made, and how. [New] copies it.
// Literals must name their fields.
type Config struct {
	// Name is the provider's name in logs and errors; "kubernetes" if empty.
	Name string `json:"-"`
	// Client talks to the API server. It must read from there and not from a cache,
	// as the one of client.New does, and know the core types. Its own limit of
	// requests per second holds up calls. Required.
	Client client.Client `json:"-"`
	// Credentials, if set, gives each instance's user name and password by its UID.
	// Squid asks for none where both are empty.
	Credentials func(uid string) (username, password string) `json:"-"`
	// Logger is used where the context carries none. The zero value discards.
	Logger logr.Logger `json:"-"`

	// Namespace is where the pods are. Required, by the file or by the program.
	Namespace string `json:"namespace,omitempty"`
	// Image is the container image used where a placement has none. It needs squid in
	// its PATH, of version 5 or later. Empty means that a placement must say.
	Image string `json:"image,omitempty"`
	// UserID is the numeric user and group that Squid runs as, not 0. Default 13, the
	// user proxy of Debian and Ubuntu.
	UserID int64 `json:"userID,omitempty"`
	// Resources are the container's. Default 10m CPU and 64Mi of memory requested, and
	// a limit of 256Mi of memory. Where anything is given nothing is added.
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	// NodeSelector are labels that a node must have. Default none.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Labels are further labels of pods and Secrets. Keys that begin with
	// "crawl.example.com/egress-" are ours. Default none.
	Labels map[string]string `json:"labels,omitempty"`

	// Port is the TCP port of the proxy, 1024 to 65535; 3128 if zero. A squid.conf in
	// the user-data must listen on it.
	Port int `json:"port,omitempty"`
	// Clients are the networks that may use the proxy. Default any where there are
	// credentials, else the private networks, among which those of pods are.
	Clients []netip.Prefix `json:"clients,omitempty"`
	// ConnectPorts are the ports that CONNECT may reach, such as "443" or
	// "8000-8999". Default 443.
	ConnectPorts []cloudinit.PortRange `json:"connectPorts,omitempty"`
	// AllowDestinations are networks to open that are closed by default, as private
	// ones are. Default none.
	AllowDestinations []netip.Prefix `json:"allowDestinations,omitempty"`
	// FileDescriptors bounds Squid's open files and sockets, 256 to 65536; a client in
	// service takes two. Squid reserves memory for as many as it may open, and nodes
	// allow a million. Default 4096.
	FileDescriptors int `json:"fileDescriptors,omitempty"`
	// ExtraConf are further lines of squid.conf. Default none.
	ExtraConf []string `json:"extraConf,omitempty"`

	// CallTimeout is for one call of the API. Default 15s.
	CallTimeout provider.Duration `json:"callTimeout,omitempty"`
}

const (
	defaultPort            = 3128
	defaultUserID          = 13
	defaultFileDescriptors = 4096
	defaultCallTimeout     = 15 * time.Second
)

// privateNetworks may use a proxy that nobody configured otherwise: RFC 1918, the
// shared space of RFC 6598, and RFC 4193.
var privateNetworks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("fc00::/7"),
}

// problems is a list of what is wrong with a configuration.
type problems []error

// add notes a bad value, with the path of its field and what to do.
func (p *problems) add(path string, value any, remedy string) {
	*p = append(*p, fmt.Errorf("%s: %#v: %s", path, value, remedy))
}

// Validate reports every problem of c at once, each with the path of its field.
// [New] calls it.
func (c Config) Validate() error {
	var all problems
	if c.Client == nil {
		all = append(all, errors.New("client: give one that reads from the API server, as client.New makes it"))
	}
	if msgs := validation.IsDNS1123Label(c.Namespace); len(msgs) > 0 {
		all.add("namespace", c.Namespace, "must be the name of a namespace")
	}
	if c.Image != "" && !isImage(c.Image) {
		all.add("image", c.Image, "must be the name of an image, such as registry.example.com/squid:6")
	}
	if c.UserID < 0 || c.UserID > 1<<31-1 {
		all.add("userID", c.UserID, "must be a user's number other than 0, or be left out for 13")
	}
	if c.Port != 0 && (c.Port < 1024 || c.Port > 65535) {
		all.add("port", c.Port, "must lie between 1024 and 65535, or be left out for 3128: Squid has no privileges here")
	}
	if c.CallTimeout < 0 {
		all.add("callTimeout", c.CallTimeout.String(), "must be positive, or be left out for 15s")
	}
	c.checkResources(&all)
	checkLabels(&all, "nodeSelector", c.NodeSelector)
	checkLabels(&all, "labels", c.Labels)
	c.checkSquid(&all)
	return errors.Join(all...)
}

// isImage tells whether an API server would take it: only a runtime knows more.
func isImage(s string) bool { return s != "" && !strings.ContainsAny(s, " \t\r\n") }

func (c Config) checkResources(all *problems) {
	if len(c.Resources.Claims) > 0 {
		*all = append(*all, errors.New("resources.claims: cannot be given here"))
	}
	for path, list := range map[string]corev1.ResourceList{"requests": c.Resources.Requests, "limits": c.Resources.Limits} {
		for name, quantity := range list {
			if quantity.Sign() < 0 {
				all.add("resources."+path+"."+string(name), quantity.String(), "must not be negative")
			}
		}
	}
}

// checkLabels reports what no label or selector may have, and keys that are ours.
func checkLabels(all *problems, field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		path := fmt.Sprintf("%s[%q]", field, key)
		if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
			all.add(path, key, "must be a label's key, such as example.com/team")
		}
		if strings.HasPrefix(key, ourPrefix) {
			all.add(path, key, "keys that begin with "+ourPrefix+" are this package's own")
		}
		if msgs := validation.IsValidLabelValue(labels[key]); len(msgs) > 0 {
			all.add(path, labels[key], "must be at most 63 letters, digits, dashes, dots and underscores")
		}
	}
}

// checkSquid has the package that renders squid.conf look at its part.
func (c Config) checkSquid(all *problems) {
	s := c.withDefaults().squid("", "", "")
	if c.Credentials != nil {
		s.Users = []cloudinit.SquidUser{{Name: "any", Password: "any"}}
	}
	s.Port, s.ExtraConf = 0, c.ExtraConf
	if err := s.Validate(); err != nil {
		*all = append(*all, err)
	}
}

// withDefaults returns a deep copy in which every default is filled in.
func (c Config) withDefaults() Config {
	c.Name = or(c.Name, "kubernetes")
	c.Port = or(c.Port, defaultPort)
	c.UserID = or(c.UserID, defaultUserID)
	c.FileDescriptors = or(c.FileDescriptors, defaultFileDescriptors)
	c.CallTimeout = or(c.CallTimeout, provider.Duration(defaultCallTimeout))
	c.Resources = *c.Resources.DeepCopy()
	if c.Resources.Requests == nil && c.Resources.Limits == nil {
		c.Resources = defaultResources()
	}
	c.NodeSelector, c.Labels = maps.Clone(c.NodeSelector), maps.Clone(c.Labels)
	c.Clients, c.AllowDestinations = slices.Clone(c.Clients), slices.Clone(c.AllowDestinations)
	c.ConnectPorts, c.ExtraConf = slices.Clone(c.ConnectPorts), slices.Clone(c.ExtraConf)
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	return c
}

func defaultResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
}

// or returns v, or the default where v is zero.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
