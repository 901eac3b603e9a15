package kvm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

// The codes that are ours; the package's page explains them.
const (
	codeHostKeyUnknown     = "HostKeyUnknown"
	codeHostKeyChanged     = "HostKeyChanged"
	codeKeyMissing         = "KeyMissing"
	codeKeyInvalid         = "KeyInvalid"
	codeKeyLocked          = "KeyLocked"
	codeAgentUnusable      = "AgentUnusable"
	codeAuthRefused        = "AuthRefused"
	codeServerBusy         = "ServerBusy"
	codeForwardingRefused  = "ForwardingRefused"
	codeSocketUnreachable  = "SocketUnreachable"
	codeConnectionLost     = "ConnectionLost"
	codeNoAnswer           = "NoAnswer"
	codeFetchingImage      = "FetchingImage"
	codeNoConsole          = "NoConsole"
	codeVolumeChanged      = "VolumeChanged"
	codeBadPlacement       = "BadPlacement"
	codeNoBridge           = "NoBridge"
	codeNetworkInactive    = "NetworkInactive"
	codeNoVLAN             = "NoVLAN"
	codeNoMemory           = "NoMemory"
	codeNoSpace            = "NoSpace"
	codeHostFull           = "HostFull"
	codeAddressesExhausted = "AddressesExhausted"
	codeAddressConflict    = "AddressConflict"
	codeNoFirmware         = "NoFirmware"
	codeNoHypervisor       = "NoHypervisor"
	codeAmended            = "Amended"
	codeBadMetadata        = "BadMetadata"
)

// libvirtClasses is the one table of libvirt's codes. What is not in it is
// transient.
var libvirtClasses = map[libvirt.ErrorNumber]error{
	libvirt.ErrNoDomain: provider.ErrNotFound,

	libvirt.ErrNoStoragePool:        provider.ErrPermanent,
	libvirt.ErrNoNetwork:            provider.ErrPermanent,
	libvirt.ErrNoInterface:          provider.ErrPermanent,
	libvirt.ErrXMLError:             provider.ErrPermanent,
	libvirt.ErrXMLDetail:            provider.ErrPermanent,
	libvirt.ErrXMLInvalidSchema:     provider.ErrPermanent,
	libvirt.ErrConfigUnsupported:    provider.ErrPermanent,
	libvirt.ErrInvalidArg:           provider.ErrPermanent,
	libvirt.ErrArgumentUnsupported:  provider.ErrPermanent,
	libvirt.ErrNoSupport:            provider.ErrPermanent,
	libvirt.ErrOperationUnsupported: provider.ErrPermanent,
	libvirt.ErrAuthFailed:           provider.ErrPermanent,
	libvirt.ErrAuthCancelled:        provider.ErrPermanent,
	libvirt.ErrAuthUnavailable:      provider.ErrPermanent,
	libvirt.ErrAccessDenied:         provider.ErrPermanent,
	libvirt.ErrOperationDenied:      provider.ErrPermanent,

	libvirt.ErrNoMemory: provider.ErrQuotaExceeded,
}

// libvirtTexts refine the codes that libvirt uses for everything, by what
// QEMU or the kernel said. The first match counts.
var libvirtTexts = []struct {
	pattern *regexp.Regexp
	class   error
	code    string // replaces libvirt's if set
	remedy  string
}{
	{regexp.MustCompile(`No space left on device|Disk quota exceeded|Cannot allocate memory|not enough space`), provider.ErrQuotaExceeded, "", ""},
	{regexp.MustCompile(`(?i)unable to find any firmware|firmware.*(auto)?select`), provider.ErrPermanent, codeNoFirmware,
		"install ovmf (Debian, Ubuntu) or edk2-ovmf (RHEL, Fedora) on the host, or set the image's firmware to bios"},
	{regexp.MustCompile(`(Cannot get interface|Unable to get index for interface|Unable to add bridge|Failed to add tap interface).*No such device`), provider.ErrPermanent, codeNoBridge,
		"make the bridge or interface on the host, or correct hosts[].bridge or macvtap"},
	{regexp.MustCompile(`(?i)no network with matching name`), provider.ErrPermanent, "",
		"define it on the host (virsh net-define), or correct hosts[].network"},
	{regexp.MustCompile(`(?i)network '.*' is not active`), provider.ErrTransient, codeNetworkInactive,
		"start the network on the host: virsh net-start, virsh net-autostart"},
	{regexp.MustCompile(`(?i)vlan tag.*not supported`), provider.ErrPermanent, codeNoVLAN,
		"use a bridge of Open vSwitch (openVSwitch: true), libvirt 11 and a bridge with vlan_filtering, or a bridge on an interface for the tag and no vlan"},
	{regexp.MustCompile(`Unable to add port .* to OVS bridge`), provider.ErrTransient, "",
		"is it a bridge of Open vSwitch, and does that run there? Else leave out hosts[].openVSwitch"},
	{regexp.MustCompile(`storage pool '.*' is not active`), provider.ErrTransient, "", "start the pool on the host: virsh pool-start, virsh pool-autostart"},
}

