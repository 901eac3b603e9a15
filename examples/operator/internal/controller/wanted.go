package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
)

// The keys of a Secret.
const (
	keyUserData = "user-data"
	keyUsername = "username"
	keyPassword = "password"
)

// What a machine is told of its owner.
const (
	metadataNamespace = "namespace"
	metadataProxy     = "proxy"
)

// squidUser is the user of a Squid that the operator installs.
const squidUser = "crawler"

// defaultPort is Squid's.
const defaultPort = 3128

// wanted is what a Proxy is to be made from, with what its Secret says.
type wanted struct {
	userData           []byte
	username, password string
	hash               string
}

// wanted reads the Secret, if there is one. Its error says what to do.
func (p *pass) wanted(ctx context.Context) (wanted, error) {
	var w wanted
	spec := p.px.Spec
	if ci := spec.CloudInit; ci != nil {
		w.userData = []byte(ci.Inline)
		if ci.SecretRef != nil {
			secret, err := p.secret(ctx, ci.SecretRef.Name)
			if err != nil {
				return w, err
			}
			w.userData = secret.Data[keyUserData]
			if len(w.userData) == 0 {
				return w, fmt.Errorf("secret %q has nothing under the key %q: put the user-data there", secret.Name, keyUserData)
			}
			w.username, w.password = string(secret.Data[keyUsername]), string(secret.Data[keyPassword])
		}
	}
	w.hash = hash(p.r.Key, hashed{
		Placement: p.wantedPlace(), Port: spec.Port,
		UserData: w.userData, Username: w.username, Password: w.password,
	})
	return w, nil
}

// wantedPlace is what the spec says of the place. To say nothing and to say it by an
// empty object is the same.
func (p *pass) wantedPlace() v1alpha1.Placement {
	if p.px.Spec.Placement == nil {
		return v1alpha1.Placement{}
	}
	return *p.px.Spec.Placement
}

// secret reads a Secret from the cache, which holds labelled ones alone.
func (p *pass) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := p.r.Client.Get(ctx, types.NamespacedName{Namespace: p.px.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("secret %q does not exist in this namespace, or has not the label %s: \"true\", by which the operator sees it",
			name, v1alpha1.LabelCloudInit)
	}
	return secret, err
}

// request is what the provider is asked for.
func (p *pass) request(prov provider.Provider, w wanted) (provider.CreateRequest, error) {
	m := p.px.Status.Machine
	req := provider.CreateRequest{
		UID: m.UID, Tag: p.r.Tag, Placement: placement(m.Placement), UserData: w.userData,
		Metadata: map[string]string{metadataNamespace: p.px.Namespace, metadataProxy: p.px.Name},
	}
	if len(w.userData) > 0 || hasEndpoint(prov) {
		return req, nil
	}
	password, err := fleet.DerivePassword(p.r.Key, m.UID)
	if err != nil {
		return req, err
	}
	squid := p.r.Squid
	squid.Port, squid.SaltSeed = int(m.Port), m.UID
	squid.Users = []cloudinit.SquidUser{{Name: squidUser, Password: cloudinit.Secret(password)}}
	req.UserData, err = squid.UserData()
	return req, err
}

// endpoint is the proxy on a machine that runs.
func (p *pass) endpoint(prov provider.Provider, in provider.Instance, w wanted) (endpoint.Endpoint, error) {
	m := p.px.Status.Machine
	ep, err := endpointOf(prov, p.r.Key, m, in, w)
	return p.described(ep), err
}

// recordedEndpoint is the proxy of the record, as the status says where it is.
func (p *pass) recordedEndpoint(w wanted) (endpoint.Endpoint, error) {
	url, err := machineURL(p.r.Key, p.px.Status.Machine, p.px.Status.Address, w)
	return p.described(endpoint.Endpoint{URL: url}), err
}

// described is the endpoint with what is known of its machine.
func (p *pass) described(ep endpoint.Endpoint) endpoint.Endpoint {
	m := p.px.Status.Machine
	ep.ID, ep.Generation = p.id, p.generation()
	ep.Attributes = p.attributes(map[string]string{"provider": m.Provider, "zone": m.Placement.Zone, "region": m.Placement.Region})
	return ep
}

func endpointOf(prov provider.Provider, key []byte, m *v1alpha1.Machine, in provider.Instance, w wanted) (endpoint.Endpoint, error) {
	if own, ok := provider.As[endpointer](prov); ok {
		return own.Endpoint(m.UID, in)
	}
	if !in.Address().IsValid() {
		return endpoint.Endpoint{}, errors.New("the machine has no address")
	}
	url, err := machineURL(key, m, net.JoinHostPort(in.Address().String(), strconv.Itoa(int(m.Port))), w)
	return endpoint.Endpoint{URL: url}, err
}

func machineURL(key []byte, m *v1alpha1.Machine, hostport string, w wanted) (endpoint.URL, error) {
	username, password := w.username, w.password
	if len(w.userData) == 0 {
		var err error
		username = squidUser
		if password, err = fleet.DerivePassword(key, m.UID); err != nil {
			return endpoint.URL{}, err
		}
	}
	return endpoint.NewURL("http", hostport, username, password)
}

// endpointer is a provider that knows the proxy on its instances, as local and
// kubernetes do.
type endpointer interface {
	Endpoint(uid string, in provider.Instance) (endpoint.Endpoint, error)
}

func hasEndpoint(prov provider.Provider) bool {
	_, ok := provider.As[endpointer](prov)
	return ok
}

// attributes are the Proxy's own, and those that are known, unless the user has
// set them.
func (p *pass) attributes(known map[string]string) map[string]string {
	out := map[string]string{"mode": string(p.px.Spec.Mode), "namespace": p.px.Namespace}
	for k, v := range known {
		if v != "" {
			out[k] = v
		}
	}
	for k, v := range p.px.Spec.Attributes {
		out[k] = v
	}
	return out
}

func placement(p v1alpha1.Placement) provider.Placement {
	return provider.Placement{Region: p.Region, Zone: p.Zone, MachineType: p.MachineType, Image: p.Image}
}

// clip is the text as JSON can hold it, and at most n bytes of it. What the API server
// would change would be written again at every look.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
