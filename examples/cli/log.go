package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// sink writes log lines to the screen:
//
//	15:04:05.000 kvm.libvirt: libvirt call rpc=virDomainCreate host=kvm1 …
type sink struct {
	screen    *screen
	verbosity int
	name      string
	values    []any
}

// The forms of the log.
const (
	logText = "text"
	logJSON = "json"
)

// logger returns that of this run.
func (a *app) logger() logr.Logger {
	if a.screen.json.Enabled() {
		return a.screen.json
	}
	return newLogger(a.screen, a.flags.verbosity)
}

// asJSON has everything written as objects of JSON, the lines for people too.
func (s *screen) asJSON(verbosity int) {
	s.json = funcr.NewJSON(func(object string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprintln(s.w, object)
	}, funcr.Options{LogTimestamp: true, TimestampFormat: time.RFC3339Nano, Verbosity: verbosity})
}

// newLogger returns a logger that writes lines up to V(verbosity).
func newLogger(s *screen, verbosity int) logr.Logger {
	return logr.New(sink{screen: s, verbosity: verbosity})
}

// Init implements logr.LogSink.
func (s sink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (s sink) Enabled(level int) bool { return level <= s.verbosity }

// WithValues implements logr.LogSink.
func (s sink) WithValues(values ...any) logr.LogSink {
	s.values = slices.Concat(s.values, values)
	return s
}

// WithName implements logr.LogSink.
func (s sink) WithName(name string) logr.LogSink {
	s.name = strings.TrimPrefix(s.name+"."+name, ".")
	return s
}

// Error implements logr.LogSink.
func (s sink) Error(err error, msg string, values ...any) {
	s.Info(0, msg, append([]any{"error", err}, values...)...)
}

// Info implements logr.LogSink.
func (s sink) Info(_ int, msg string, values ...any) {
	var line strings.Builder
	fmt.Fprintf(&line, "%s %s: %s", s.screen.now().Format("15:04:05.000"), s.name, msg)
	all := slices.Concat(s.values, values)
	for i := 0; i+1 < len(all); i += 2 {
		fmt.Fprintf(&line, " %v=%s", all[i], logValue(all[i+1]))
	}
	s.screen.say("%s", line.String())
}

// logValue keeps every value on the line and apart from the next.
func logValue(v any) string {
	if m, ok := v.(logr.Marshaler); ok {
		v = m.MarshalLog()
	}
	text := fmt.Sprint(v)
	if text == "" || strings.ContainsAny(text, " =\"\n\t") {
		return strconv.Quote(text)
	}
	return text
}
