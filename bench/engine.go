package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
)

var engineTargets = []target{
	{"engine-100000-cores", "<=", 1, func() (float64, string, error) {
		cores, _, detail, err := manyEndpoints(100_000)
		return cores, detail, err
	}},
	{"engine-100000-bytes", "<=", 700, func() (float64, string, error) {
		_, bytes, detail, err := manyEndpoints(100_000)
		return bytes, detail, err
	}},
}

// manyEndpoints runs an engine at its default interval of 15 s with a probe that
// costs nothing, and tells what the engine itself costs.
func manyEndpoints(n int) (cores, bytes float64, detail string, err error) {
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "secret")
	if err != nil {
		return 0, 0, "", err
	}
	before := heap()
	probes := make(chan struct{}, 1)
	e, err := health.NewEngine(health.EngineConfig{
		Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			select {
			case probes <- struct{}{}:
			default:
			}
			return health.Result{EndpointID: e.ID, Started: time.Now()}
		},
	})
	if err != nil {
		return 0, 0, "", err
	}
	defer e.Close()
	for i := range n {
		if err := e.Put(endpoint.Endpoint{ID: strconv.Itoa(i), URL: url}); err != nil {
			return 0, 0, "", err
		}
	}
	time.Sleep(16 * time.Second) // every first probe is made
	bytes = float64(heap()-before) / float64(n)
	cpu, began := cpuTime(), time.Now()
	time.Sleep(30 * time.Second)
	cores = float64(cpuTime()-cpu) / float64(time.Since(began))
	runtime.KeepAlive(e)
	return cores, bytes, fmt.Sprintf("%d endpoints every 15 s: %.3f cores, %.0f bytes each", n, cores, bytes), nil
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
