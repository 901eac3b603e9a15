package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

// gate refuses new leases once it is closed, and lets everything else pass.
type gate struct{ closed atomic.Bool }

func (g *gate) close() { g.closed.Store(true) }

// before puts the gate before the lease API.
func (g *gate) before(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.closed.Load() && r.Method == http.MethodPost && r.URL.Path == "/v1/leases" {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, `{"error":{"code":"unavailable","message":"the server is ending: try again when it is back","retryAfter":"5s"}}`)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// notify tells systemd how the service fares (sd_notify(3)), where it asks for it.
func (s *server) notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		_ = conn.Close()
	}
	if err != nil {
		s.log.Info("systemd cannot be told", "error", err.Error())
	}
}
