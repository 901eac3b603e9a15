// Package endpoint describes a forward proxy as its client sees it, and builds
// the one kind of transport that goes through it.
//
// An [Endpoint] need not come from a provider: any proxy whose URL you know is
// one. Its [URL] carries credentials of any characters and never prints them.
//
// [NewTransport] makes an http.RoundTripper that sends everything through one
// proxy, and nothing ever past it. Probes and traffic share it, so that what a
// probe proves holds for the traffic:
//
//	proxy, err := endpoint.ParseURL("http://crawler:secret@192.0.2.7:3128")
//	transport, err := endpoint.NewTransport(proxy, endpoint.TransportConfig{})
//	client := &http.Client{Transport: transport}
//
// # One transport, one proxy
//
// A shared http.Transport with a Proxy function that rotates does not rotate:
// it keeps HTTP/2 connections by target and asks the function once. Here a
// transport belongs to one proxy for good. Make one for each, and call Close when
// you let go of it.
//
// # Errors
//
// A round trip that fails returns an [*Error] that names the [Stage] it got to,
// and with it whose fault it may be: up to [StageConnect] it is the proxy's,
// after that the target's. A refused CONNECT carries its HTTP status and
// Squid's own name for the error. Requests for http:// URLs are not tunnelled:
// an http proxy forwards them, and a refusal of its own comes back as a response
// like any other. Use https:// wherever you must tell the two apart.
//
// # Deadlines
//
// Dialling and TLS handshakes have timeouts of their own. A proxy that accepts a
// CONNECT and never answers is held only by the request's context, as is a
// body that never ends: always give one a deadline. The Timeout of http.Client
// works too, but its error hides the [*Error] of the stage.
package endpoint
