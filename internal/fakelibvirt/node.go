package fakelibvirt

import (
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// ConnectGetLibVersion implements the function of go-libvirt.
func (c *Conn) ConnectGetLibVersion() (uint64, error) {
	return do(c, "virConnectGetLibVersion", "", func(h *Host) (uint64, error) {
		if h.LibVersion == 0 {
			return 9_000_000, nil
		}
		return h.LibVersion, nil
	})
}

// ConnectGetVersion implements the function of go-libvirt.
func (c *Conn) ConnectGetVersion() (uint64, error) {
	return do(c, "virConnectGetVersion", "", func(*Host) (uint64, error) { return 7_002_019, nil })
}

// ConnectGetDomainCapabilities implements the function of go-libvirt.
func (c *Conn) ConnectGetDomainCapabilities(_, _, _, _ libvirt.OptString, _ libvirt.ConnectGetDomainCapabilitiesFlags) (string, error) {
	return do(c, "virConnectGetDomainCapabilities", "", func(h *Host) (string, error) {
		efi := "<value>efi</value>"
		if h.NoFirmware {
			efi = ""
		}
		return "<domainCapabilities><os supported='yes'><enum name='firmware'>" + efi + "</enum></os></domainCapabilities>", nil
	})
}

// ConnectListAllNodeDevices implements the function of go-libvirt: the host has
// br0 and its card, unless NoBridges has them.
func (c *Conn) ConnectListAllNodeDevices(_ int32, _ uint32) ([]libvirt.NodeDevice, uint32, error) {
	devices, err := do(c, "virConnectListAllNodeDevices", "", func(h *Host) (found []libvirt.NodeDevice, err error) {
		for _, name := range []string{"br0", "enp1s0"} {
			if !strings.Contains(strings.Join(h.NoBridges, " "), name) {
				found = append(found, libvirt.NodeDevice{Name: "net_" + name + "_52_54_00_12_34_56"})
			}
		}
		return found, nil
	})
	return devices, uint32(len(devices)), err //nolint:gosec // few.
}

// StoragePoolGetAutostart implements the function of go-libvirt.
func (c *Conn) StoragePoolGetAutostart(pool libvirt.StoragePool) (int32, error) {
	return do(c, "virStoragePoolGetAutostart", pool.Name, func(h *Host) (int32, error) {
		if _, err := h.poolOf(pool); err != nil || h.NoAutostart {
			return 0, err
		}
		return 1, nil
	})
}
