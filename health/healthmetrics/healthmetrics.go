// Package healthmetrics exports what a health engine knows to Prometheus.
//
//	err := healthmetrics.Register(engine, nil, prometheus.DefaultRegisterer)
//
// The metrics are:
//
//	egress_health_endpoints{health}             endpoints by their verdict
//	egress_health_probe_seconds{stage,quantile} how long successful probes took
//	egress_health_probes_ok_total               successful probes
//	egress_health_target_suspended{target}      1 if failures of the target do not count
//	egress_health_target_failing{target}        endpoints through which the target failed last
//
// There is no metric for each endpoint: their names come and go. Engine.Snapshot
// has them.
package healthmetrics

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
)

// collector asks the engine at each scrape.
type collector struct {
	engine *health.Engine

	endpoints, seconds, probes, suspended, failing *prometheus.Desc
}

// Register adds the engine's metrics to a registerer, with the labels given. One
// that is registered already is an error.
func Register(engine *health.Engine, labels prometheus.Labels, reg prometheus.Registerer) error {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("egress_health_"+name, help, variable, labels)
	}
	return reg.Register(&collector{
		engine:    engine,
		endpoints: desc("endpoints", "Endpoints by their verdict.", "health"),
		seconds:   desc("probe_seconds", "How long successful probes took, by stage.", "stage", "quantile"),
		probes:    desc("probes_ok_total", "Successful probes."),
		suspended: desc("target_suspended", "Whether failures on the target's side do not count.", "target"),
		failing:   desc("target_failing", "Endpoints through which the target failed last.", "target"),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counts := map[endpoint.Health]int{endpoint.Unknown: 0, endpoint.Healthy: 0, endpoint.Unhealthy: 0}
	for _, s := range c.engine.Snapshot() {
		counts[s.Verdict.Health]++
	}
	for h, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.endpoints, prometheus.GaugeValue, float64(n), string(h))
	}
	latency := c.engine.Latency()
	ch <- prometheus.MustNewConstMetric(c.probes, prometheus.CounterValue, float64(latency[0].Count))
	for stage, l := range latency {
		name := "total"
		if stage != 0 {
			name = stage.String()
		}
		ch <- prometheus.MustNewConstMetric(c.seconds, prometheus.GaugeValue, l.P50.Seconds(), name, "0.5")
		ch <- prometheus.MustNewConstMetric(c.seconds, prometheus.GaugeValue, l.P90.Seconds(), name, "0.9")
		ch <- prometheus.MustNewConstMetric(c.seconds, prometheus.GaugeValue, l.P99.Seconds(), name, "0.99")
	}
	for _, t := range c.engine.Targets() {
		name, suspended := cmp.Or(t.Name, "default"), 0.0
		if t.Suspended {
			suspended = 1
		}
		ch <- prometheus.MustNewConstMetric(c.suspended, prometheus.GaugeValue, suspended, name)
		ch <- prometheus.MustNewConstMetric(c.failing, prometheus.GaugeValue, float64(t.Failing), name)
	}
}
