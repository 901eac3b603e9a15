package gcp

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/provider"
)

// Keys of metadata that cloud-init reads.
const (
	itemUserData = "user-data"
	itemEncoding = "user-data-encoding"
)

// The API's limits of metadata, in bytes.
const (
	maxItem  = 256 << 10
	maxItems = 512 << 10 // exclusive
)

// InsertRequest returns the call by which Create makes an instance. It asks
// nobody, and the same input gives the same call. Its errors are ErrPermanent and
// name the field.
func (c Config) InsertRequest(req provider.CreateRequest) (*computepb.InsertInstanceRequest, error) {
	c = c.withDefaults()
	if err := req.Validate(); err != nil {
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "%w", err)
	}
	zone, err := c.zone(req.Placement.Zone)
	if err != nil {
		return nil, err
	}
	machine, image, err := c.machine(zone, req.Placement)
	if err != nil {
		return nil, err
	}
	description, metadata, err := c.texts(req)
	if err != nil {
		return nil, err
	}
	labels := c.labels(req)
	return &computepb.InsertInstanceRequest{
		Project: c.Project, Zone: zone,
		InstanceResource: &computepb.Instance{
			Name:                   proto.String(provider.Name(req.UID)),
			Description:            proto.String(description),
			Labels:                 labels,
			MachineType:            proto.String(machine),
			Disks:                  []*computepb.AttachedDisk{c.disk(zone, image, labels)},
			NetworkInterfaces:      []*computepb.NetworkInterface{c.networkInterface(zone)},
			Tags:                   c.tags(),
			Metadata:               metadata,
			ServiceAccounts:        c.serviceAccounts(),
			Scheduling:             c.scheduling(),
			ShieldedInstanceConfig: c.shielded(),
		},
	}, nil
}

// zone is the placement's, or the only one.
func (c Config) zone(zone string) (string, error) {
	switch {
	case zone == "" && len(c.Zones) == 1:
		return c.Zones[0], nil
	case zone == "":
		return "", provider.Permanentf(codeBadPlacement, "placement.zone: give one, or ask Place to choose")
	case !zonePattern.MatchString(zone):
		return "", provider.Permanentf(codeBadPlacement, "placement.zone: %q: must be a zone, such as europe-west1-b", zone)
	case !c.configured(zone):
		return "", provider.Permanentf(codeBadPlacement, "placement.zone: %q: is not among the configured ones, %s", zone, strings.Join(c.Zones, ", "))
	}
	return zone, nil
}

// configured tells whether the zone may be used.
func (c Config) configured(zone string) bool {
	return len(c.Zones) == 0 || slices.Contains(c.Zones, zone)
}

// machine returns the paths of machine type and image.
func (c Config) machine(zone string, p provider.Placement) (machine, image string, err error) {
	p.MachineType, p.Image = or(p.MachineType, c.MachineType), or(p.Image, c.Image)
	var problems []error
	fail := func(field string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("placement.%s: %w", field, err))
		}
	}
	if p.MachineType == "" {
		fail("machineType", errors.New("give one, such as e2-small, or set the provider's machineType"))
	} else {
		machine, err = machineTypePath(zone, p.MachineType)
		fail("machineType", err)
	}
	if p.Image == "" {
		fail("image", errors.New("give one, such as projects/debian-cloud/global/images/family/debian-13, or set the provider's image"))
	} else {
		image, err = imagePath(p.Image)
		fail("image", err)
	}
	if len(problems) > 0 {
		return "", "", provider.Permanentf(codeBadPlacement, "%w", errors.Join(problems...))
	}
	return machine, image, nil
}

// texts are the description and the metadata.
func (c Config) texts(req provider.CreateRequest) (string, *computepb.Metadata, error) {
	description, overflow, err := record{Tag: req.Tag, UID: req.UID, Metadata: req.Metadata}.render()
	if err != nil {
		return "", nil, provider.Permanentf(provider.CodeInvalidRequest, "metadata: %w", err)
	}
	items := userDataItems(req.UserData)
	if overflow != "" {
		items = append(items, newItem(itemMetadata, overflow))
	}
	total := 0
	for _, i := range items {
		total += len(i.GetKey()) + len(i.GetValue())
		if len(i.GetValue()) > maxItem {
			return "", nil, provider.Permanentf(codeUserDataTooLarge, "userData: %d bytes: %s takes %d in the API's metadata, which has room for %d", len(req.UserData), i.GetKey(), len(i.GetValue()), maxItem)
		}
	}
	if total >= maxItems {
		return "", nil, provider.Permanentf(codeUserDataTooLarge, "userData: all metadata takes %d bytes, and the API has room for less than %d", total, maxItems)
	}
	if len(items) == 0 {
		return description, nil, nil
	}
	return description, &computepb.Metadata{Items: items}, nil
}

