package gcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egressfleet/egress/provider"
)

// Our labels, and the item that takes over what the description cannot hold.
const (
	labelManaged = ourPrefix + "managed"
	labelTag     = ourPrefix + "tag"
	labelUID     = ourPrefix + "uid"
	itemMetadata = ourPrefix + "metadata"

	managed = "true"
)

// maxDescription is what a description may have. The API's schema names no limit;
// its error does, in characters, of which there are never more than bytes.
const maxDescription = 2048

// recordVersion changes only if old readers could not read the record.
const recordVersion = 1

// record is what an instance's description holds, as JSON. Nothing of it changes
// after the insert.
type record struct {
	Version  int               `json:"egress"`
	Tag      string            `json:"tag"`
	UID      string            `json:"uid"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Elsewhere says that Metadata is in the metadata item.
	Elsewhere bool `json:"metadataItem,omitempty"`
}

// render returns the description, and the metadata item if that is needed.
func (r record) render() (description, item string, err error) {
	r.Version = recordVersion
	if description, err = compact(r); err != nil || len(description) <= maxDescription {
		return description, "", err
	}
	if item, err = compact(r.Metadata); err != nil {
		return "", "", err
	}
	r.Metadata, r.Elsewhere = nil, true
	description, err = compact(r)
	return description, item, err
}

// compact is JSON that a person can read in a console: without the escapes for
// HTML.
func compact(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), err
}

var errNotOurs = errors.New("it has no mark of ours")

// readRecord reads the record of an instance. One without our mark is
// errNotOurs.
func readRecord(in *computepb.Instance) (record, error) {
	var r record
	if in.GetLabels()[labelManaged] != managed {
		return r, errNotOurs
	}
	if err := json.Unmarshal([]byte(in.GetDescription()), &r); err != nil {
		return r, provider.Permanentf(codeBadRecord, "its description is no record of ours: %w", err)
	}
	if r.Version != recordVersion || r.Tag == "" || r.UID == "" {
		return r, provider.Permanentf(codeBadRecord, "its description is no record of version %d", recordVersion)
	}
	if r.Elsewhere {
		if err := json.Unmarshal([]byte(item(in, itemMetadata)), &r.Metadata); err != nil {
			return r, provider.Permanentf(codeBadRecord, "its metadata item %s cannot be read: %w", itemMetadata, err)
		}
	}
	return r, nil
}

// item is the value of a metadata item; empty if there is none.
func item(in *computepb.Instance, key string) string {
	for _, i := range in.GetMetadata().GetItems() {
		if i.GetKey() == key {
			return i.GetValue()
		}
	}
	return ""
}

// owns tells why an instance is not the request's own: nil if it is.
func (r record) owns(in *computepb.Instance, req provider.CreateRequest) error {
	if r.Tag != req.Tag || r.UID != req.UID || in.GetLabels()[labelTag] != req.Tag {
		return fmt.Errorf("the name is held by an instance of the tag %q and another UID or tag than asked for", r.Tag)
	}
	return nil
}

// uidHash is the label of a UID, which may hold what labels cannot.
func uidHash(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return hex.EncodeToString(sum[:16])
}
