package main

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// partly makes lists that are not whole.
func (w *world) partly() {
	w.wrap = func(p provider.Provider) provider.Provider {
		inner := p.(*local.Provider)
		return wrapped{Provider: inner, list: func(ctx context.Context, tag string) ([]provider.Instance, error) {
			all, err := inner.ListByTag(ctx, tag)
			return all, errors.Join(err, &provider.PartialError{Missing: []provider.Missing{{Scope: "kvm2", Err: errors.New("no answer")}}})
		}}
	}
}

func TestAListThatIsNotWhole(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	w.partly()
	got := w.run("ls")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stdout, w.left()[0].Name)
	assert.Contains(t, got.stderr, "warning: kvm2 could not be read: no answer")
	var result list
	require.NoError(t, json.Unmarshal([]byte(w.run("ls", "-o", "json").stdout), &result))
	assert.Len(t, result.Instances, 1)
	assert.Equal(t, []missing{{"kvm2", "no answer"}}, result.Missing)

	got = w.run("rm", "elsewhere")
	assert.Equal(t, exitTransient, got.code, "it may be on kvm2")
	assert.Contains(t, got.stderr, "elsewhere: not found where the list could be read")
	got = w.run("rm", "--all")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stderr, "the list is not whole")
	w.wrap = nil
	assert.Empty(t, w.left(), "what was seen is removed")
}

func TestAnInstanceThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	w.host.OnCall(func(_ context.Context, op string) error {
		if op == "Get" {
			return errors.New("no answer")
		}
		return nil
	})
	got := w.run("ls")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stdout, "proxy-")
	assert.Contains(t, got.stderr, "could not be read: dev Get: no answer")
}

func TestAnotherTagIsNeitherListedNorRemoved(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	id := w.left()[0].ID
	assert.Contains(t, w.run("ls", "--tag", "other").stderr, "nothing has the tag other")
	got := w.run("rm", "--tag", "other", id)
	assert.Equal(t, exitPermanent, got.code)
	assert.Contains(t, got.stderr, "has the tag egressctl and not other")
	assert.Contains(t, got.stderr, "if it is yours: egressctl --providers")
	assert.Equal(t, exitOK, w.run("rm", "--tag", "other", "--all").code)
	assert.Len(t, w.left(), 1)
}

func TestRemovingWhatIsNotThere(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	id := "hosts/local/proxies/" + provider.Name("never")
	got := w.run("rm", "-o", "json", id, "never", provider.Name("never"))
	assert.Equal(t, exitOK, got.code)
	assert.Contains(t, got.stderr, id+": not there, nothing to remove")
	var result removed
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &result))
	assert.Len(t, result.Absent, 3)
}

func TestAnInterruptedRemovalTellsWhatIsLeft(t *testing.T) {
	w := newWorld(t, local.HostConfig{DeleteDelay: time.Hour})
	require.Equal(t, exitOK, w.up().code)
	w.interruptAt = []string{"it is stopping"}
	got := w.run("rm", "--all")
	assert.Equal(t, exitInterrupted, got.code)
	assert.Contains(t, got.stderr, "is left")
	assert.Contains(t, got.stderr, "remove it by: egressctl")
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "59s": 59 * time.Second, "59m": time.Hour - 1, "47h": 48*time.Hour - 1, "9d": 9 * 24 * time.Hour,
	} {
		assert.Equal(t, want, age(now.Add(-d), now))
	}
	assert.Equal(t, "-", age(time.Time{}, now))
}
