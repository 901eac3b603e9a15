package cloudinit_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/egressfleet/egress/cloudinit"
)

func ExampleSeed() {
	seed := cloudinit.Seed{
		MetaData: cloudinit.MetaData{InstanceID: "proxy-1", LocalHostname: "proxy-1"},
		UserData: []byte("#cloud-config\nruncmd: [reboot]\n"),
	}
	image, err := seed.ISO()
	if err != nil {
		panic(err)
	}
	fmt.Println(seed)
	fmt.Println(len(image)%2048, string(image[16*2048+40:16*2048+46]))
	// Output:
	// seed proxy-1 (user-data 31 bytes, vendor-data 0 bytes, network-config 0 bytes)
	// 0 cidata
}

func ExampleNetwork() {
	doc, err := cloudinit.Network{Interfaces: []cloudinit.Interface{{
		MAC:         "52:54:00:00:00:01",
		Addresses:   []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")},
		Gateways:    []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Nameservers: []netip.Addr{netip.MustParseAddr("192.0.2.53")},
		Search:      []string{"example.com"},
	}}}.YAML()
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(doc)
	// Output:
	// version: 2
	// ethernets:
	//   "nic0":
	//     match:
	//       macaddress: "52:54:00:00:00:01"
	//     dhcp4: false
	//     dhcp6: false
	//     addresses: ["192.0.2.10/24"]
	//     routes:
	//       - to: "0.0.0.0/0"
	//         via: "192.0.2.1"
	//     nameservers:
	//       addresses: ["192.0.2.53"]
	//       search: ["example.com"]
}

func ExampleWithGuestAgent() {
	vendorData, err := cloudinit.WithGuestAgent([]byte("#cloud-config\ntimezone: Etc/UTC\n"))
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(vendorData)) {
		if strings.HasPrefix(line, "Content-Type: text/") {
			fmt.Print(line)
		}
	}
	// Output:
	// Content-Type: text/x-shellscript; charset="us-ascii"
	// Content-Type: text/plain; charset="us-ascii"
}

func ExampleMultipart() {
	doc, err := cloudinit.Multipart(
		cloudinit.Part{Content: []byte("#cloud-config\npackages: [curl]\n")},
		cloudinit.Part{ContentType: cloudinit.ContentTypeScript, Filename: "hello.sh", Content: []byte("#!/bin/sh\necho hello\n")},
	)
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.SplitN(string(doc), "\n", 2)[0])
	// Output: MIME-Version: 1.0
}

func ExampleSquid() {
	userData, err := cloudinit.Squid{
		Clients:  []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
		Users:    []cloudinit.SquidUser{{Name: "crawler", Password: "correct horse: battery staple"}},
		SaltSeed: "proxy-1",
	}.UserData()
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.Contains(string(userData), "battery"))
	// Output: false
}

func ExampleSquid_Validate() {
	err := cloudinit.Squid{
		Port:  70000,
		Users: []cloudinit.SquidUser{{Name: "a:b", Password: "secret"}},
	}.Validate()
	fmt.Println(err)
	// Output:
	// port: 70000: not a TCP port; use 1 to 65535, or leave it out for 3128
	// users[0].name: "a:b": holds a colon, which basic authentication takes for the end of the name; choose another
}
