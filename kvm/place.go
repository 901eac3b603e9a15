package kvm

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/provider"
)

// place is a placement with everything it names.
type place struct {
	host    *host
	machine MachineType
	image   imageSource
}

// imageSource is an image with the key that its volume is named by.
type imageSource struct {
	Image
	key string
}

// keyOfURL is the key of images that are placed by URL.
const keyOfURL = "url"

// place resolves a placement. The host comes back with an error about the rest.
func (p *Provider) place(pl provider.Placement) (out place, err error) {
	if out.host, err = pick("zone", pl.Zone, p.hosts); err != nil {
		return out, err
	}
	if out.machine, err = pick("machineType", pl.MachineType, p.cfg.MachineTypes); err != nil {
		return out, err
	}
	out.image, err = p.image(pl.Image)
	return out, err
}

func (p *Provider) image(name string) (imageSource, error) {
	if strings.Contains(name, "://") {
		// A file would be one of this machine, which the caller may not even see.
		if !diskimage.IsRemote(name) {
			return imageSource{}, provider.Permanentf(codeBadPlacement, "image: must be a key of the configuration, or an http or https URL")
		}
		image := Image{URL: name}
		if err := image.validate(); err != nil {
			return imageSource{}, provider.Permanentf(codeBadPlacement, "image: %w", err)
		}
		return imageSource{Image: image.withDefaults(), key: keyOfURL}, nil
	}
	image, err := pick("image", name, p.cfg.Images)
	if name == "" {
		for name = range p.cfg.Images { // pick has seen that there is one
		}
	}
	return imageSource{Image: image, key: name}, err
}

// pick returns the named value, or the only one where no name is given.
func pick[V any](field, name string, from map[string]V) (V, error) {
	known := strings.Join(slices.Sorted(maps.Keys(from)), ", ")
	if name == "" && len(from) == 1 {
		for _, v := range from {
			return v, nil
		}
	}
	v, ok := from[name]
	switch {
	case ok:
		return v, nil
	case len(from) == 0:
		return v, provider.Permanentf(codeBadPlacement, "%s: %q: none is configured", field, name)
	case name == "":
		return v, provider.Permanentf(codeBadPlacement, "%s: choose one of %s", field, known)
	}
	return v, provider.Permanentf(codeBadPlacement, "%s: %q is not configured, there are %s", field, name, known)
}

// hasDigest tells whether the volume's name determines its content.
func (i imageSource) hasDigest() bool { return i.SHA256+i.SHA512 != "" }

// identity is the name of the image's volume without its format: the key, and
// what identifies the content, which is the digest, or the URL where there is
// none.
func (i imageSource) identity() string {
	id := i.SHA256 + i.SHA512 // with both, the beginning is that of SHA256
	if id == "" {
		sum := sha256.Sum256([]byte(i.URL))
		id = "url" + hex.EncodeToString(sum[:])
	}
	return "base-" + i.key + "-" + id[:16]
}

// volume is the name of the image's volume.
func (i imageSource) volume(format string) string { return i.identity() + "." + format }

// formats are those that the image may turn out to have.
func (i imageSource) formats() []string {
	if i.Format != "" {
		return []string{i.Format}
	}
	return []string{diskimage.FormatQCOW2, diskimage.FormatRaw}
}

// source is what there is to fetch.
func (i imageSource) source() diskimage.Source {
	return diskimage.Source{URL: i.URL, SHA256: i.SHA256, SHA512: i.SHA512, Format: i.Format}
}
