// Package fleetmetrics exports what a fleet has to Prometheus.
//
//	err := fleetmetrics.Register(f, prometheus.Labels{"fleet": "crawl-eu"}, prometheus.DefaultRegisterer)
//
// The metrics are:
//
//	egress_fleet_instances{pool,phase}  instances by where they stand
//	egress_fleet_wanted{pool}           how many healthy proxies are wanted
//	egress_fleet_healthy{pool}          how many there are
//	egress_fleet_events_total{type}     what happened, by type of event
package fleetmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
)

// collector asks the fleet at each scrape.
type collector struct {
	fleet *fleet.Fleet

	instances, wanted, healthy, events *prometheus.Desc
}

// Register adds the fleet's metrics to a registerer, with the labels given. One
// that is registered already is an error.
func Register(f *fleet.Fleet, labels prometheus.Labels, reg prometheus.Registerer) error {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("egress_fleet_"+name, help, variable, labels)
	}
	return reg.Register(&collector{
		fleet:     f,
		instances: desc("instances", "Instances by where they stand.", "pool", "phase"),
		wanted:    desc("wanted", "How many healthy proxies are wanted.", "pool"),
		healthy:   desc("healthy", "How many healthy proxies there are.", "pool"),
		events:    desc("events_total", "What happened, by type of event.", "type"),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

var phases = []fleet.Phase{
	fleet.PhaseCreating, fleet.PhaseBooting, fleet.PhaseServing, fleet.PhaseDraining, fleet.PhaseDeleting,
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	instances, healthy := map[string]map[fleet.Phase]int{}, map[string]int{}
	for _, s := range c.fleet.Status() {
		if instances[s.Pool] == nil {
			instances[s.Pool] = map[fleet.Phase]int{}
		}
		instances[s.Pool][s.Phase]++
		if s.Phase == fleet.PhaseServing && s.Verdict.Health == endpoint.Healthy {
			healthy[s.Pool]++
		}
	}
	for pool, wanted := range c.fleet.Sizes() {
		ch <- prometheus.MustNewConstMetric(c.wanted, prometheus.GaugeValue, float64(wanted), pool)
		ch <- prometheus.MustNewConstMetric(c.healthy, prometheus.GaugeValue, float64(healthy[pool]), pool)
		for _, phase := range phases {
			ch <- prometheus.MustNewConstMetric(c.instances, prometheus.GaugeValue, float64(instances[pool][phase]), pool, string(phase))
		}
	}
	for kind, n := range c.fleet.EventCounts() {
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(n), string(kind))
	}
}
