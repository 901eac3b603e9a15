// Package fleet keeps a number of healthy proxies alive on any provider.
//
//	f, err := fleet.New(fleet.Config{
//		Provider:  p,                                  // kvm, gcp, local, your own
//		Tag:       "crawl-eu",
//		Size:      10,
//		Request:   request,                            // user-data and placement for a UID
//		Endpoint:  endpointOf,                         // the proxy's URL on an instance
//		Health:    health.EngineConfig{Probe: prober.Probe},
//		Inventory: store,                              // where crawlers lease them
//	})
//	defer f.Close(ctx, fleet.Keep)
//	err = f.WaitReady(ctx, 5)
//
// # What it does
//
// For each missing proxy it draws a UID, asks [Config.Request] what to make,
// records both, and calls Create until the backend accepts. It polls the
// instance until it runs, has [Config.Endpoint] tell the proxy's URL, probes it,
// and passes each verdict to the inventory. What dies is replaced by another with
// a new UID:
//
//   - an instance that is gone, stopped or failed, at once;
//   - one that does not become healthy within the boot timeout;
//   - one that was healthy and has been unhealthy for [Config.UnhealthyTimeout],
//     a few at a time: a fifth of the fleet, and one by one while more than half
//     of it is unhealthy. A blip destroys nothing.
//
// A fleet may have several [Pool]s, which [Fleet.Resize] changes while it runs;
// [Fleet.Replace] ends one instance, and MaxAge each in its time. What is too many
// ends idle first, and never breaks a lease.
//
// Before an instance is deleted its endpoint is drained: no new leases, and time
// for those that are held. A proxy fault that a holder reports leads to an early
// probe, never to a deletion by itself.
//
// # What it never does
//
// It never has more than [Config.MaxSize] instances, counting those that are
// being made, are being deleted or do not answer. An error that retrying cannot
// help is reported by [Config.OnEvent] and retried slowly, never answered by
// making more.
//
// Where a place has no room, it is left alone for a minute, and longer each time,
// by all of the fleet. A provider that is a [provider.Placer] is asked for another
// place, and the next instance, with a UID of its own, goes there.
//
// # What a provider can do beyond
//
// A [provider.Watcher] has instances looked at as soon as it hears of a change; a
// poll every [Config.PollInterval], ten times less for those that serve, stays the
// truth. A [provider.ConsoleReader] gives the last line of its console to the
// reason for which an instance that does not boot is replaced. A
// [provider.Explainer] tells why one that was accepted is not there: where it was
// refused for want of room, its place counts as one without, and where it is still
// being made, it is waited for like one whose state is unknown.
//
// # Orphans
//
// What carries the tag and is not in the record, as a call of Create that landed
// late or a former fleet leaves it, is found by a list by tag every
// [Config.ListInterval] and adopted: it is counted, probed and leased, and what is
// too many then ends like all that is too many. It does not before it is
// [Config.OrphanAge] old, nor before a first look has told whether it is leased.
//
// A list may be partial. Nothing is made or ended before one was whole. Later, an
// instance that a list leaves out is kept and counted, whatever the reason: only a
// call of Get that says not found ends it. So a host that does not answer loses
// nothing, and is not made up for elsewhere.
//
// # A store that forgets
//
// Each look at a proxy that serves tells the inventory its verdict again, and puts in
// what it does not know any more. So a store whose data was lost, or is older than it
// was, has all endpoints again after ten times [Config.PollInterval].
//
// # Restarts
//
// Its record is memory. A new fleet adopts by tag what the former one left, so
// each tag must have one fleet. Proxy passwords need no store: derive them with
// [DerivePassword] from a key and the UID.
//
// A store may outlive the process, as one in a database does. Then an endpoint is the
// same after the restart, by its [endpoint.Endpoint.Generation]: its leases and bans go
// on, nobody else gets what is held, and nothing is leased before it is probed again.
// What stands there for a machine that ended meanwhile is taken out once a list was
// whole and all that it has were looked at. What the former process was draining and
// this one has no reason to end is leased again when its leases have ended. Whose an
// endpoint is the attribute "tag" tells, which is always the fleet's: fleets that share
// a store must have tags of their own.
package fleet
