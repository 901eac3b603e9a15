// Package leasehttp serves a lease store over HTTP, for crawlers on other machines
// and in other languages, and has the client for Go, which is itself a
// [lease.Store].
//
//	handler, err := leasehttp.NewHandler(leasehttp.HandlerConfig{
//		Store:   store,
//		Clients: map[string]string{"crawler-1": token},
//	})
//	server := &http.Server{Addr: ":8090", Handler: handler, ReadHeaderTimeout: 10 * time.Second}
//	err = server.ListenAndServeTLS("server.crt", "server.key")
//
//	store, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: "https://egress.example:8090", Token: token})
//	l, err := store.Acquire(ctx, lease.Request{Holder: "worker-7", Domain: "example.com"})
//
// # The API
//
// All bodies are JSON; the OpenAPI document is served at /v1/openapi.json.
//
//	GET  /v1/endpoints            every endpoint, without its credentials
//	GET  /v1/stats                counts
//	POST /v1/leases?wait=30s      acquire: 201 with the proxy's URL, its credentials in it
//	POST /v1/leases/{id}/renew    200 with the time to live that was granted
//	POST /v1/leases/{id}/release  204, also for a lease that is not known
//	POST /v1/leases/{id}/report   204, also when it comes too late
//	DELETE /v1/requests/{id}      give up an acquire: 204
//
// Durations are strings such as "30s". Times to live count from when the client
// sent its request: clocks are never compared.
//
// An acquire carries a request ID that the client chose. The same ID gets the
// same lease, so a reply that was lost leaks nothing: send it again. Without a
// wait the answer comes at once. With one it comes when a proxy is free or the
// wait is over; a client that asks again with the same ID within
// [HandlerConfig.PollGrace] keeps its place in the queue.
//
// # Errors
//
// An error is {"error": {"code": ..., "message": ...}} with one of these:
//
//	400 bad_request   malformed JSON, an unknown field, a value that is refused
//	401 unauthorized  no or a wrong bearer token
//	404 no_match      no endpoint could ever satisfy the request; not_found: no such path
//	408 too_slow      the body did not arrive within [HandlerConfig.BodyTimeout]
//	409 not_held      the token is not that of the lease
//	410 expired       the lease has ended
//	413 too_large     the body is longer than allowed
//	503 none_free     none is free now, with Retry-After; unavailable: the store fails
//
// # Security
//
// Each client has a bearer token of its own, compared in constant time. A handler
// without clients is refused unless Anonymous is set. Answers hold proxy
// passwords: serve over TLS, or on loopback.
//
// Clients share the endpoints and nothing else. A lease's ID carries a seal by its
// client's bearer token: to everyone else the lease is one that never was, which
// they can neither renew nor release nor report for. Request IDs, holders and
// sessions are each client's own. A list tells every client who holds what, without
// tokens and seals. A client that gets another bearer token loses its leases.
package leasehttp
