// Package leasemetrics exports the statistics of a lease store to Prometheus.
//
//	err := leasemetrics.Register(store, prometheus.Labels{"store": "main"}, prometheus.DefaultRegisterer)
//
// The metrics are:
//
//	egress_lease_endpoints{state}    endpoints by where they stand: leased, free, unhealthy, …
//	egress_lease_waiting             acquires that wait
//	egress_lease_wait_seconds_total  time that acquires have waited, without those that wait
//	egress_lease_waits_total         acquires that had to wait
//	egress_lease_events_total{event} acquired, released, renewed, expired, revoked, canceled
//	egress_lease_outcomes_total{outcome} reports by their outcome
//	egress_lease_late_reports_total  reports for leases that had ended
//	egress_lease_dropped_reports_total  proxy faults that a slow reader lost
//	egress_lease_up                  1 if the store answered
package leasemetrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressfleet/egress/lease"
)

// askTimeout bounds the call to the store during a scrape.
const askTimeout = 5 * time.Second

// collector asks the store at each scrape.
type collector struct {
	store lease.Store

	endpoints, waiting, waitSeconds, waits, events, outcomes, late, dropped, up *prometheus.Desc
}

// Register adds the store's metrics to a registerer, with the labels given. One
// that is registered already is an error.
func Register(store lease.Store, labels prometheus.Labels, reg prometheus.Registerer) error {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("egress_lease_"+name, help, variable, labels)
	}
	return reg.Register(&collector{
		store:       store,
		endpoints:   desc("endpoints", "Endpoints by where they stand.", "state"),
		waiting:     desc("waiting", "Acquires that wait."),
		waitSeconds: desc("wait_seconds_total", "Time that acquires have waited."),
		waits:       desc("waits_total", "Acquires that had to wait."),
		events:      desc("events_total", "What became of leases.", "event"),
		outcomes:    desc("outcomes_total", "Reports by their outcome.", "outcome"),
		late:        desc("late_reports_total", "Reports for leases that had ended."),
		dropped:     desc("dropped_reports_total", "Proxy faults that a slow reader of reports lost."),
		up:          desc("up", "Whether the store answered."),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	s, err := c.store.Stats(ctx)
	if err != nil {
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0)
		return
	}
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1)
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(s.Waiting))
	ch <- prometheus.MustNewConstMetric(c.waitSeconds, prometheus.CounterValue, s.WaitTime.Seconds())
	ch <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(s.Waits))
	ch <- prometheus.MustNewConstMetric(c.late, prometheus.CounterValue, float64(s.LateReports))
	ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(s.DroppedReports))
	for state, n := range states(s.Endpoints) {
		ch <- prometheus.MustNewConstMetric(c.endpoints, prometheus.GaugeValue, float64(n), state)
	}
	for event, n := range map[string]int64{
		"acquired": s.Acquired, "released": s.Released, "renewed": s.Renewed,
		"expired": s.Expired, "revoked": s.Revoked, "canceled": s.Canceled,
	} {
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(n), event)
	}
	for outcome, n := range s.Outcomes {
		ch <- prometheus.MustNewConstMetric(c.outcomes, prometheus.CounterValue, float64(n), string(outcome))
	}
}

func states(c lease.Counts) map[string]int {
	return map[string]int{
		"draining": c.Draining, "unknown": c.Unknown, "unhealthy": c.Unhealthy,
		"leased": c.Leased, "cooling": c.Cooling, "free": c.Free,
	}
}
