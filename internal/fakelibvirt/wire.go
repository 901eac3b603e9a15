package fakelibvirt

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// The procedures of libvirt's protocol that Wire answers.
const (
	procConnectOpen           = 1
	procConnectClose          = 2
	procAuthList              = 66
	procConnectListAllDomains = 273
)

const headerSize = 28

// Wire speaks libvirt's protocol, as much of it as makes a connection and lists
// no domains. Every other call is answered by an empty success.
type Wire struct {
	// Silent, if set, is asked before each answer but those that make the
	// connection; while it says true there is none, ever.
	Silent func() bool

	mu       sync.Mutex
	accepted int
	calls    int
}

// Accepted returns how many connections there were.
func (w *Wire) Accepted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accepted
}

// Calls returns how many calls there were.
func (w *Wire) Calls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// Serve answers on all connections of l until it is closed.
func (w *Wire) Serve(l net.Listener) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		w.accepted++
		w.mu.Unlock()
		conns.Go(func() {
			defer func() { _ = conn.Close() }()
			w.answer(conn)
		})
	}
}

func (w *Wire) answer(conn io.ReadWriter) {
	for {
		request := make([]byte, headerSize)
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		length := binary.BigEndian.Uint32(request)
		if length < headerSize || length > 32<<20 {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(length)-headerSize); err != nil {
			return
		}
		w.mu.Lock()
		w.calls++
		w.mu.Unlock()
		proc := binary.BigEndian.Uint32(request[12:])
		if w.silentAt(proc) {
			continue
		}
		if _, err := conn.Write(reply(request, proc)); err != nil {
			return
		}
	}
}

func (w *Wire) silentAt(proc uint32) bool {
	opening := proc == procConnectOpen || proc == procConnectClose || proc == procAuthList
	return !opening && w.Silent != nil && w.Silent()
}

// reply repeats the header as that of a successful answer.
func reply(request []byte, proc uint32) []byte {
	var payload []byte
	switch proc {
	case procAuthList:
		payload = make([]byte, 4) // none
	case procConnectListAllDomains:
		payload = make([]byte, 8) // none, zero
	}
	out := append(append([]byte{}, request...), payload...)
	binary.BigEndian.PutUint32(out, uint32(len(out))) //nolint:gosec // small.
	binary.BigEndian.PutUint32(out[16:], 1)           // a reply
	return out
}
