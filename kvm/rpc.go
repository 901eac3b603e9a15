package kvm

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/provider"
)

// libvirtAPI is what is used of *libvirt.Libvirt. Its functions know no context
// and wait until libvirtd answers; only this file calls them, through do.
type libvirtAPI interface {
	ConnectGetCapabilities() (string, error)
	ConnectGetAllDomainStats(domains []libvirt.Domain, stats, flags uint32) ([]libvirt.DomainStatsRecord, error)
	NodeGetMemoryStats(params, cell int32, flags uint32) ([]libvirt.NodeGetMemoryStats, int32, error)
	ConnectListAllDomains(needResults int32, flags libvirt.ConnectListAllDomainsFlags) ([]libvirt.Domain, uint32, error)

	ConnectGetLibVersion() (uint64, error)
	ConnectGetVersion() (uint64, error)
	ConnectGetDomainCapabilities(emulator, arch, machine, virtType libvirt.OptString, flags libvirt.ConnectGetDomainCapabilitiesFlags) (string, error)
	ConnectListAllNodeDevices(needResults int32, flags uint32) ([]libvirt.NodeDevice, uint32, error)
	LifecycleEvents(ctx context.Context) (<-chan libvirt.DomainEventLifecycleMsg, error)

	DomainLookupByName(name string) (libvirt.Domain, error)
	DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (libvirt.Domain, error)
	DomainGetMetadata(dom libvirt.Domain, typ int32, uri libvirt.OptString, flags libvirt.DomainModificationImpact) (string, error)
	DomainSetMetadata(dom libvirt.Domain, typ int32, metadata, key, uri libvirt.OptString, flags libvirt.DomainModificationImpact) error
	DomainGetState(dom libvirt.Domain, flags uint32) (state, reason int32, err error)
	DomainSetAutostart(dom libvirt.Domain, autostart int32) error
	DomainCreate(dom libvirt.Domain) error
	DomainDestroyFlags(dom libvirt.Domain, flags libvirt.DomainDestroyFlagsValues) error
	DomainUndefineFlags(dom libvirt.Domain, flags libvirt.DomainUndefineFlagsValues) error
	DomainInterfaceAddresses(dom libvirt.Domain, source, flags uint32) ([]libvirt.DomainInterface, error)

	NetworkLookupByName(name string) (libvirt.Network, error)
	NetworkIsActive(network libvirt.Network) (int32, error)

	StoragePoolLookupByName(name string) (libvirt.StoragePool, error)
	StoragePoolLookupByTargetPath(path string) (libvirt.StoragePool, error)
	StoragePoolCreateXML(xml string, flags libvirt.StoragePoolCreateFlags) (libvirt.StoragePool, error)
	StoragePoolDestroy(pool libvirt.StoragePool) error
	StoragePoolGetXMLDesc(pool libvirt.StoragePool, flags libvirt.StorageXMLFlags) (string, error)
	StoragePoolGetInfo(pool libvirt.StoragePool) (state uint8, capacity, allocation, available uint64, err error)
	StoragePoolGetAutostart(pool libvirt.StoragePool) (int32, error)
	StoragePoolRefresh(pool libvirt.StoragePool, flags uint32) error
	StorageVolLookupByName(pool libvirt.StoragePool, name string) (libvirt.StorageVol, error)
	StorageVolGetPath(vol libvirt.StorageVol) (string, error)
	StorageVolGetInfoFlags(vol libvirt.StorageVol, flags uint32) (typ int8, capacity, allocation uint64, err error)
	StorageVolCreateXML(pool libvirt.StoragePool, xml string, flags libvirt.StorageVolCreateFlags) (libvirt.StorageVol, error)
	StorageVolDelete(vol libvirt.StorageVol, flags libvirt.StorageVolDeleteFlags) error
	StoragePoolListAllVolumes(pool libvirt.StoragePool, needResults int32, flags uint32) ([]libvirt.StorageVol, uint32, error)
	StorageVolGetXMLDesc(vol libvirt.StorageVol, flags uint32) (string, error)
	StorageVolDownload(vol libvirt.StorageVol, stream io.Writer, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error
	StorageVolUpload(vol libvirt.StorageVol, stream io.Reader, offset, length uint64, flags libvirt.StorageVolUploadFlags) error
}

// client makes calls over one connection of a host, or over whichever is the
// living one at the time.
type client struct {
	h       *hostConn
	session func(context.Context) (*session, error)
	// timeout is for one call; zero for none.
	timeout time.Duration
}

func (h *hostConn) controlClient() client {
	return client{h: h, session: h.control.get, timeout: time.Duration(h.timeouts.Call)}
}

func (h *hostConn) agentClient() client {
	return client{h: h, session: h.agent.get, timeout: time.Duration(h.timeouts.Call)}
}

// only is a client for one connection, without a time limit.
func (s *session) only(h *hostConn) client {
	return client{h: h, session: func(context.Context) (*session, error) { return s, nil }}
}

// rpc describes one call for the log, the trace and a retry.
type rpc struct {
	name string
	// read tells that the call changes nothing, so that it may be made again on
	// a new connection.
	read bool
	// args are names and values; bodies are logged at V(2) only.
	args, bodies []any
}

// answer is what a call returned, with what the log says of it.
type answer[T any] struct {
	value        T
	args, bodies []any
}

// readRetries is how often a read whose connection was lost is made again.
const readRetries = 2

// do makes one call. It returns when ctx ends, leaving the call to itself: the
// connection is given up only if no answer comes within the grace.
func do[T any](ctx context.Context, c client, r rpc, f func(libvirtAPI) (answer[T], error)) (T, error) {
	for try := 0; ; try++ {
		s, err := c.session(ctx)
		if err != nil {
			var zero T
			return zero, err
		}
		a, err := invoke(ctx, c, s, r, f)
		if !r.read || try >= readRetries || !errors.Is(err, errConnectionLost) || ctx.Err() != nil {
			return a.value, err
		}
	}
}

// run is do for calls without a result.
func run(ctx context.Context, c client, r rpc, f func(libvirtAPI) error) error {
	_, err := do(ctx, c, r, func(l libvirtAPI) (answer[struct{}], error) { return answer[struct{}]{}, f(l) })
	return err
}

func invoke[T any](ctx context.Context, c client, s *session, r rpc, f func(libvirtAPI) (answer[T], error)) (answer[T], error) {
	if err := s.acquire(ctx); err != nil {
		return answer[T]{}, err
	}
	end := c.h.begin(ctx, r)
	p := pending[T]{finished: make(chan struct{})}
	c.h.running.Go(func() {
		defer close(p.finished)
		defer s.release()
		p.answer, p.err = f(s.api)
	})
	a, err := p.wait(ctx, c, s)
	end(a.args, a.bodies, err)
	return a, err
}

// pending is a call under way. The fields but finished belong to the caller
// once it is closed.
type pending[T any] struct {
	finished chan struct{}
	answer   answer[T]
	err      error
}

func (p *pending[T]) wait(ctx context.Context, c client, s *session) (answer[T], error) {
	timeout, stop := after(c.timeout)
	defer stop()
	select {
	case <-p.finished:
		return p.result(s)
	case <-ctx.Done():
		c.h.abandon(ctx, s, p.finished)
		return answer[T]{}, ctx.Err()
	case <-timeout:
		err := provider.Transientf(codeNoAnswer, "libvirtd has not answered for %s", c.timeout)
		s.drop("no answer", err)
		return answer[T]{}, err
	case <-s.lost:
	}
	select {
	case <-p.finished:
		return p.result(s)
	default:
		return answer[T]{}, s.lostError()
	}
}

// result tells an answer of libvirt from the end of the connection, which
// go-libvirt reports in several ways.
func (p *pending[T]) result(s *session) (answer[T], error) {
	if _, ok := libvirtCode(p.err); p.err == nil || ok || errors.Is(p.err, libvirt.ErrUnsupported) {
		return p.answer, p.err
	}
	s.drop("connection lost", p.err)
	return p.answer, s.lostError()
}

// after is time.After with a stop; zero never fires.
func after(d time.Duration) (<-chan time.Time, func()) {
	if d <= 0 {
		return nil, func() {}
	}
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// leftovers are the abandoned calls of one operation, which may still land.
type leftovers struct{ sync.WaitGroup }

type leftoversKey struct{}

func withLeftovers(ctx context.Context) (context.Context, *leftovers) {
	l := &leftovers{}
	return context.WithValue(ctx, leftoversKey{}, l), l
}

// abandon watches a call that its caller left.
func (h *hostConn) abandon(ctx context.Context, s *session, finished <-chan struct{}) {
	l, ok := ctx.Value(leftoversKey{}).(*leftovers)
	if !ok {
		l = &leftovers{}
	}
	l.Add(1)
	h.running.Go(func() {
		defer l.Done()
		timeout, stop := after(time.Duration(h.timeouts.Grace))
		defer stop()
		select {
		case <-finished:
		case <-s.lost:
		case <-timeout:
			s.drop("no answer", provider.Transientf(codeNoAnswer, "libvirtd has not answered a call %s after its caller left", h.timeouts.Grace))
		}
	})
}

// begin starts the line and the hook of one call; the function it returns ends
// them. Where nobody listens both cost nothing.
func (h *hostConn) begin(ctx context.Context, r rpc) func(args, bodies []any, err error) {
	log := logr.FromContextOrDiscard(ctx).WithName("libvirt").V(1)
	if h.trace == nil && !log.Enabled() {
		return func([]any, []any, error) {}
	}
	end := h.trace.call(ctx, CallInfo{RPC: r.name, Host: h.name, Args: r.args})
	start := time.Now()
	return func(args, bodies []any, err error) {
		end(err)
		if !log.Enabled() {
			return
		}
		line := append([]any{"rpc", r.name}, r.args...)
		line = append(line, args...)
		if log.V(1).Enabled() {
			line = append(append(line, r.bodies...), bodies...)
		}
		log.Info("libvirt call", append(append(line, "duration", elapsed(start)), errorArgs(err)...)...)
	}
}

func errorArgs(err error) []any {
	if err == nil {
		return nil
	}
	args := []any{"error", err.Error()}
	if code, ok := libvirtCode(err); ok {
		args = append(args, "libvirtError", code.String(), "libvirtCode", int(code))
	}
	return args
}

// flagArgs is empty for no flags.
func flagArgs[F ~int32 | ~uint32](flags F, args ...any) []any {
	if flags == 0 {
		return args
	}
	return append(args, "flags", int64(flags))
}
