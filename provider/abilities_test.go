package provider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider"
)

// able has every ability, and says what it was asked for.
type able struct {
	provider.Provider
	limit  int
	minAge time.Duration
}

func (a *able) ReadConsole(_ context.Context, _ string, limit int) ([]byte, error) {
	a.limit = limit
	return []byte("login:"), nil
}

func (a *able) Diagnose(context.Context) ([]provider.Finding, error) {
	return []provider.Finding{{Scope: "kvm1", Check: "pool", Status: provider.FindingOK, Evidence: "40 GiB free"}}, nil
}

func (a *able) Sweep(_ context.Context, req provider.SweepRequest) ([]provider.Leftover, error) {
	a.minAge = req.MinAge
	return []provider.Leftover{{Scope: "kvm1", Kind: "volume", Name: "base-x"}}, nil
}

func (a *able) Watch(_ context.Context, _ string, changed func(string)) error {
	changed("hosts/kvm1/domains/proxy-a")
	return context.Canceled
}

func (a *able) Explain(context.Context, string) (cause, err error) {
	return provider.ErrQuotaExceeded, nil
}

func TestAbilitiesAreFoundThroughDecorators(t *testing.T) {
	ctx := t.Context()
	a := &able{}
	p := decorator{inner: a}

	text, err := provider.ReadConsole(ctx, p, "x", 0)
	require.NoError(t, err)
	assert.Equal(t, "login:", string(text))
	assert.Equal(t, provider.DefaultConsoleBytes, a.limit)
	_, err = provider.ReadConsole(ctx, p, "x", 7)
	require.NoError(t, err)
	assert.Equal(t, 7, a.limit)

	findings, err := provider.Diagnose(ctx, p)
	require.NoError(t, err)
	assert.Len(t, findings, 1)

	leftovers, err := provider.Sweep(ctx, p, provider.SweepRequest{Tag: "crawl"})
	require.NoError(t, err)
	assert.Len(t, leftovers, 1)
	assert.Equal(t, provider.DefaultSweepAge, a.minAge)

	var heard []string
	err = provider.Watch(ctx, p, "crawl", func(id string) { heard = append(heard, id) })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, []string{"hosts/kvm1/domains/proxy-a"}, heard)

	cause, err := provider.Explain(ctx, p, "x")
	require.NoError(t, err)
	require.ErrorIs(t, cause, provider.ErrQuotaExceeded)
}

func TestAbilitiesThatAProviderHasNot(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := struct{ provider.Provider }{}

	_, err := provider.ReadConsole(ctx, p, "x", 0)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, provider.CodeUnsupported))
	findings, err := provider.Diagnose(ctx, p)
	require.NoError(t, err)
	assert.Empty(t, findings)
	leftovers, err := provider.Sweep(ctx, p, provider.SweepRequest{Tag: "crawl"})
	require.NoError(t, err)
	assert.Empty(t, leftovers)
	cause, err := provider.Explain(ctx, p, "x")
	require.NoError(t, err)
	require.NoError(t, cause)

	cancel()
	err = provider.Watch(ctx, p, "crawl", func(string) { t.Error("nobody can have called") })
	require.ErrorIs(t, err, context.Canceled)
}

// What a provider cannot do is told by its code.
func ExampleReadConsole() {
	var p provider.Provider = struct{ provider.Provider }{}
	_, err := provider.ReadConsole(context.Background(), p, "hosts/kvm1/domains/proxy-a", 0)
	fmt.Println(err)
	fmt.Println(provider.HasCode(err, provider.CodeUnsupported), errors.Is(err, provider.ErrPermanent))
	// Output:
	// ReadConsole hosts/kvm1/domains/proxy-a: this provider keeps no console (Unsupported)
	// true true
}

// console is a provider whose instances have written that.
type console struct {
	provider.Provider
	text string
	err  error
}

func (c console) ReadConsole(context.Context, string, int) ([]byte, error) {
	return []byte(c.text), c.err
}

func TestLastConsoleLineIsForASentence(t *testing.T) {
	for name, c := range map[string]struct {
		console console
		want    string
	}{
		"plain":            {console{text: "booting\nlogin: "}, "login:"},
		"blank lines":      {console{text: "panic\r\n\r\n  \r\n\x1b[0m\r\n"}, "panic"},
		"control":          {console{text: "\x1b[2J\x1b[01;31merror: no such\x00 device\x1b[0m.\r\n"}, "error: no such device."},
		"unended sequence": {console{text: "halted\x1b[01;3"}, "halted"},
		"not UTF-8":        {console{text: "disk \xff\xfe gone"}, "disk  gone"},
		"long":             {console{text: strings.Repeat("é", 300)}, strings.Repeat("é", 200)},
		"nothing":          {console{text: "\n\n"}, ""},
		"no answer":        {console{text: "half", err: provider.ErrTransient}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, provider.LastConsoleLine(t.Context(), decorator{inner: c.console}, "x"))
		})
	}
	assert.Empty(t, provider.LastConsoleLine(t.Context(), decorator{}, "x"), "one that keeps no console")
}
