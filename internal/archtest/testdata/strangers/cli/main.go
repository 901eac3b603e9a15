// A command that makes one machine on a provider of a file, and deletes it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

const file = `
providers:
  - name: dev
    type: local
  - name: rack
    type: kvm
    kvm:
      machineTypes: {small: {vcpus: 1, memoryMiB: 512}}
      images: {debian: {url: "https://images.example.com/debian.qcow2"}}
      hosts: [{name: here, address: local, network: default}]
`

func main() {
	providers, err := registry.Parse([]byte(file), registry.Types{
		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
			cfg.Name = name
			return local.New(cfg)
		}),
		"kvm": registry.For(func(name string, cfg kvm.Config) (*kvm.Provider, error) {
			cfg.Name = name
			return kvm.New(cfg)
		}),
	})
	check(err)
	check(providers.Err())
	fmt.Println(providers.Names())
	p, err := providers.Get("dev")
	check(err)

	squid := cloudinit.Squid{SaltSeed: "one", Users: []cloudinit.SquidUser{{Name: "crawler", Password: "a password"}}}
	userData, err := squid.UserData()
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id, err := p.Create(ctx, provider.CreateRequest{UID: "one", Tag: "stranger", UserData: userData})
	check(err)
	in, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{})
	check(err)
	fmt.Println(in.State, in.Name)
	check(provider.WaitGone(ctx, p, id, provider.WaitOptions{}))
	check(providers.Close())
}

func check(err error) {
	if err != nil {
		log.Println(err)
		os.Exit(1)
	}
}
