package main

import (
	"bytes"
	"errors"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// stepping is a screen whose clock goes on by a step with each look.
func stepping(width int, step time.Duration) (*screen, *bytes.Buffer) {
	var out bytes.Buffer
	s := newScreen(&out)
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	s.width, s.now = width, func() time.Time { now = now.Add(step); return now }
	return s, &out
}

func send(s *screen, total int64) {
	for done := int64(0); done <= 100; done += 10 {
		s.image(kvm.ImageProgress{Host: "kvm1", Volume: "base-debian13-0123.qcow2", Bytes: done << 20, Total: total})
	}
}

func TestProgressWithoutATerminalIsALineNowAndThen(t *testing.T) {
	s, out := stepping(0, 5*time.Second)
	send(s, 100<<20)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Len(t, lines, 5)
	assert.Equal(t, "image to kvm1: [####----------------]  20 % of 100 MiB, 2.0 MiB/s, 40s left  base-debian13-0123.qcow2", lines[0])
	assert.NotContains(t, out.String(), "\r")
}

func TestProgressWithoutALength(t *testing.T) {
	s, out := stepping(0, 10*time.Second)
	send(s, -1)
	assert.Contains(t, out.String(), "image to kvm1: 10 MiB, 1.0 MiB/s  base-debian13")
}

func TestProgressOnATerminalGivesWayToLines(t *testing.T) {
	s, out := stepping(60, time.Second)
	send(s, 100<<20)
	s.say("accepted")
	drawn := strings.Split(out.String(), "\r")
	assert.Greater(t, len(drawn), 10)
	for _, line := range drawn {
		assert.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 59)
	}
	assert.Equal(t, "accepted\n", drawn[len(drawn)-1])
	assert.Equal(t, strings.Repeat(" ", 59), drawn[len(drawn)-2], "the line of progress is erased")
}

func TestLogLines(t *testing.T) {
	s, out := stepping(0, 0)
	log := newLogger(s, 1).WithName("kvm").WithValues("provider", "rack-1")
	log.WithName("libvirt").V(1).Info("libvirt call", "rpc", "virDomainCreate", "flags", 1)
	log.V(2).Info("not shown")
	log.Error(errors.New("no answer"), "lost", "url", "", "data", provider.UserData("secret"))
	assert.Equal(t, "15:04:05.000 kvm.libvirt: libvirt call provider=rack-1 rpc=virDomainCreate flags=1\n"+
		`15:04:05.000 kvm: lost provider=rack-1 error="no answer" url="" data="[6 bytes of user-data]"`+"\n", out.String())
}

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"},
	}}
	assert.Equal(t, "egressctl v0.1.0 revision abc (modified) go1.26.0", versionOf(info).String())
	assert.Equal(t, "unknown", versionOf(nil).Version)
	w := &world{t: t, dir: t.TempDir()}
	assert.Contains(t, w.run("version").stdout, "egressctl ")
	assert.Contains(t, w.run("version", "-o", "json").stdout, `"go": "go1.`)
}

func TestQuoted(t *testing.T) {
	assert.Equal(t, "a/b.yaml", quoted("a/b.yaml"))
	assert.Equal(t, `'it'\''s a b'`, quoted("it's a b"))
	assert.Equal(t, "''", quoted(""))
}
