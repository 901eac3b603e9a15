// Package redislease leases one fleet's endpoints from many processes: a
// [lease.Store] and [lease.Inventory] on Redis or Valkey, version 7 or newer.
//
//	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{"redis.internal:6379"}})
//	store, err := redislease.New(redislease.Config{Client: client, Fleet: "eu"})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	l, err := store.Acquire(ctx, lease.Request{Holder: "crawler-1", Domain: "example.com"})
//
// Every process has a [Store] of its own with the same settings: crawlers use it as
// the store that they lease from, the owner of the endpoints as the inventory. What
// the documentation of package lease promises holds across all of them. Metrics are
// those of package leasemetrics, which takes any store.
//
// Each transition is one script that the server runs as a whole. So two holders are
// never granted one endpoint, whatever process dies at whatever moment. Deadlines
// are by the server's clock alone; what has become due happens at the beginning of
// the next script, whoever's it is. The holder judges its lease by its own clock,
// counted from before it asked, and stops first.
//
// # Waiting
//
// An endpoint that becomes free is granted, within the script that frees it, to the
// first who waits and whom it satisfies; newcomers overtake nobody. A message tells
// the waiter's process, and each waiter asks every PollInterval in case that it got
// lost, and when something is next due. A waiter that has not asked for ten seconds
// (or five PollIntervals, where that is longer) has lost its place, and one that was
// granted an endpoint and does not ask for it within that time has not had it.
//
// # The first start
//
// An empty database looks like one that has lost its data. Then holders may be out
// with leases that nobody knows of, so a store that finds none begins with a
// quarantine: nothing is leased for MaxTTL, and errors tell how long that still is.
// Set Fresh for the first start of a fleet alone.
//
// # How far tokens rise
//
// A token is higher than all that the server remembers, than all that the asking
// process has seen, and at least the server's time in microseconds. So it rises
//
//   - always, as long as the server keeps its data;
//   - over a loss of data, or a fail-over to a replica that lacks the last writes, as
//     long as the new server's clock is not behind the old one's by more than went
//     by in between, or a process that has seen the last token asks first.
//
// A process that sees another incarnation of the store than before, or one whose
// token is lower than it has seen, knows that grants or renewals were lost: it puts all
// endpoints into the same quarantine. A fail-over whose lost grants and renewals were
// all seen by processes that are gone too, or that ask only after others have, is not
// noticed in time: two may hold one endpoint then, under different tokens. Where that
// must not be, have the server write before it answers (appendfsync always), or refuse
// to write without a replica (min-replicas-to-write and min-replicas-max-lag), which
// narrows it to the lag.
//
// After a loss the endpoints are gone too, and SetVerdict says that it knows none of
// them: the owner puts them in again. Package fleet does. What was removed since the
// state to which a server fell back is there again: the owner removes it again.
//
// # When Redis does not answer
//
// All methods return when their context ends, even where the server hangs; Acquire
// takes half a second more at most, in which it asks why nothing came. Acquire waits
// for a server that is away as it waits for an endpoint. A call that was given up is
// ended in the background, so that it leaks no lease; a release is sent even where
// the context has ended.
//
// Of one store eight calls are under way at most. Those that come meanwhile wait, and
// then go together, up to 32 in one round trip: many goroutines may share a store.
//
// A holder whose renewals fail has its lease until its time is over, and
// [lease.Lease.Keep] then cancels the work. One whose lease was revoked, or lost with
// the data, learns it by its next renewal: with Keep, after a third of the lease's
// time at most.
//
// Where memory is full, nothing new is put and granted, with the server's error;
// renewing, reporting and releasing go on. Let maxmemory-policy be noeviction: any
// other one lets the server forget leases.
//
// # Keys
//
// All keys begin with "egress:{FLEET}:", so that a fleet is in one slot of a Cluster
// and any number of fleets share a server. Times are in microseconds since 1970.
//
//	hot            hash: packed, the incarnation, last token, last use, quarantine and
//	               more that there is one of; the classes of each selector, as far as
//	               asked for; what to skip for each domain that bans any
//	meta           hash: counters, and when the incarnation began
//	released       string: how many leases were released
//	ids            sorted set: the IDs of the endpoints
//	e:ID           hash: an endpoint with its URL, verdict, and packed its state and what
//	               its holders get
//	keys           list: the attributes that selectors have asked for
//	classes        hash: each combination of their values that there is
//	class:CLASS    hash: how many endpoints of it are where
//	free:CLASS     sorted set: its free endpoints, by last use
//	wide           set: the attributes of too many values to class by
//	with:KEY=VALUE set: the endpoints with that value of such an attribute
//	l:LEASE        string: a lease, packed; the token of one that expired, for ten
//	               minutes; or that one was given up, for one
//	lanes          sorted set: requests that are waited for, by their first
//	lane:REQUEST   sorted set: who waits for it, by arrival
//	w:LEASE        hash: one who waits
//	sessions       hash: the endpoint of each session
//	faces          hash: the egress address of each endpoint, or a name of its own
//	face:ADDRESS   set: the endpoints behind it
//	ban:DOMAIN     sorted set: addresses that the domain bans, by the ban's end
//	bans:DOMAIN    hash: how often, and from which token on
//	banned:ADDRESS set: the domains that ban it
//	skip:DOMAIN    hash: how many of each class need not be looked at, and how long
//	due            sorted set: what is to be looked at, by when
//	reports        stream: proxy faults, the last few thousand
//
// Channels are wake:PROCESS and reports behind the same prefix.
//
// A selector is matched against the classes, not the endpoints, and takes the least
// recently used free one of each that fits. The first selector that asks for an
// attribute has all endpoints classed anew, in one script; sixteen are kept. Where that
// would make more than 256 classes, the attribute of the most values, such as a name,
// is looked up by its value instead: In costs what the endpoints of those values do,
// and any other operator on it, without an In on such a one, looks at all. An endpoint
// that a domain bans is looked at once, and not by each acquire.
//
// # Rights
//
// The keys hold the proxies' credentials: use TLS, and a user of the fleet's own. It
// needs these rights, with its name, password and fleet:
//
//	ACL SETUSER crawlers on >PASSWORD resetchannels ~egress:{FLEET}:* &egress:{FLEET}:*
//	  -@all +eval +evalsha +time +publish +subscribe +unsubscribe +ping
//	  +del +get +set +incr
//	  +hget +hset +hdel +hmget +hgetall +hkeys +hlen +hincrby
//	  +zadd +zrem +zcard +zscore +zmscore +zrange +zrangebyscore +zrangebylex
//	  +sadd +srem +scard +smembers +lrange +rpush +ltrim +xadd +xrange +xrevrange
//
// With a Cluster, +cluster|slots and +command too.
package redislease