// userDataItems has user-data as it is where JSON can carry it, else as base64.
func userDataItems(data provider.UserData) []*computepb.Items {
	switch {
	case len(data) == 0:
		return nil
	case utf8.Valid(data) && !bytes.ContainsRune(data, 0):
		return []*computepb.Items{newItem(itemUserData, string(data))}
	}
	return []*computepb.Items{
		newItem(itemUserData, base64.StdEncoding.EncodeToString(data)),
		newItem(itemEncoding, "base64"),
	}
}

func newItem(key, value string) *computepb.Items {
	return &computepb.Items{Key: proto.String(key), Value: proto.String(value)}
}

func (c Config) labels(req provider.CreateRequest) map[string]string {
	labels := maps.Clone(c.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelManaged], labels[labelTag], labels[labelUID] = managed, req.Tag, uidHash(req.UID)
	return labels
}

func (c Config) disk(zone, image string, labels map[string]string) *computepb.AttachedDisk {
	params := &computepb.AttachedDiskInitializeParams{
		SourceImage: proto.String(image),
		DiskSizeGb:  proto.Int64(int64(c.DiskSizeGiB)),
		Labels:      maps.Clone(labels),
	}
	if c.DiskType != "" {
		params.DiskType = proto.String("zones/" + zone + "/diskTypes/" + c.DiskType)
	}
	return &computepb.AttachedDisk{Boot: proto.Bool(true), AutoDelete: proto.Bool(true), InitializeParams: params}
}

func (c Config) networkInterface(zone string) *computepb.NetworkInterface {
	nic := &computepb.NetworkInterface{}
	switch {
	case c.Network != "":
		nic.Network = proto.String(networkPath(c.Network))
	case c.Subnetwork == "":
		nic.Network = proto.String("global/networks/default")
	}
	if c.Subnetwork != "" {
		nic.Subnetwork = proto.String(subnetworkPath(zone, c.Subnetwork))
	}
	external := c.ExternalIP == externalEphemeral
	if external {
		nic.AccessConfigs = []*computepb.AccessConfig{{Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT")}}
	}
	if c.IPv6 {
		nic.StackType = proto.String("IPV4_IPV6")
	}
	if c.IPv6 && external {
		nic.Ipv6AccessConfigs = []*computepb.AccessConfig{{
			Name: proto.String("external-ipv6"), Type: proto.String("DIRECT_IPV6"), NetworkTier: proto.String("PREMIUM"),
		}}
	}
	return nic
}

func (c Config) tags() *computepb.Tags {
	if len(c.NetworkTags) == 0 {
		return nil
	}
	return &computepb.Tags{Items: slices.Clone(c.NetworkTags)}
}

func (c Config) serviceAccounts() []*computepb.ServiceAccount {
	if c.ServiceAccount == "" {
		return nil
	}
	return []*computepb.ServiceAccount{{
		Email: proto.String(c.ServiceAccount), Scopes: []string{"https://www.googleapis.com/auth/cloud-platform"},
	}}
}

// scheduling has every end of an instance delete it: what is merely stopped keeps
// its disk and its price.
func (c Config) scheduling() *computepb.Scheduling {
	if !c.Spot && c.MaxRunDuration == 0 {
		return nil
	}
	s := &computepb.Scheduling{InstanceTerminationAction: proto.String("DELETE")}
	if c.Spot {
		s.ProvisioningModel = proto.String("SPOT")
		s.AutomaticRestart = proto.Bool(false)
		s.OnHostMaintenance = proto.String("TERMINATE")
	}
	if c.MaxRunDuration != 0 {
		s.MaxRunDuration = &computepb.Duration{Seconds: proto.Int64(int64(time.Duration(c.MaxRunDuration) / time.Second))}
	}
	return s
}

func (c Config) shielded() *computepb.ShieldedInstanceConfig {
	s := c.ShieldedVM
	if s == (ShieldedVM{}) {
		return nil
	}
	return &computepb.ShieldedInstanceConfig{
		EnableSecureBoot:          proto.Bool(s.SecureBoot.Or(false)),
		EnableVtpm:                proto.Bool(s.VTPM.Or(true)),
		EnableIntegrityMonitoring: proto.Bool(s.IntegrityMonitoring.Or(true)),
	}
}
