package kvm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"golang.org/x/crypto/ssh"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/provider"
)

// UseFake has the named host's connections go to a fake.
func UseFake(p *Provider, host string, fake *fakelibvirt.Host) {
	connect := func(ctx context.Context, _ transport, lost func(error)) (libvirtAPI, func(), error) {
		conn := fake.Connect()
		conn.OnCut = lost
		return conn, conn.Cut, ctx.Err()
	}
	p.hosts[host].connect, p.hosts[host].stream = connect, connect
}

// FailDial has the named host's connections fail.
func FailDial(p *Provider, host string, f func(context.Context) error) {
	p.hosts[host].connect = func(ctx context.Context, _ transport, _ func(error)) (libvirtAPI, func(), error) {
		return nil, nil, f(ctx)
	}
}

// APIMethods are the functions of libvirt that are called.
func APIMethods() []string {
	t := reflect.TypeFor[libvirtAPI]()
	names := make([]string, 0, t.NumMethod())
	for i := range t.NumMethod() {
		names = append(names, t.Method(i).Name)
	}
	return names
}

// Record is what the metadata holds.
type Record struct {
	Tag, UID, Stage, MAC string
	Created              time.Time
	Metadata             map[string]string
	Addresses            []netip.Prefix
}

func (r Record) record() record {
	return record{Tag: r.Tag, UID: r.UID, Stage: stage(r.Stage), MAC: r.MAC, Created: r.Created, Metadata: r.Metadata, Addresses: r.Addresses}
}

// Element renders the metadata with its namespace.
func (r Record) Element() (string, error) { return r.record().element() }

// Bare renders the metadata without its namespace.
func (r Record) Bare() (string, error) { return r.record().bare() }

// ParseRecord reads metadata.
func ParseRecord(text string) (Record, error) {
	r, err := parseRecord(text)
	return Record{Tag: r.Tag, UID: r.UID, Stage: string(r.Stage), MAC: r.MAC, Created: r.Created, Metadata: r.Metadata, Addresses: r.Addresses}, err
}

// UseLanes has images sent over that many connections.
func UseLanes(p *Provider, host string, n int) {
	p.hosts[host].lanes = func(time.Duration) int { return n }
}

// LanesFor chooses their number.
var LanesFor = lanesFor

// SegmentsPay decides whether they are worth it.
var SegmentsPay = segmentsPay

// SegmentSize is the size of the parts that are sent over several connections.
const SegmentSize = segmentSize

// ParseHypervisor chooses from capabilities.
var ParseHypervisor = parseHypervisor

// Classify gives an error of libvirt its class and code.
func Classify(err error) (class error, code string) {
	e := classify(err)
	return e.Class, e.Code
}

// MetadataURI is the namespace of our metadata.
const MetadataURI = metadataURI

// ScanFrames has these calls made on a connection on which all that comes is the
// chunks, and returns what comes through.
func ScanFrames(calls []byte, chunks ...[]byte) (through []byte, err error) {
	c := newFrameConn(&pieced{pieces: chunks}, func(error) {})
	c.note(calls)
	through, err = io.ReadAll(c)
	return through, errors.Unwrap(err)
}

type pieced struct {
	net.Conn
	pieces [][]byte
}

func (c *pieced) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

// Introduce has go-libvirt use a connection, as for a host; lost is told of its end.
func Introduce(conn net.Conn, lost func(error)) (*libvirt.Libvirt, error) {
	l := libvirt.NewWithDialer(dialers.NewAlreadyConnected(newFrameConn(conn, lost)))
	return l, l.ConnectToURI(libvirt.QEMUSystem)
}

// What is known of the payloads of libvirt.
var (
	ReplyLayouts = replyLayouts
	EventLayout  = eventLayout
	ErrorLayout  = errorLayout
)

// Fill and packets are tested by what a Provider does with them; this is their
// packet size.
const PacketSize = packetSize

// Hypervisor access of the lab's tests, beside what the provider does.

func real(ctx context.Context, p *Provider, host string) (*libvirt.Libvirt, libvirt.StoragePool, error) {
	h := p.hosts[host]
	s, err := h.control.get(ctx)
	if err != nil {
		return nil, libvirt.StoragePool{}, err
	}
	l := s.api.(*libvirt.Libvirt)
	pool, err := l.StoragePoolLookupByName(h.Pool)
	return l, pool, err
}

// PoolVolumes are the names of the host's volumes, as the pool has them after a
// refresh.
func PoolVolumes(ctx context.Context, p *Provider, host string) ([]string, error) {
	l, pool, err := real(ctx, p, host)
	if err != nil {
		return nil, err
	}
	if err := whileBusy(ctx, func() error { return l.StoragePoolRefresh(pool, 0) }); err != nil {
		return nil, err
	}
	vols, _, err := l.StoragePoolListAllVolumes(pool, 1, 0)
	names := make([]string, 0, len(vols))
	for _, v := range vols {
		names = append(names, v.Name)
	}
	return names, err
}

