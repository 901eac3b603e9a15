package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kdomanski/iso9660"

	"github.com/egressfleet/egress/cloudinit"
)

var seedTargets = []target{
	{"seed-microseconds", "<=", 100, func() (float64, string, error) {
		var us []float64
		for range rounds {
			us = append(us, nsPerOp(oursSeed)/1000)
		}
		return median(us), fmt.Sprintf("%s µs, no file written", spread(us)), nil
	}},
	{"seed-kdomanski", "<=", 1, func() (float64, string, error) {
		ratio, detail := pair(oursSeed, kdomanskiSeed)
		return ratio, detail, nil
	}},
}

var userData = bytes.Repeat([]byte("#cloud-config\n"), 200)

func oursSeed(b *testing.B) {
	for b.Loop() {
		_, err := cloudinit.Seed{
			MetaData: cloudinit.MetaData{InstanceID: "proxy-a", LocalHostname: "proxy-a"},
			UserData: userData, VendorData: cloudinit.GuestAgentScript(),
		}.ISO()
		must(err)
	}
}

func kdomanskiSeed(b *testing.B) {
	for b.Loop() {
		w, err := iso9660.NewWriter()
		must(err)
		for name, content := range map[string][]byte{
			"meta-data": []byte("instance-id: proxy-a\n"), "user-data": userData, "vendor-data": cloudinit.GuestAgentScript(),
		} {
			must(w.AddFile(bytes.NewReader(content), name))
		}
		var out bytes.Buffer
		must(w.WriteTo(&out, "cidata"))
		must(w.Cleanup())
	}
}
