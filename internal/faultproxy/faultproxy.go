// Package faultproxy stands between an HTTP client and its server in the same
// process, counts their messages, and spoils one of them. It uses neither sockets nor
// the clock's real time, so that a test with testing/synctest waits for nothing.
package faultproxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Fault is what becomes of one message.
type Fault string

// The faults. Where a connection ends, it does so for both sides.
const (
	// Lost ends the connection in place of the message.
	Lost Fault = "lost"
	// CutInHead and CutInBody end it in the middle of the one or the other. A message
	// without a body is cut right behind its head.
	CutInHead Fault = "cut in its head"
	CutInBody Fault = "cut in its body"
	// CutUnnoticed ends an answer that does not say how long it is in the middle of its
	// body. To a request it is CutInBody.
	CutUnnoticed Fault = "cut without a length"
	// Dribbled sends one byte in each millisecond, Trickled one in each second.
	Dribbled Fault = "dribbled"
	Trickled Fault = "trickled"
	// Delayed waits for Delay before the message goes on its way.
	Delayed Fault = "delayed"
	// Silent keeps the message for ever.
	Silent Fault = "kept in silence"
	// Late lets a request go on its way when the client has gone. To an answer it is
	// Silent.
	Late Fault = "delivered when the client has gone"
)

// Faults are all there are.
var Faults = []Fault{Lost, CutInHead, CutInBody, CutUnnoticed, Dribbled, Trickled, Delayed, Silent, Late}

// Delay is how long a delayed message waits.
const Delay = 5 * time.Second

// Proxy is one server and the way to it.
type Proxy struct {
	server   *http.Server
	incoming chan net.Conn
	closed   chan struct{}
	running  sync.WaitGroup

	mu    sync.Mutex
	seen  int
	at    int // the message to spoil; below zero for none
	fault Fault
}

// New starts a server of h that Dial leads to.
func New(h http.Handler) *Proxy {
	p := &Proxy{server: &http.Server{Handler: h, ReadHeaderTimeout: time.Hour}, incoming: make(chan net.Conn), closed: make(chan struct{}), at: -1}
	p.running.Go(func() { _ = p.server.Serve(listener{p}) })
	return p
}

// Close ends the server and all connections.
func (p *Proxy) Close() {
	close(p.closed)
	_ = p.server.Close()
	p.running.Wait()
}

// Spoil has the k-th message from now on spoiled, and only that. Requests have even
// numbers, and answers odd ones, where the client does one after the other.
func (p *Proxy) Spoil(k int, fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen, p.at, p.fault = 0, k, fault
}

// Messages is how many there were since Spoil.
func (p *Proxy) Messages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// next is the fault of the message that comes now.
func (p *Proxy) next() (f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == p.at {
		f = p.fault
	}
	p.seen++
	return f
}

// DialContext is for an http.Transport. It leads to the server, whatever the address.
func (p *Proxy) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, ours := net.Pipe()
	theirs, server := net.Pipe()
	select {
	case p.incoming <- server:
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.running.Go(func() {
		defer func() { _, _ = ours.Close(), theirs.Close() }()
		way := way{p: p, client: ours, server: theirs, requests: bufio.NewReader(ours), answers: bufio.NewReader(theirs)}
		for way.exchange() {
			continue
		}
	})
	return client, nil
}

// way is one connection, with its two halves.
type way struct {
	p                 *Proxy
	client, server    net.Conn
	requests, answers *bufio.Reader
}

// exchange carries one request and its answer, and tells whether another may follow.
func (w *way) exchange() bool {
	req, err := http.ReadRequest(w.requests)
	if err != nil {
		return false
	}
	var body, head bytes.Buffer
	if _, err := body.ReadFrom(req.Body); err != nil {
		return false
	}
	req.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
	if err := req.Write(&head); err != nil {
		return false
	}
	head.Truncate(head.Len() - body.Len())
	if !w.send(w.server, w.p.next(), head.Bytes(), body.Bytes()) {
		return false
	}
	resp, err := http.ReadResponse(w.answers, req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return w.answer(resp)
}

func (w *way) answer(resp *http.Response) bool {
	var body, head bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return false
	}
	fault := w.p.next()
	resp.TransferEncoding, resp.ContentLength = nil, int64(body.Len())
	switch fault {
	case CutUnnoticed:
		resp.ContentLength = -1
	case Late:
		fault = Silent
	}
	resp.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
	if err := resp.Write(&head); err != nil {
		return false
	}
	head.Truncate(head.Len() - body.Len())
	return w.send(w.client, fault, head.Bytes(), body.Bytes())
}

// send has the fault happen to a message, and tells whether the connection lives on.
func (w *way) send(to net.Conn, fault Fault, head, body []byte) bool {
	whole := append(bytes.Clone(head), body...)
	switch fault {
	case Lost:
		return false
	case CutInHead:
		_, _ = to.Write(head[:len(head)/2])
		return false
	case CutInBody, CutUnnoticed:
		_, _ = to.Write(whole[:len(head)+len(body)/2])
		return false
	case Silent, Late:
		_, _ = io.Copy(io.Discard, w.requests) // until the client goes
		if fault == Late {
			time.Sleep(Delay)
			_, _ = to.Write(whole)
			_, _ = w.answers.Peek(1)
		}
		return false
	case Dribbled:
		return dribble(to, time.Millisecond, whole)
	case Trickled:
		return dribble(to, time.Second, whole)
	case Delayed:
		time.Sleep(Delay)
	}
	_, err := to.Write(whole)
	return err == nil
}

func dribble(to net.Conn, pause time.Duration, message []byte) bool {
	for i := range message {
		time.Sleep(pause)
		if _, err := to.Write(message[i : i+1]); err != nil {
			return false
		}
	}
	return true
}

// listener hands the server its connections.
type listener struct{ p *Proxy }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.p.incoming:
		return c, nil
	case <-l.p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (listener) Close() error { return nil }

// Addr implements net.Listener.
func (listener) Addr() net.Addr { return &net.UnixAddr{Name: "faultproxy", Net: "unix"} }
