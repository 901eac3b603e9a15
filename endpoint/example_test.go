package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/connectproxy"
)

func ExampleParseURL() {
	proxy, err := endpoint.ParseURL("http://crawler:p@ss%25word@192.0.2.7:3128")
	fmt.Println(proxy, err)

	_, err = endpoint.ParseURL("socks4://192.0.2.7:1080")
	fmt.Println(err)
	// Output:
	// http://***@192.0.2.7:3128 <nil>
	// proxy URL: scheme "socks4" is not supported: use http, https or socks5
}

func ExampleNewURL() {
	proxy, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "p@ss%word")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("for logs:    ", proxy)
	fmt.Println("for browsers:", proxy.Reveal())
	// Output:
	// for logs:     http://***@192.0.2.7:3128
	// for browsers: http://crawler:p%40ss%25word@192.0.2.7:3128
}

func ExampleNewTransport() {
	// A proxy on loopback stands for yours.
	running, err := connectproxy.Start(connectproxy.Config{Username: "crawler", Password: "secret"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer running.Close()

	proxy, err := endpoint.NewURL("http", running.Addr().String(), "crawler", "wrong")
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := endpoint.NewTransport(proxy, endpoint.TransportConfig{UserAgent: "my-crawler/1.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.com/", nil)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err == nil {
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}

	var failed *endpoint.Error
	if errors.As(err, &failed) {
		fmt.Println("stage:", failed.Stage)
		fmt.Println("status:", failed.Status)
		fmt.Println("the proxy's fault:", failed.Stage.OfProxy())
	}
	// Output:
	// stage: connect
	// status: 407
	// the proxy's fault: true
}
