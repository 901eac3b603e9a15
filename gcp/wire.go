package gcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/googleapis/gax-go/v2/callctx"

	"github.com/egressfleet/egress/provider"
)

// callHeader carries the number of a call from where it is made to the wire,
// where it is taken off: some of the client's methods, such as the iterators of
// lists, do not hand their context on.
const callHeader = "X-Egress-Call"

// callLevel and wireLevel are those of the log's lines and payloads.
const (
	callLevel = 1
	wireLevel = 5
)

// ongoing is one call of the API, with what its requests need.
type ongoing struct {
	ctx      context.Context
	info     CallInfo
	log      logr.Logger
	attempts atomic.Int32
	// secret is the user-data that is sent.
	secret provider.UserData
}

// maxAnswer is how many bytes of an answer are read: a page of a list has up to 500
// instances, each with up to 512 KiB of metadata.
const maxAnswer = 512 << 20

// wire is the transport of all calls. It gives each request the context of its
// call, and tells log and trace of it.
type wire struct {
	next        http.RoundTripper
	trace       *Trace
	logUserData bool
	most        int64    // bytes of an answer
	calls       sync.Map // of number to *ongoing
	last        atomic.Uint64
}

// enlist makes a call known, until leave. The context is for the client.
func (w *wire) enlist(c *ongoing) (ctx context.Context, leave func()) {
	number := strconv.FormatUint(w.last.Add(1), 10)
	w.calls.Store(number, c)
	return callctx.SetHeaders(c.ctx, callHeader, number), func() { w.calls.Delete(number) }
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	found, ok := w.calls.Load(req.Header.Get(callHeader))
	if !ok {
		return nil, fmt.Errorf("%s %s: the call is over", req.Method, req.URL.Path)
	}
	c := found.(*ongoing)
	req = req.Clone(c.ctx)
	req.Header.Del(callHeader)
	info := c.info
	info.Attempt = int(c.attempts.Add(1))
	end, start := w.trace.call(c.ctx, info), time.Now()
	w.dumpRequest(c, req)
	resp, err := w.next.RoundTrip(req)
	if err == nil {
		err = w.whole(c, resp)
	}
	w.report(c, info, start, resp, err)
	if err != nil {
		end(err)
		return nil, err
	}
	end(statusError(resp))
	return resp, nil
}

// whole reads the body, so that its end is under the call's context and in the
// log's time.
func (w *wire) whole(c *ongoing, resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, w.most+1))
	_ = resp.Body.Close()
	if err == nil && int64(len(body)) > w.most {
		err = fmt.Errorf("the answer has more than %d bytes: it is not the API's", w.most)
	}
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if log := c.log.V(wireLevel); log.Enabled() {
		log.Info("compute response", "method", c.info.Method, "status", resp.StatusCode, "body", w.shownAnswer(c, body))
	}
	return nil
}

func (w *wire) dumpRequest(c *ongoing, req *http.Request) {
	log := c.log.V(wireLevel)
	if !log.Enabled() {
		return
	}
	var body []byte
	if req.GetBody != nil {
		if r, err := req.GetBody(); err == nil {
			body, _ = io.ReadAll(r)
			_ = r.Close()
		}
	}
	log.Info("compute request", "method", c.info.Method, "verb", req.Method, "url", req.URL.String(), "body", w.shown(c, body))
}

func (w *wire) shown(c *ongoing, body []byte) string {
	if w.logUserData {
		return string(body)
	}
	return redact(body, c.secret)
}

// shownAnswer is shown, but for what quotes the user-data.
func (w *wire) shownAnswer(c *ongoing, body []byte) string {
	if !w.logUserData && repeats(string(body), c.secret) {
		return length(len(body))
	}
	return w.shown(c, body)
}

func (w *wire) report(c *ongoing, info CallInfo, start time.Time, resp *http.Response, err error) {
	log := c.log.V(callLevel)
	if !log.Enabled() {
		return
	}
	line := []any{"method", info.Method}
	for _, pair := range [][2]string{{"scope", info.Scope}, {"name", info.Name}} {
		if pair[1] != "" {
			line = append(line, pair[0], pair[1])
		}
	}
	if info.Attempt > 1 {
		line = append(line, "attempt", info.Attempt)
	}
	line = append(line, "took", elapsed(start))
	if err != nil {
		line = append(line, "error", err.Error())
	} else {
		line = append(line, "status", resp.StatusCode)
	}
	log.Info("compute call", slices.Clip(line)...)
}

// statusError is what a trace is told of an answer that is no success.
func statusError(resp *http.Response) error {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	return fmt.Errorf("HTTP %d", resp.StatusCode)
}
