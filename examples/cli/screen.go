package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/term"

	"github.com/egressfleet/egress/kvm"
)

// screen writes what is for people: lines, and below them, on a terminal, how
// much of an image has been sent. It is safe for concurrent use.
type screen struct {
	// width is that of the terminal, or zero where there is none.
	width int
	now   func() time.Time
	// json takes the lines, where it is set: see asJSON.
	json logr.Logger

	mu       sync.Mutex
	w        io.Writer
	progress string // the line that stands on the terminal
	images   map[string]*transfer
}

// transfer is an image on its way to a host.
type transfer struct {
	began, shown time.Time
	from         int64
}

// How often progress is shown: on a terminal and, as a line of its own, elsewhere.
const (
	redrawEvery = 100 * time.Millisecond
	lineEvery   = 10 * time.Second
)

func newScreen(w io.Writer) *screen {
	s := &screen{w: w, now: time.Now, images: map[string]*transfer{}}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) { //nolint:gosec // a descriptor fits.
		s.width = 80
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 { //nolint:gosec // as above.
			s.width = width
		}
	}
	return s
}

// say writes a line.
func (s *screen) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s, format+"\n", args...)
}

// Write writes whole lines.
func (s *screen) Write(lines []byte) (int, error) {
	if s.json.Enabled() {
		s.json.Info(strings.TrimSuffix(string(lines), "\n"))
		return len(lines), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawLocked("")
	return s.w.Write(lines)
}

// image shows how much of an image has reached a host.
func (s *screen) image(p kvm.ImageProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	t := s.images[p.Host+" "+p.Volume]
	if t == nil || p.Bytes < t.from {
		t = &transfer{began: now, shown: now, from: p.Bytes}
		s.images[p.Host+" "+p.Volume] = t
	}
	every := lineEvery
	if s.width > 0 && !s.json.Enabled() {
		every = redrawEvery
	}
	if now.Sub(t.shown) < every {
		return
	}
	t.shown = now
	switch text := t.text(p, now); {
	case s.json.Enabled():
		s.mu.Unlock()
		s.json.Info(text)
		s.mu.Lock()
	case s.width > 0:
		s.drawLocked(text)
	default:
		fmt.Fprintln(s.w, text)
	}
}

// drawLocked replaces the line of progress.
func (s *screen) drawLocked(text string) {
	if text != "" {
		text = text[:min(len(text), s.width-1)]
	}
	if s.progress != "" {
		fmt.Fprint(s.w, "\r"+strings.Repeat(" ", len(s.progress))+"\r")
	}
	fmt.Fprint(s.w, text)
	s.progress = text
}

// text tells the progress. It is ASCII, so that its length is its width.
func (t *transfer) text(p kvm.ImageProgress, now time.Time) string {
	rate := float64(p.Bytes-t.from) / now.Sub(t.began).Seconds()
	sent := fmt.Sprintf("%.1f MiB/s", rate/(1<<20))
	if p.Total <= 0 {
		return fmt.Sprintf("image to %s: %s, %s  %s", p.Host, mib(p.Bytes), sent, p.Volume)
	}
	left := ""
	if rate > 0 && p.Bytes < p.Total {
		left = fmt.Sprintf(", %s left", time.Duration(float64(p.Total-p.Bytes)/rate*float64(time.Second)).Round(time.Second))
	}
	return fmt.Sprintf("image to %s: %s %3d %% of %s, %s%s  %s",
		p.Host, bar(p.Bytes, p.Total), 100*p.Bytes/p.Total, mib(p.Total), sent, left, p.Volume)
}

func bar(done, total int64) string {
	const width = 20
	full := int(width * min(done, total) / total)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
}

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
