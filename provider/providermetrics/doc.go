// Package providermetrics counts and times the calls of a provider for
// Prometheus.
//
//	p, err := providermetrics.New(rack, "rack-1", registry)
//
// The metrics, with op one of Create, Get, Delete and ListByTag:
//
//	egress_provider_calls_total{provider,op,class}          counter
//	egress_provider_call_duration_seconds{provider,op}      histogram, 10 ms to 20 min
//	egress_provider_calls_in_flight{provider,op}            gauge
//
// The class is that of [provider.Class], a closed set: ok, canceled, not_found,
// quota_exceeded, permanent, transient. A useful alert is the share of
// transient and permanent ones over some minutes:
//
//	sum by (provider) (rate(egress_provider_calls_total{class=~"transient|permanent"}[10m]))
//	  / sum by (provider) (rate(egress_provider_calls_total[10m])) > 0.5
//
// Several providers share one registerer, told apart by their names. Optional
// interfaces of the provider stay reachable by [provider.As]; their calls are
// not counted.
package providermetrics
