package kvm

import (
	"cmp"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The namespace and prefix of our element in a domain's metadata. The last
// part of the namespace changes only if old readers could not read it.
const (
	metadataURI    = "https://github.com/egressfleet/egress/kvm/1"
	metadataPrefix = "egress"
	metadataRoot   = "instance"
)

// stage says how far Create got with a domain.
type stage string

const (
	stageMaking stage = "making"
	stageMade   stage = "made"
)

// record is what we keep in a domain's metadata. Nothing of it changes after
// stageMade.
type record struct {
	Tag, UID string
	Stage    stage
	Created  time.Time
	// MAC is the address of our network card.
	MAC string
	// Addresses are the static ones, none where the guest uses DHCP.
	Addresses []netip.Prefix
	Metadata  map[string]string
}

// wireRecord is the element of a record. Its fields have no namespace, so that
// they match whatever a libvirt gives back: its own prefix, a default
// namespace, or a prefix without declaration.
type wireRecord struct {
	XMLName xml.Name
	XMLNS   string    `xml:"xmlns:egress,attr,omitempty"`
	Managed bool      `xml:"managed,attr"`
	Stage   stage     `xml:"stage,attr"`
	Tag     string    `xml:"tag"`
	UID     string    `xml:"uid"`
	Created time.Time `xml:"created"`
	MAC     string    `xml:"mac,omitempty"`
	// Addresses have the length of their network, as 10.0.0.10/24.
	Addresses []netip.Prefix `xml:"address"`
	Entries   []wireEntry    `xml:"entry"`
}

// wireEntry is one of the caller's strings. What XML or libvirt could change is
// kept as base64.
type wireEntry struct {
	Key      string `xml:"key,attr"`
	Encoding string `xml:"encoding,attr,omitempty"`
	Value    string `xml:",chardata"`
}

const encodingBase64 = "base64"

func newWireEntry(key, value string) wireEntry {
	if plainPattern.MatchString(value) {
		return wireEntry{Key: key, Value: value}
	}
	return wireEntry{Key: key, Encoding: encodingBase64, Value: base64.StdEncoding.EncodeToString([]byte(value))}
}

// plainPattern is text without control characters and outer spaces.
var plainPattern = regexp.MustCompile(`^([!-~]([ -~]*[!-~])?)?$`)

func (e wireEntry) value() (string, error) {
	if e.Encoding != encodingBase64 {
		return e.Value, nil
	}
	raw, err := base64.StdEncoding.DecodeString(e.Value)
	if err != nil {
		return "", fmt.Errorf("the metadata entry %q cannot be read: %w", e.Key, err)
	}
	return string(raw), nil
}

// element renders the record for a domain's definition, with its namespace.
func (r record) element() (string, error) {
	w := r.wire()
	w.XMLName = xml.Name{Local: metadataPrefix + ":" + metadataRoot}
	w.XMLNS = metadataURI
	return marshalRecord(w)
}

// bare renders the record for virDomainSetMetadata, which adds the namespace.
func (r record) bare() (string, error) {
	w := r.wire()
	w.XMLName = xml.Name{Local: metadataRoot}
	return marshalRecord(w)
}

func (r record) wire() wireRecord {
	w := wireRecord{
		Managed: true, Stage: r.Stage,
		Tag: r.Tag, UID: r.UID, Created: r.Created.UTC(), MAC: r.MAC, Addresses: r.Addresses,
	}
	for key, value := range r.Metadata {
		w.Entries = append(w.Entries, newWireEntry(key, value))
	}
	slices.SortFunc(w.Entries, func(a, b wireEntry) int { return cmp.Compare(a.Key, b.Key) })
	return w
}

func marshalRecord(w wireRecord) (string, error) {
	out, err := xml.MarshalIndent(w, "", "  ")
	return string(out), err
}

var errNotOurs = errors.New("the metadata is not of this package")

// parseRecord reads what virDomainGetMetadata returned for our namespace.
func parseRecord(text string) (record, error) {
	var w wireRecord
	if err := xml.Unmarshal([]byte(text), &w); err != nil {
		return record{}, fmt.Errorf("the metadata cannot be read: %w", err)
	}
	if w.XMLName.Local != metadataRoot || !w.Managed || w.Tag == "" || w.UID == "" {
		return record{}, errNotOurs
	}
	if w.Stage != stageMaking && w.Stage != stageMade {
		return record{}, fmt.Errorf("the metadata has the unknown stage %q: it was written by a newer version", w.Stage)
	}
	return w.record()
}

func (w wireRecord) record() (record, error) {
	r := record{
		Tag: w.Tag, UID: w.UID, Stage: w.Stage,
		Created: w.Created, MAC: strings.ToLower(w.MAC), Addresses: w.Addresses,
	}
	for _, e := range w.Entries {
		if r.Metadata == nil {
			r.Metadata = map[string]string{}
		}
		value, err := e.value()
		if err != nil {
			return record{}, err
		}
		r.Metadata[e.Key] = value
	}
	return r, nil
}

// clone copies what a receiver may change.
func (r record) clone() record {
	r.Metadata = maps.Clone(r.Metadata)
	r.Addresses = slices.Clone(r.Addresses)
	return r
}
