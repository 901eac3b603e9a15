// Command gateway is a forward proxy on one fixed port that sends each connection
// through a leased proxy, for clients that can take only one proxy address.
//
//	gateway -server https://egress.example:8090 -token-file token
//	curl --proxy http://127.0.0.1:8888 https://example.com/
//
// Each tunnel holds a lease for its host until it ends. It asks its own clients
// for no password, and so listens on loopback unless told otherwise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8888", "`address` to listen on")
	server := flags.String("server", "", "`URL` of the lease API")
	tokenFile := flags.String("token-file", "", "`file` with the bearer token for it")
	wait := flags.Duration("wait", 30*time.Second, "how long a client waits for a free proxy")
	if err := flags.Parse(args); err != nil {
		return err
	}
	token, err := setup.Token(*tokenFile)
	if err != nil {
		return err
	}
	store, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: *server, Token: token})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "listening on", listener.Addr())
	return serve(ctx, listener, &gateway{store: store, wait: *wait})
}

// serve ends when ctx does, and cuts off what is open then.
func serve(ctx context.Context, listener net.Listener, g *gateway) error {
	g.ctx = ctx
	s := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// gateway tunnels through leased proxies.
type gateway struct {
	ctx   context.Context // ends all tunnels
	store lease.Store
	wait  time.Duration
}

// ServeHTTP answers CONNECT alone: what is not tunnelled, every proxy could read
// and change.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this gateway only tunnels: use https", http.StatusMethodNotAllowed)
		return
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		http.Error(w, "CONNECT needs host:port", http.StatusBadRequest)
		return
	}
	l, err := g.acquire(r.Context(), host)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer l.Release(context.WithoutCancel(r.Context()))
	upstream, err := dialThrough(r.Context(), l, r.Host)
	_ = l.Report(r.Context(), lease.Judge(&http.Response{StatusCode: http.StatusOK}, err))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer upstream.Close()
	g.tunnel(w, l, upstream)
}

func (g *gateway) acquire(ctx context.Context, host string) (*lease.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	return g.store.Acquire(ctx, lease.Request{Holder: "gateway", Domain: host})
}

// tunnel copies both ways as long as the lease can be kept.
func (g *gateway) tunnel(w http.ResponseWriter, l *lease.Lease, upstream net.Conn) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	work, stop := l.Keep(g.ctx, 0)
	defer stop()
	cut := context.AfterFunc(work, func() { _ = client.Close(); _ = upstream.Close() })
	defer cut()
	go func() {
		_, _ = io.Copy(upstream, buffered)
		_ = upstream.Close()
	}()
	_, _ = io.Copy(client, upstream)
}
