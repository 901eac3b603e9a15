// The operator keeps Proxies: machines with a forward proxy on each, which crawlers
// lease. docs/operator.md is its guide.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/egressfleet/egress/examples/operator/internal/manager"
	"github.com/egressfleet/egress/examples/operator/internal/providers"
	"github.com/egressfleet/egress/examples/operator/internal/tracing"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "egress-operator:", err)
		os.Exit(1)
	}
}

func run() error {
	var o manager.Options
	var logging zap.Options
	fs := flag.NewFlagSet("egress-operator", flag.ContinueOnError)
	o.Bind(fs)
	o.Environ()
	logging.BindFlags(fs)
	showVersion := fs.Bool("version", false, "print the version and end")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "how to reach the cluster from outside of it (default that of the pod, $KUBECONFIG, or ~/.kube/config)")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	if *showVersion {
		fmt.Println(version())
		return nil
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	log := ctrl.Log.WithName("egress")
	log.Info("starting", "version", version())

	cfg, err := manager.RESTConfig(o.Kubeconfig)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	tracer, flush, err := tracing.Open(ctx, version())
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = flush(end)
	}()
	metrics.Registry.MustRegister(buildInfo())
	err = manager.Run(ctx, cfg, o, manager.Hooks{Tracer: tracer, Metrics: metrics.Registry}, log)
	if errors.Is(err, providers.ErrChanged) {
		log.Info("ending, to be started again with the new providers file")
		return nil
	}
	return err
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = " " + s.Value
		}
	}
	return info.Main.Version + revision + " " + info.GoVersion
}

func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "egress_operator_build_info", Help: "1, with the version that runs.",
		ConstLabels: prometheus.Labels{"version": version()},
	}, func() float64 { return 1 })
}
