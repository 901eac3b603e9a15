// Package health proves proxies by fetching through them, and keeps a verdict
// on each.
//
// A [Prober] makes one probe: through the proxy, on a connection of its own, to
// a target whose TLS certificate it verifies, until the last byte of the body,
// under one deadline. It follows no redirect and retries nothing: a page that
// asks you to log in is not a success. A failure names the stage it happened in.
//
//	prober, err := health.NewProber(health.ProbeConfig{URL: "https://example.com/"})
//	result := prober.Probe(ctx, proxy)
//	fmt.Println(result.Err, result.Timings.Total, result.EgressIP)
//
// An [Engine] probes many endpoints, each at its interval, and turns results
// into verdicts by thresholds:
//
//	engine, err := health.NewEngine(health.EngineConfig{
//		Probe:        prober.Probe,
//		OnTransition: func(t health.Transition) error { ... },
//	})
//	defer engine.Close()
//	err = engine.Put(proxy)
//
// # Verdicts
//
// A new endpoint is Unknown, and its first success makes it Healthy. From then
// on three failures in a row make it Unhealthy and two successes Healthy again.
// Between the two, and while it is Unknown, it is probed every few seconds; the
// longer it fails, the less often. Only transitions are told.
//
// # Whose fault it is
//
// A failure to reach the proxy, or to get a tunnel from it, is the proxy's. One
// behind the tunnel may be the target's: it counts only while the target answers
// through others. A target that fails through most endpoints is suspended until
// it answers again, and [EngineConfig.OnTarget] is told; when one fails, a few
// healthy endpoints are probed at once to find out. With several
// [EngineConfig.Targets] a round goes on to the next one, and a proxy that reaches
// any of them is healthy.
//
// A result belongs to the generation of the endpoint that was probed: what
// comes in after the endpoint was removed or changed is dropped.
//
// # Cost
//
// An idle engine has one timer and no goroutine. Probes in flight are bounded,
// and the first ones are spread over an interval.
package health
