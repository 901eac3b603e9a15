// Package local is a provider whose instances are forward proxies inside this
// process, each on a port of its own on loopback.
//
// It serves development without a hypervisor, and tests of whatever loops over
// a provider: its [Host] stands for the machine that the instances live on, goes
// on when a [Provider] is thrown away, as a hypervisor does when an operator
// restarts, and misbehaves on demand.
//
//	host, err := local.NewHost(local.HostConfig{BootDelay: time.Second})
//	defer host.Close()
//	p, err := local.New(local.Config{Host: host, Username: "crawler", Password: "secret"})
//
// The proxies speak CONNECT and plain http with basic authentication, and
// resolve names by a map first. They are not hardened: they listen on loopback
// only, and are no substitute for Squid on a VM.
//
// [Provider.Endpoint] turns an instance into an endpoint with its port and
// credentials; give it to a fleet as its hook.
package local
