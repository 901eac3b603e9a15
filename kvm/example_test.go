package kvm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// A host, an image and a size are all that is needed for an instance.
func Example() {
	p, err := kvm.New(kvm.Config{
		SSHKeyFile:     "/etc/egress/id_ed25519",
		KnownHostsFile: "/etc/egress/known_hosts",
		Hosts:          []kvm.Host{{Name: "kvm1", Address: "kvm1.example.com:22", User: "egress", Bridge: "br0"}},
		MachineTypes:   map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 1024}},
		Images:         map[string]kvm.Image{"debian13": {URL: "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	ctx, cancel := context.WithTimeout(context.Background(), provider.BootTimeout)
	defer cancel()
	id, err := p.Create(ctx, provider.CreateRequest{
		UID: "8c1f0e0c", Tag: "crawler-a", UserData: provider.UserData("#cloud-config\npackages: [squid]\n"),
	})
	if err != nil {
		log.Fatal(err)
	}
	instance, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(instance.Address())
}

// The configuration is plain data and can be read from a file.
func ExampleConfig() {
	var cfg kvm.Config
	err := json.Unmarshal([]byte(`{
		"hosts": [{"name": "here", "address": "local", "bridge": "br0"}],
		"machineTypes": {"small": {"vcpus": 1, "memoryMiB": 1024}},
		"images": {"debian13": {"url": "debian-13.qcow2"}},
		"timeouts": {"dial": "5s"}
	}`), &cfg)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Validate())
	// Output: images.debian13.url: must be an http, https or file URL, or an absolute path
}

// Trace shows a person how far a Create is, and how much of the image has
// arrived.
func ExampleTrace() {
	cfg := kvm.Config{
		Trace: &kvm.Trace{
			Step: func(ctx context.Context, info kvm.StepInfo) (context.Context, func(error)) {
				start := time.Now()
				return ctx, func(err error) { fmt.Println(info.Step, time.Since(start), err) }
			},
		},
		Progress: func(p kvm.ImageProgress) { fmt.Printf("\r%s: %d of %d bytes", p.Volume, p.Bytes, p.Total) },
	}
	_ = cfg // with Hosts, MachineTypes and Images, for New
}

// AmendDomain changes what the definition does not offer, here the limit of the
// network card's bandwidth.
func ExampleConfig_amendDomain() {
	cfg := kvm.Config{
		AmendDomain: func(d *libvirtxml.Domain) error {
			average := 12500 // KiB/s
			d.Devices.Interfaces[0].Bandwidth = &libvirtxml.DomainInterfaceBandwidth{
				Outbound: &libvirtxml.DomainInterfaceBandwidthParams{Average: &average},
			}
			return nil
		},
	}
	_ = cfg // with Hosts, MachineTypes and Images, for New
}

// Hosts in a closed network are reached through a bastion, with a key whose
// passphrase the program knows, and give static addresses to their instances.
func ExampleConfig_hosts() {
	cfg := kvm.Config{
		SSHKeyFile:     "/etc/egress/id_ed25519",
		KnownHostsFile: "/etc/egress/known_hosts",
		Passphrase: func(_ context.Context, _ string) ([]byte, error) {
			return os.ReadFile("/run/secrets/passphrase")
		},
		Hosts: []kvm.Host{{
			Name: "kvm1", Address: "qemu+ssh://egress@10.20.0.11/system", Jump: "gate@bastion.example.com",
			Bridge: "br0", MaxInstances: 40,
			Addresses: []string{"198.51.100.10-198.51.100.49/24"}, Gateways: []string{"198.51.100.1"}, Nameservers: []string{"198.51.100.1"},
		}, {
			Name: "kvm2", Address: "qemu+ssh://egress@10.20.0.12/system", Jump: "gate@bastion.example.com",
			Network: "default",
		}},
		MachineTypes: map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 1024}},
	}
	fmt.Println(cfg.Validate())
	// Output: <nil>
}

// The definition of a domain can be built without a host.
func ExampleDomainSpec() {
	domain := kvm.DomainSpec{
		Name:       "proxy-example",
		Hypervisor: kvm.Hypervisor{Type: "kvm", Arch: "x86_64", Machine: "q35"},
		Machine:    kvm.MachineType{VCPUs: 2, MemoryMiB: 2048},
		Firmware:   "uefi",
		Disk:       "/var/lib/libvirt/images/proxy-example.qcow2",
		Seed:       "/var/lib/libvirt/images/proxy-example-seed.iso",
		Bridge:     "br0", MAC: "52:54:00:00:00:01",
	}.Domain()
	fmt.Println(domain.OS.Firmware, domain.CPU.Mode, domain.Devices.Disks[1].Target.Bus)
	// Output: efi host-passthrough virtio
}
