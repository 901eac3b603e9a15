package kvm

import (
	"context"
	"reflect"
	"time"

	"github.com/egressfleet/egress/internal/fakelibvirt"
)

// UseFake has the named host's connections go to a fake.
func UseFake(p *Provider, host string, fake *fakelibvirt.Host) {
	p.hosts[host].connect = func(ctx context.Context, lost func(error)) (libvirtAPI, func(), error) {
		conn := fake.Connect()
		conn.OnCut = lost
		return conn, conn.Cut, ctx.Err()
	}
}

// FailDial has the named host's connections fail.
func FailDial(p *Provider, host string, f func(context.Context) error) {
	p.hosts[host].connect = func(ctx context.Context, _ func(error)) (libvirtAPI, func(), error) { return nil, nil, f(ctx) }
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
}

func (r Record) record() record {
	return record{Tag: r.Tag, UID: r.UID, Stage: stage(r.Stage), MAC: r.MAC, Created: r.Created, Metadata: r.Metadata}
}

// Element renders the metadata with its namespace.
func (r Record) Element() (string, error) { return r.record().element() }

// Bare renders the metadata without its namespace.
func (r Record) Bare() (string, error) { return r.record().bare() }

// ParseRecord reads metadata.
func ParseRecord(text string) (Record, error) {
	r, err := parseRecord(text)
	return Record{Tag: r.Tag, UID: r.UID, Stage: string(r.Stage), MAC: r.MAC, Created: r.Created, Metadata: r.Metadata}, err
}

// Sniff reads the beginning of an image.
func Sniff(head []byte) (format string, virtualSize uint64, err error) {
	s, err := sniff(head)
	return s.format, s.virtualSize, err
}

// ParseHypervisor chooses from capabilities.
var ParseHypervisor = parseHypervisor

// Classify gives an error of libvirt its class and code.
func Classify(err error) (class error, code string) {
	e := classify(err)
	return e.Class, e.Code
}

// MetadataURI is the namespace of our metadata.
const MetadataURI = metadataURI

// FrameConn, for the limits of frames.
func ScanFrames(chunks ...[]byte) (good int, err error) {
	c := &frameConn{lost: func(error) {}}
	for _, chunk := range chunks {
		n, err := c.scan(chunk)
		good += n
		if err != nil {
			return good, err
		}
	}
	return good, nil
}

// Fill and packets are tested by what a Provider does with them; this is their
// packet size.
const PacketSize = packetSize