// RemoveVolume removes a volume of the host's pool.
func RemoveVolume(ctx context.Context, p *Provider, host, name string) error {
	h := p.hosts[host]
	_, pool, err := real(ctx, p, host)
	if err != nil {
		return err
	}
	return h.controlClient().remove(ctx, pool, name)
}

// DomainXML is the definition of a domain as the host has it, and its UUID.
func DomainXML(ctx context.Context, p *Provider, host, name string) (text, uuid string, err error) {
	l, _, err := real(ctx, p, host)
	if err != nil {
		return "", "", err
	}
	dom, err := l.DomainLookupByName(name)
	if err != nil {
		return "", "", err
	}
	text, err = l.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive)
	return text, uuidText(dom.UUID), err
}

// UseSockets has hosts without a socket of their own look at these, until the
// test ends.
func UseSockets(t testing.TB, paths ...string) {
	old := defaultSockets
	defaultSockets = paths
	t.Cleanup(func() { defaultSockets = old })
}

// Backoff is what a host's dials share.
type Backoff struct{ backoff }

// NewBackoff returns one after a success.
func NewBackoff() *Backoff { return &Backoff{} }

// Note takes the result of a dial.
func (b *Backoff) Note(now time.Time, file string, took time.Duration, err error) {
	b.note(now, stampOf(file), took, err)
}

// Check returns how long the last failure still counts.
func (b *Backoff) Check(now time.Time, file string) time.Duration {
	err, _ := errors.AsType[*provider.Error](b.check(now, stampOf(file)))
	if err == nil {
		return 0
	}
	return err.RetryAfter
}

// StartNetwork defines and starts a network of libvirt on the host, and returns
// what removes it.
func StartNetwork(ctx context.Context, p *Provider, host, xml string) (remove func(), err error) {
	l, _, err := real(ctx, p, host)
	if err != nil {
		return nil, err
	}
	network, err := l.NetworkDefineXML(xml)
	if err != nil {
		return nil, err
	}
	remove = func() { _, _ = l.NetworkDestroy(network), l.NetworkUndefine(network) }
	if err := l.NetworkCreate(network); err != nil {
		remove()
		return nil, err
	}
	return remove, nil
}

// StopNetwork makes a network inactive.
func StopNetwork(ctx context.Context, p *Provider, host, name string) error {
	l, _, err := real(ctx, p, host)
	if err != nil {
		return err
	}
	network, err := l.NetworkLookupByName(name)
	if err != nil {
		return err
	}
	return l.NetworkDestroy(network)
}

// VolumeContent is the whole content of a volume of the host's pool.
func VolumeContent(ctx context.Context, p *Provider, host, name string) ([]byte, error) {
	h := p.hosts[host]
	_, pool, err := real(ctx, p, host)
	if err != nil {
		return nil, err
	}
	vol, err := h.controlClient().lookupVolume(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	err = h.download(ctx, vol, &content, 0, 0)
	return content.Bytes(), err
}

// Abandon has a provider end without cleaning up, as a process that is killed:
// its connections are cut, and it makes no new ones.
func Abandon(p *Provider, host string) {
	h := p.hosts[host]
	fail := func(context.Context, transport, func(error)) (libvirtAPI, func(), error) { return nil, nil, errClosed }
	h.connect, h.stream = fail, fail
	if s, ok := h.control.current(); ok {
		s.drop("", nil)
	}
	h.transport.close()
}

// ParseRange reads a range: how many addresses it has, the first and the last.
func ParseRange(text string) (size uint64, first, last netip.Prefix, err error) {
	r, err := parseRange(text)
	if err != nil {
		return 0, first, last, err
	}
	return r.size(), r.at(0), r.at(r.size() - 1), nil
}

// HasFailure tells whether a fetch in the background failed and nobody was told.
func HasFailure(p *Provider, host string) bool {
	s := &p.hosts[host].images
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failed) > 0
}

// TrustHostKey tells whether a host of that address is trusted by that key.
func TrustHostKey(knownHosts, address string, key ssh.PublicKey) error {
	h := hop{address: address, knownHosts: knownHosts}
	keys, _, err := newSSHKeys(Config{}, []hop{h}).hostKeys(context.Background(), h)
	if err != nil {
		return err
	}
	return keys.callback(address, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 22}, key)
}

// AskShell has the user's shell on a host run a command.
func AskShell(ctx context.Context, p *Provider, host, command string) string {
	return p.hosts[host].shell(ctx, command)
}

// WayTo is where the host's own sshd and its jump are looked for; empty for this
// machine and for none.
func WayTo(c Config) (address, jump string) {
	h := c.withDefaults().Hosts[0]
	if h.Address != addressLocal {
		address = c.target(h).address
	}
	j, _ := c.jump(h)
	return address, j.address
}
