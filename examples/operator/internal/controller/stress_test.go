package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// number is that of the environment, or else the given one.
func number(t *testing.T, name string, other int) int {
	if os.Getenv(name) == "" {
		return other
	}
	n, err := strconv.Atoi(os.Getenv(name))
	require.NoError(t, err)
	return n
}

// watcher counts the machines of each Proxy that are not being deleted.
type watcher struct {
	provider.Provider
	mu    sync.Mutex
	alive map[string]map[string]bool // machines by their Proxy
	twice []string
}

func (w *watcher) Unwrap() provider.Provider { return w.Provider }

func (w *watcher) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	id, err := w.Provider.Create(ctx, req)
	if err != nil {
		return id, err // the host fails before it makes anything
	}
	owner := req.Metadata[metadataProxy]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive[owner] == nil {
		w.alive[owner] = map[string]bool{}
	}
	w.alive[owner][provider.Name(req.UID)] = true
	if len(w.alive[owner]) > 1 {
		w.twice = append(w.twice, fmt.Sprint(owner, w.alive[owner]))
	}
	return id, nil
}

// Get forgets a machine that is proved to be gone.
func (w *watcher) Get(ctx context.Context, id string) (provider.Instance, error) {
	in, err := w.Provider.Get(ctx, id)
	if errors.Is(err, provider.ErrNotFound) {
		w.mu.Lock()
		for _, machines := range w.alive {
			delete(machines, id[strings.LastIndexByte(id, '/')+1:])
		}
		w.mu.Unlock()
	}
	return in, err
}

// Many Proxies at once, whose provider, machines, specs and status writes fail at random,
// and which are made and deleted meanwhile: no Proxy ever has two machines, none is left
// behind, and the status is not written without end. EGRESS_STRESS_PROXIES and
// EGRESS_STRESS_SECONDS have it run harder.
func TestManyProxiesWithFaults(t *testing.T) {
	proxies, seconds := number(t, "EGRESS_STRESS_PROXIES", 30), number(t, "EGRESS_STRESS_SECONDS", 10)
	r := newRig(t)
	machines := &watcher{Provider: r.provider(r.host), alive: map[string]map[string]bool{}}
	r.providers.known["dev"] = machines
	r.timing.MaxInterval = time.Second
	before := goleak.IgnoreCurrent()
	r.start()

	calls := func(ctx context.Context, op string) error {
		if op == "ListByTag" { // a machine whose ID was lost is the sweep's where no list shows it
			return nil
		}
		switch rand.IntN(12) {
		case 0:
			return &provider.Error{Class: provider.ErrTransient, Err: errors.New("connection reset")}
		case 1:
			return &provider.Error{Class: provider.ErrQuotaExceeded, Err: errors.New("no room")}
		case 2:
			select {
			case <-time.After(time.Duration(rand.IntN(500)) * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		case 3:
			if op == "Create" {
				return &provider.Error{Class: provider.ErrPermanent, Err: errors.New("refused")}
			}
		}
		return nil
	}
	r.host.OnCall(calls)
	r.meddle(func(c *interrupted) {
		c.failStatus = func(*v1alpha1.Proxy) error {
			if rand.IntN(10) == 0 {
				return errCrash
			}
			return nil
		}
	})
	all := make([]*v1alpha1.Proxy, proxies)
	for i := range all {
		all[i] = r.proxy(fmt.Sprintf("p-%03d", i))
		require.NoError(t, r.c.Create(t.Context(), all[i]))
	}
	faults := []local.Fault{local.Sound, local.Stop, local.Crash, local.Vanish, local.ProxyDown, local.Refuse, local.Hang, local.Impostor}
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		px := r.get(all[rand.IntN(len(all))])
		switch {
		case px == nil || !px.DeletionTimestamp.IsZero():
		case rand.IntN(8) == 0:
			r.remove(px)
		case rand.IntN(4) == 0:
			px.Spec.Port = int32(3000 + rand.IntN(1000))
			_ = r.c.Update(t.Context(), px)
		default:
			_ = r.host.Inject(px.Status.ProviderID, faults[rand.IntN(len(faults))])
		}
		if px == nil { // gone: another one of its name
			i := rand.IntN(len(all))
			_ = r.c.Create(t.Context(), r.proxy(fmt.Sprintf("p-%03d", i)))
		}
	}

	r.host.OnCall(nil)
	r.meddle(func(c *interrupted) { c.failStatus = nil })
	machines.mu.Lock()
	assert.Empty(t, machines.twice, "two machines for one Proxy")
	machines.mu.Unlock()
	t.Logf("%d Proxies, %d s: %d writes of the status", proxies, seconds, r.writes())
	assert.Less(t, r.writes(), 40*proxies+20*proxies*seconds)

	left := 0
	for _, px := range all {
		if now := r.get(px); now != nil && now.DeletionTimestamp.IsZero() {
			_ = r.host.Inject(now.Status.ProviderID, local.Sound) // else they are replaced, one by one
			r.annotate(now, v1alpha1.AnnotationReconcile, "now")
			left++
		}
	}
	for _, px := range all {
		if now := r.get(px); now != nil && now.DeletionTimestamp.IsZero() {
			r.until(now, "Ready in the end", func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseReady })
		}
	}
	time.Sleep(2 * r.timing.ReadyInterval)
	writes := r.writes()
	time.Sleep(4 * r.timing.ReadyInterval)
	assert.Less(t, r.writes()-writes, proxies, "in peace nothing is written")

	for _, px := range all {
		if now := r.get(px); now != nil && now.DeletionTimestamp.IsZero() {
			r.remove(now)
		}
	}
	for _, px := range all {
		r.gone(px)
	}
	t.Logf("%d lived in the end", left)
	for _, in := range r.machines() {
		assert.Fail(t, "left behind", "%s %s", in.UID, in.State)
	}
	r.stop()
	goleak.VerifyNone(t, before, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"))
}
