package providermetrics_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providermetrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub answers every call with the same error, after a while.
type stub struct {
	err   error
	delay time.Duration
	panic bool
}

func (s *stub) answer() error {
	if s.panic {
		panic("a bug")
	}
	time.Sleep(s.delay)
	return s.err
}

func (s *stub) Create(context.Context, provider.CreateRequest) (string, error) {
	return "the id", s.answer()
}
func (s *stub) Get(context.Context, string) (provider.Instance, error) {
	return provider.Instance{Name: "the name"}, s.answer()
}
func (s *stub) Delete(context.Context, string) error { return s.answer() }
func (s *stub) ListByTag(context.Context, string) ([]provider.Instance, error) {
	return []provider.Instance{{Name: "the name"}}, s.answer()
}

func measure(t *testing.T, p provider.Provider, name string, reg prometheus.Registerer) *providermetrics.Provider {
	t.Helper()
	m, err := providermetrics.New(p, name, reg)
	require.NoError(t, err)
	return m
}

// Whatever the interface comes to have is measured, and passed on.
func TestEveryMethodIsMeasured(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := measure(t, &stub{err: io.EOF}, "rack-1", reg)
	methods := reflect.TypeFor[provider.Provider]()
	for i := range methods.NumMethod() {
		method := methods.Method(i)
		args := []reflect.Value{reflect.ValueOf(t.Context())}
		for j := 1; j < method.Type.NumIn(); j++ {
			args = append(args, reflect.Zero(method.Type.In(j)))
		}
		results := reflect.ValueOf(m).MethodByName(method.Name).Call(args)
		assert.Equal(t, io.EOF, results[len(results)-1].Interface(), method.Name)
		for _, r := range results[:len(results)-1] {
			assert.False(t, r.IsZero(), "%s: its result is lost", method.Name)
		}
		assert.Equal(t, 1.0, callsOf(t, reg, "rack-1", method.Name, "transient"), method.Name)
	}
	for _, metric := range []string{"egress_provider_calls_total", "egress_provider_call_duration_seconds", "egress_provider_calls_in_flight"} {
		n, err := testutil.GatherAndCount(reg, metric)
		require.NoError(t, err)
		assert.Equal(t, methods.NumMethod(), n, metric)
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// callsOf reads one counter from what the registry gives out.
func callsOf(t *testing.T, reg *prometheus.Registry, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "egress_provider_calls_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if got["provider"] == labels[0] && got["op"] == labels[1] && got["class"] == labels[2] {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestClassesAreTheClosedSet(t *testing.T) {
	for class, err := range map[string]error{
		"ok": nil, "canceled": context.Canceled, "not_found": &provider.Error{Class: provider.ErrNotFound},
		"quota_exceeded": &provider.Error{Class: provider.ErrQuotaExceeded}, "permanent": provider.ErrPermanent,
		"transient": errors.New("no route to host"),
	} {
		reg := prometheus.NewRegistry()
		m := measure(t, &stub{err: err}, "p", reg)
		_, got := m.Get(t.Context(), "")
		assert.Equal(t, err, got)
		assert.Equal(t, 1.0, callsOf(t, reg, "p", "Get", class), class)
	}
}

func TestSeveralProvidersShareARegisterer(t *testing.T) {
	reg := prometheus.NewRegistry()
	a, b := measure(t, &stub{}, "a", reg), measure(t, &stub{}, "b", reg)
	again := measure(t, &stub{}, "a", reg)
	for _, m := range []*providermetrics.Provider{a, b, again} {
		require.NoError(t, m.Delete(t.Context(), ""))
	}
	assert.Equal(t, 2.0, callsOf(t, reg, "a", "Delete", "ok"), "a provider that is made anew counts on")
	assert.Equal(t, 1.0, callsOf(t, reg, "b", "Delete", "ok"))
}

func TestAForeignMetricOfThatNameIsAnError(t *testing.T) {
	for _, name := range []string{"egress_provider_calls_total", "egress_provider_call_duration_seconds", "egress_provider_calls_in_flight"} {
		reg := prometheus.NewRegistry()
		require.NoError(t, reg.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "not ours"})))
		_, err := providermetrics.New(&stub{}, "rack-1", reg)
		require.ErrorContains(t, err, `the metrics of provider "rack-1"`)
		assert.ErrorContains(t, err, name)
		n, err := testutil.GatherAndCount(reg)
		require.NoError(t, err)
		assert.Equal(t, 1, n, "nothing of ours stays")
	}
}

func TestWhatIsMissingIsSaidAtOnce(t *testing.T) {
	_, err := providermetrics.New(nil, "", nil)
	for _, want := range []string{"p: is nil", "name: is empty", "reg: is nil"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestDurationsAndCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := measure(t, &stub{delay: 90 * time.Second}, "p", reg)
		done := make(chan error)
		go func() {
			_, err := m.ListByTag(t.Context(), "")
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, testutil.GatherAndCompare(reg, inFlight("1"), "egress_provider_calls_in_flight"))
		require.NoError(t, <-done)
		require.NoError(t, testutil.GatherAndCompare(reg, inFlight("0"), "egress_provider_calls_in_flight"))
		families, err := reg.Gather()
		require.NoError(t, err)
		assert.Equal(t, 90.0, families[0].GetMetric()[0].GetHistogram().GetSampleSum())
	})
}

func inFlight(n string) io.Reader {
	return strings.NewReader(`# HELP egress_provider_calls_in_flight Calls of a provider that have not ended yet.
# TYPE egress_provider_calls_in_flight gauge
egress_provider_calls_in_flight{op="ListByTag",provider="p"} ` + n + "\n")
}

func TestAPanicLeavesNoCallInFlight(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := measure(t, &stub{panic: true}, "p", reg)
	assert.PanicsWithValue(t, "a bug", func() { _, _ = m.ListByTag(t.Context(), "") })
	require.NoError(t, testutil.GatherAndCompare(reg, inFlight("0"), "egress_provider_calls_in_flight"))
	assert.Equal(t, 1.0, callsOf(t, reg, "p", "ListByTag", "transient"), "and is no success")
}

func TestOptionalInterfacesStayReachable(t *testing.T) {
	inner, err := local.New(local.Config{})
	require.NoError(t, err)
	m := measure(t, inner, "p", prometheus.NewRegistry())
	closer, ok := provider.As[io.Closer](m)
	require.True(t, ok)
	assert.NoError(t, closer.Close())
}