// libvirtCode returns the number of libvirt's error in err, and whether there
// is one.
func libvirtCode(err error) (libvirt.ErrorNumber, bool) {
	var e libvirt.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return libvirt.ErrorNumber(e.Code), true //nolint:gosec // libvirt's codes are small.
}

func isLibvirt(err error, code libvirt.ErrorNumber) bool {
	got, ok := libvirtCode(err)
	return ok && got == code
}

// isBusy tells of a volume or pool that somebody works on at this moment.
func isBusy(err error) bool {
	var e libvirt.Error
	return errors.As(err, &e) && (strings.Contains(e.Message, "still in use") ||
		strings.Contains(e.Message, "still being allocated") ||
		strings.Contains(e.Message, "asynchronous jobs running"))
}

// isMissingFile tells that a volume's file, or that of its base, is not there.
func isMissingFile(err error) bool {
	var e libvirt.Error
	return errors.As(err, &e) && strings.Contains(e.Message, "No such file or directory")
}

// isConsoleLog tells of a console whose log libvirt cannot write.
func isConsoleLog(err error) bool {
	var e libvirt.Error
	return errors.As(err, &e) && strings.Contains(e.Message, consoleSuffix)
}

// classify gives a class and a code to an error that has none.
func classify(err error) *provider.Error {
	var known *provider.Error
	if errors.As(err, &known) {
		return &provider.Error{Class: known.Class, Code: known.Code, Scope: known.Scope, ID: known.ID, RetryAfter: known.RetryAfter, Err: stripped(err, known)}
	}
	var lv libvirt.Error
	switch {
	case errors.As(err, &lv):
		return classifyLibvirt(err, lv)
	case errors.Is(err, libvirt.ErrUnsupported):
		return &provider.Error{Class: provider.ErrPermanent, Code: "ErrNoSupport", Err: fmt.Errorf("the host's libvirt is too old: %w", err)}
	}
	return &provider.Error{Class: provider.ErrTransient, Err: err}
}

// stripped is err without the outer shell where that is the known error
// itself, whose parts the new error shows.
func stripped(err error, known *provider.Error) error {
	if err == error(known) && known.Err != nil { //nolint:errorlint // the shell itself is asked for.
		return known.Err
	}
	return err
}

func classifyLibvirt(err error, lv libvirt.Error) *provider.Error {
	number := libvirt.ErrorNumber(lv.Code) //nolint:gosec // libvirt's codes are small.
	out := &provider.Error{Class: libvirtClasses[number], Code: number.String(), Err: err}
	if out.Class == nil {
		out.Class = provider.ErrTransient
	}
	for _, t := range libvirtTexts {
		if !t.pattern.MatchString(lv.Message) {
			continue
		}
		out.Class, out.Code = t.class, or(t.code, out.Code)
		if t.remedy != "" {
			out.Err = fmt.Errorf("%w: %s", err, t.remedy)
		}
		break
	}
	return out
}

// failure is the error of one method of the contract.
func (p *Provider) failure(op, id, host string, err error) error {
	if err == nil {
		return nil
	}
	out := classify(err)
	out.Op, out.Provider, out.ID = op, p.cfg.Name, or(id, out.ID)
	if id == "" || out.Class == provider.ErrQuotaExceeded { //nolint:errorlint // a sentinel itself.
		out.Scope = or(host, out.Scope)
	}
	return out
}
