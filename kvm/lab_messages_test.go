package kvm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// messageFaults are what may happen to one message between kvm and libvirtd. The
// last two only take time.
var messageFaults = []string{"lost", "cut", "silent", "dribbled", "delayed"}

// messageProxy stands before libvirtd's socket, counts the messages of both sides,
// and spoils one of them.
type messageProxy struct {
	socket, daemon string

	mu    sync.Mutex
	seen  int
	at    int // the message to spoil; below zero for none
	fault string
}

func newMessageProxy(t *testing.T, daemon string) *messageProxy {
	t.Helper()
	p := &messageProxy{socket: filepath.Join(t.TempDir(), "sock"), daemon: daemon, at: -1}
	l, err := net.Listen("unix", p.socket)
	require.NoError(t, err)
	var conns sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", p.daemon)
			if err != nil {
				_ = client.Close()
				continue
			}
			w := &messageWay{p: p, ends: [2]net.Conn{client, server}}
			conns.Go(func() { w.carry(server, client) })
			conns.Go(func() { w.carry(client, server) })
		}
	})
	return p
}

// spoil has the k-th message from now on spoiled, and only that.
func (p *messageProxy) spoil(k int, fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen, p.at, p.fault = 0, k, fault
}

// heal tells whether it happened.
func (p *messageProxy) heal() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	happened := p.at >= 0 && p.seen > p.at
	p.at = -1
	return happened
}

func (p *messageProxy) next() (fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == p.at {
		fault = p.fault
	}
	p.seen++
	return fault
}

// messageWay is one connection.
type messageWay struct {
	p    *messageProxy
	ends [2]net.Conn

	mu    sync.Mutex
	still bool // nothing is carried any more
}

func (w *messageWay) end() { _, _ = w.ends[0].Close(), w.ends[1].Close() }

// keepalive is the program number of the messages that tell that a side is alive. They
// come by themselves, and do not count.
const keepalive = 0x6b656570

// carry forwards one side's messages, which begin with their length.
func (w *messageWay) carry(to io.Writer, from io.Reader) {
	defer w.end()
	for {
		head := make([]byte, 8) // the length and the program
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(head))
		copy(message, head)
		if _, err := io.ReadFull(from, message[len(head):]); err != nil {
			return
		}
		fault := ""
		if binary.BigEndian.Uint32(head[4:]) != keepalive {
			fault = w.p.next()
		}
		if !w.send(to, message, fault) {
			return
		}
	}
}

func (w *messageWay) send(to io.Writer, message []byte, fault string) bool {
	pieces, pause := 1, time.Duration(0)
	w.mu.Lock()
	w.still = w.still || fault == "silent"
	still := w.still
	w.mu.Unlock()
	switch {
	case still:
		return true
	case fault == "lost":
		return false
	case fault == "cut":
		_, _ = to.Write(message[:len(message)/2])
		return false
	case fault == "dribbled":
		pieces, pause = min(len(message), 100), time.Millisecond
	case fault == "delayed":
		time.Sleep(300 * time.Millisecond)
	}
	for i := range pieces {
		time.Sleep(pause)
		if _, err := to.Write(message[len(message)*i/pieces : len(message)*(i+1)/pieces]); err != nil {
			return false
		}
	}
	return true
}

// newSpoiled is a lab whose host is reached by libvirtd's own socket, through the proxy.
func newSpoiled(t *testing.T) (*lab, *messageProxy) {
	t.Helper()
	var proxy *messageProxy
	l := newLab(t, func(c *kvm.Config) {
		needsLibvirtd(t)
		proxy = newMessageProxy(t, "/var/run/libvirt/libvirt-sock")
		h := &c.Hosts[0]
		h.Address, h.User, h.Socket = "local", "", proxy.socket
		c.Timeouts.Keepalive, c.Timeouts.Grace = provider.Duration(500*time.Millisecond), provider.Duration(500*time.Millisecond)
		c.Timeouts.Dial = provider.Duration(3 * time.Second)
	})
	return l, proxy
}

// TestLabFaultsOfMessages spoils the messages of Create and Delete in turn, those of
// both sides: the call succeeds or says that it may pass, and the next one finishes.
// With FULL=1 it spoils all of them.
func TestLabFaultsOfMessages(t *testing.T) {
	l, proxy := newSpoiled(t)
	base := l.blank(t, "labmessage", 1<<30+29<<20)
	warm := labRequest("lab-message-first", "lab-tag-message")
	id, err := l.Create(labContext(t), warm) // brings the image, and connects
	require.NoError(t, err)
	require.NoError(t, l.Delete(labContext(t), id))

	step := stride() * stride()
	for i, fault := range messageFaults {
		harmless := fault == "dribbled" || fault == "delayed"
		tolerable := func(t *testing.T, err error) {
			t.Helper()
			if harmless {
				require.NoError(t, err)
			} else if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
			}
		}
		// A socket of this machine that is silent is waited for as long as the caller says.
		limited := func(t *testing.T) context.Context {
			t.Helper()
			if fault != "silent" {
				return labContext(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		made, deleted := 0, 0
		for k, happened := i*step/len(messageFaults), true; happened && !t.Failed(); k += step {
			t.Run(fmt.Sprintf("Create/message %d %s", k, fault), func(t *testing.T) {
				req := labRequest(fmt.Sprintf("lab-message-create-%s-%d", fault, k), "lab-tag-message")
				proxy.spoil(k, fault)
				_, err := l.Create(limited(t), req)
				happened = counted(proxy.heal(), &made)
				tolerable(t, err)
				var id string
				again(t, func() (err error) { id, err = l.Create(labContext(t), req); return err })
				in, err := l.Get(labContext(t), id)
				require.NoError(t, err)
				assert.Equal(t, provider.StateProvisioning, in.State, in.Reason)
				all, err := l.ListByTag(labContext(t), req.Tag)
				require.NoError(t, err)
				assert.Len(t, all, 1)
				again(t, func() error { return l.Delete(labContext(t), id) })
				assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(req.UID), base))
			})
		}
		for k, happened := i*step/len(messageFaults), true; happened && !t.Failed(); k += step {
			t.Run(fmt.Sprintf("Delete/message %d %s", k, fault), func(t *testing.T) {
				req := labRequest(fmt.Sprintf("lab-message-delete-%s-%d", fault, k), "lab-tag-message")
				var id string
				again(t, func() (err error) { id, err = l.Create(labContext(t), req); return err })
				proxy.spoil(k, fault)
				err := l.Delete(limited(t), id)
				happened = counted(proxy.heal(), &deleted)
				tolerable(t, err)
				again(t, func() error { return l.Delete(labContext(t), id) })
				_, err = l.Get(labContext(t), id)
				require.ErrorIs(t, err, provider.ErrNotFound)
				assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(req.UID), base))
			})
		}
		disturbed(t, "messages of Create", made, 24, step)
		disturbed(t, "messages of Delete", deleted, 10, step)
	}
}
