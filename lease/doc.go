// Package lease lends proxies to those who crawl, by default to one holder at a
// time.
//
// A [Store] is what holders use: acquire a lease for a domain, fetch through
// it, report how it went, release it.
//
//	l, err := store.Acquire(ctx, lease.Request{Holder: "crawler-1", Domain: "example.com"})
//	if err != nil {
//		return err
//	}
//	defer l.Release(ctx)
//	resp, err := l.Client().Get("https://example.com/")
//	_ = l.Report(ctx, lease.Judge(resp, err))
//
// An [Inventory] is what owners use: put endpoints in, pass verdicts on, drain
// and remove them. [Memory] is both, within one process. Two processes with a
// Memory each would lease the same proxy twice: run one, or share a store.
//
// # What is leased
//
// Only an endpoint with a Healthy verdict, which is not draining, not held and
// not cooling down. Of those that fit, the least recently used goes first.
// [Store.Acquire] waits its turn until its context ends; its error then says
// why nothing came. [Store.TryAcquire] answers at once.
//
// A [Selector] chooses by the endpoints' attributes, such as a region. A session
// keeps its requests on one endpoint. Where several holders may share an endpoint,
// a new one, and one that has failed, is on probation: it has one holder until that
// reports an OK.
//
// Work that outlasts a lease's time is done under [Lease.Keep], which renews the
// lease in the background and cancels the work when it is lost.
//
// # Failing closed
//
// A lease that is released, expired or revoked is lost for good: requests in
// flight are cancelled and new ones fail with [ErrLost]. There is no request
// without a proxy. The lease's end is judged by the holder's own clock, counted
// from before the request for it was sent, so that the holder stops first.
// After an expiry or a revocation, not after a release, the endpoint stays
// unused for a lock delay: the old holder may still be sending.
//
// # Reports
//
// An [Outcome] says how a request went. A proxy fault cools the endpoint down,
// and comes out of [Inventory.Reports] for whoever probes. A target that blocks
// cools the endpoint down for that domain alone, with all others that leave by the
// same egress address, and no good probe lifts that. Both grow with repetition and
// end with success; failures that were in flight together count once. Nothing else
// has consequences: a target's 404 is not the proxy's fault.
package lease
