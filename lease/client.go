package lease

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/egressfleet/egress/endpoint"
)

// transport sends requests while the lease is held.
type transport struct {
	lease *Lease
	ctx   context.Context // the lease's
	base  *endpoint.Transport
	err   error // why there is no base
}

func newTransport(ctx context.Context, l *Lease) *transport {
	base, err := endpoint.NewTransport(l.endpoint.URL, *l.keeper.transport())
	return &transport{lease: l, ctx: ctx, base: base, err: err}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := errors.Join(t.err, t.lease.Err()); err != nil {
		closeBody(req)
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	unlink := context.AfterFunc(t.ctx, func() { cancel(t.lease.Err()) })
	done := func() { unlink(); cancel(nil) }

	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		done()
		if lost := t.lease.Err(); lost != nil {
			return nil, errors.Join(lost, err)
		}
		return nil, err
	}
	resp.Request = req
	resp.Body = holdBody(resp.Body, t.lease, done)
	return resp, nil
}

// CloseIdleConnections is found by http.Client.
func (t *transport) CloseIdleConnections() {
	if t.base != nil {
		t.base.CloseIdleConnections()
	}
}

// close ends every connection of the lease.
func (t *transport) close() {
	if t.base != nil {
		t.base.Close()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// body ends with its lease. Its context must live until it was read or closed.
type body struct {
	io.ReadCloser
	lease *Lease
	done  func()
	once  sync.Once
}

// holdBody keeps the Write of a body that has one, as after a protocol switch.
func holdBody(rc io.ReadCloser, l *Lease, done func()) io.ReadCloser {
	b := &body{ReadCloser: rc, lease: l, done: done}
	if w, ok := rc.(io.Writer); ok {
		return struct {
			io.ReadCloser
			io.Writer
		}{b, w}
	}
	return b
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	// Even at the end: our own hanging up may make the target end its body as if it
	// were whole.
	lost := b.lease.Err()
	b.once.Do(b.done)
	switch {
	case lost == nil:
		return n, err
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, errors.Join(lost, err)
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.done)
	return err
}
