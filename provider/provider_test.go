package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Names are on hosts for as long as instances live: the form must never change.
func TestNameNeverChanges(t *testing.T) {
	assert.Equal(t, "proxy-4oymiquy7qobjgx3", provider.Name(""))
	assert.Equal(t, "proxy-xj4bnp4pahh6uqkb", provider.Name("abc"))
}

func FuzzName(f *testing.F) {
	f.Add("a")
	f.Fuzz(func(t *testing.T, uid string) {
		name := provider.Name(uid)
		assert.True(t, provider.IsName(name), name)
		assert.Equal(t, name, provider.Name(uid))
	})
}

func TestCreateRequestReportsEveryBadValue(t *testing.T) {
	err := provider.CreateRequest{
		UID: "with space", Tag: "Upper",
		UserData: provider.UserData("password: hunter2"),
		Metadata: map[string]string{"Bad Key": "x", "long": strings.Repeat("x", 257)},
	}.Validate()
	for _, want := range []string{
		`uid: "with space": must be 1 to 128 printable`,
		`tag: "Upper": must be 2 to 63 lower-case letters`,
		`metadata["Bad Key"]: "Bad Key": must be`,
		`metadata["long"]: the value must be UTF-8 of at most 256 bytes`,
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "hunter2")
	assert.NoError(t, provider.CreateRequest{UID: "6f0c", Tag: "crawl-eu"}.Validate())
}

func TestValidTag(t *testing.T) {
	for tag, ok := range map[string]bool{
		"ab": true, "a-1": true, "a" + strings.Repeat("b", 62): true,
		"": false, "a": false, "1a": false, "a-": false, "-a": false, "a_b": false, "A1": false,
		"a" + strings.Repeat("b", 63): false, "ab\n": false,
	} {
		assert.Equal(t, ok, provider.ValidTag(tag) == nil, "%q", tag)
	}
}

func TestIDFormat(t *testing.T) {
	ids := provider.IDFormat{Scopes: "hosts", Kinds: "domains"}
	name := provider.Name("abc")
	scope, got, err := ids.Parse(ids.Format("rack-1.example", name))
	require.NoError(t, err)
	assert.Equal(t, "rack-1.example", scope)
	assert.Equal(t, name, got)
	for _, bad := range []string{
		"", name, "hosts/a/domains/", "hosts//domains/" + name, "hosts/../domains/" + name,
		"zones/a/domains/" + name, "hosts/a/instances/" + name, "hosts/a/domains/" + name + "/x", "hosts/a/domains/other",
	} {
		_, _, err := ids.Parse(bad)
		assert.ErrorIs(t, err, provider.ErrPermanent, bad)
		assert.True(t, provider.HasCode(err, provider.CodeMalformedID))
	}
}

func TestUserDataNeverPrints(t *testing.T) {
	data := provider.UserData("hunter2")
	req := provider.CreateRequest{UID: "a", UserData: data}
	encoded, err := json.Marshal(req)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "data", data, "request", req)
	texts := []string{string(encoded), log.String(), fmt.Sprint(data.MarshalLog())}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, data), fmt.Sprintf(verb, req))
	}
	for _, text := range texts {
		assert.NotContains(t, text, "hunter2")
		assert.NotContains(t, text, fmt.Sprintf("%x", "hunter2"))
		assert.NotContains(t, text, "104 117 110")
		assert.Contains(t, text, "[7 bytes of user-data]")
	}
}

func TestInstanceAddressPrefersExternal(t *testing.T) {
	in, out := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.7")
	i := provider.Instance{Addresses: []provider.Address{{Type: provider.AddressInternal, Addr: in}}}
	assert.Equal(t, in, i.Address())
	i.Addresses = append(i.Addresses, provider.Address{Type: provider.AddressExternal, Addr: out})
	assert.Equal(t, out, i.Address())
	assert.False(t, provider.Instance{}.Address().IsValid())
}

func TestErrorTellsWhatIsKnown(t *testing.T) {
	cause := io.ErrUnexpectedEOF
	err := error(&provider.Error{
		Class: provider.ErrQuotaExceeded, Op: "Create", Provider: "rack-1", ID: "hosts/a/domains/x",
		Code: "ERR_NO_SPACE", Scope: "pool default", Err: cause,
	})
	err = fmt.Errorf("wrapped: %w", err)
	assert.EqualError(t, err, "wrapped: rack-1 Create hosts/a/domains/x: pool default: unexpected EOF (ERR_NO_SPACE)")
	assert.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.ErrorIs(t, err, cause)
	assert.NotErrorIs(t, err, provider.ErrPermanent)
	assert.EqualError(t, &provider.Error{Class: provider.ErrNotFound, ID: "x"}, "x: not found")
	assert.ErrorIs(t, &provider.Error{}, provider.ErrTransient, "a class that is not set is transient")
}

func TestClass(t *testing.T) {
	for want, err := range map[string]error{
		"ok": nil, "canceled": &provider.Error{Err: context.Canceled}, "not_found": provider.ErrNotFound,
		"quota_exceeded": &provider.Error{Class: provider.ErrQuotaExceeded}, "permanent": provider.ErrPermanent,
		"transient": errors.New("anything"),
	} {
		assert.Equal(t, want, provider.Class(err))
	}
}

func TestPartialError(t *testing.T) {
	err := error(&provider.PartialError{Missing: []provider.Missing{
		{Scope: "rack-1", Err: provider.ErrPermanent}, {Scope: "rack-2", Err: context.DeadlineExceeded},
	}})
	assert.ErrorIs(t, err, provider.ErrTransient)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, provider.ErrPermanent, "a scope's class is not the list's")
	assert.EqualError(t, err, "the list is not whole: rack-1: permanent failure; rack-2: context deadline exceeded")
}

func TestDurationAndToggleInFiles(t *testing.T) {
	var v struct {
		D provider.Duration `json:"d"`
		T provider.Toggle   `json:"t"`
		U provider.Toggle   `json:"u"`
	}
	require.NoError(t, json.Unmarshal([]byte(`{"d": "1m30s", "t": false, "u": null}`), &v))
	assert.Equal(t, 90*time.Second, v.D.Or(time.Hour))
	assert.False(t, v.T.Or(true))
	assert.True(t, v.U.Or(true))
	assert.Equal(t, time.Hour, provider.Duration(0).Or(time.Hour))
	encoded, err := json.Marshal(v)
	require.NoError(t, err)
	assert.JSONEq(t, `{"d": "1m30s", "t": false, "u": null}`, string(encoded))
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"d": "soon"}`), &v), "write it like 15s")
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"t": "yes"}`), &v), "neither true nor false")
}

// script is a provider whose Get says one thing after another.
type script struct {
	provider.Provider
	gets    []func() (provider.Instance, error)
	deletes []error
}

func (s *script) Get(context.Context, string) (provider.Instance, error) {
	next := s.gets[0]
	if len(s.gets) > 1 {
		s.gets = s.gets[1:]
	}
	return next()
}

func (s *script) Delete(context.Context, string) error {
	if len(s.deletes) == 0 {
		return nil
	}
	next := s.deletes[0]
	s.deletes = s.deletes[1:]
	return next
}

func is(state provider.State, reason string) func() (provider.Instance, error) {
	return func() (provider.Instance, error) {
		return provider.Instance{ID: "x", State: state, Reason: reason}, nil
	}
}

func fails(err error) func() (provider.Instance, error) {
	return func() (provider.Instance, error) { return provider.Instance{}, err }
}

type gets = []func() (provider.Instance, error)

func TestWaitRunning(t *testing.T) {
	running, booting := is(provider.StateRunning, ""), is(provider.StateProvisioning, "no address yet")
	for name, c := range map[string]struct {
		gets  gets
		want  error
		text  string
		takes time.Duration
	}{
		"at once":          {gets: gets{running}},
		"after booting":    {gets: gets{booting, booting, running}, takes: 4 * time.Second},
		"errors that heal": {gets: gets{fails(errors.New("x")), fails(provider.ErrQuotaExceeded), running}, takes: 4 * time.Second},
		"unknown":          {gets: gets{is(provider.StateUnknown, ""), running}, takes: 2 * time.Second},
		"gone":             {gets: gets{booting, fails(provider.ErrNotFound)}, want: provider.ErrNotFound, takes: 2 * time.Second},
		"permanent":        {gets: gets{fails(provider.ErrPermanent)}, want: provider.ErrPermanent},
		"stopped":          {gets: gets{is(provider.StateStopped, "")}, want: provider.ErrPermanent, text: "is Stopped: delete it and create another"},
		"failed":           {gets: gets{is(provider.StateFailed, "panic")}, want: provider.ErrPermanent, text: "is Failed, panic"},
		"too long":         {gets: gets{booting}, want: context.DeadlineExceeded, text: "Provisioning, no address yet", takes: time.Minute},
		"never answers":    {gets: gets{fails(errors.New("no route"))}, want: context.DeadlineExceeded, text: "no route", takes: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began, polls := time.Now(), 0
				in, err := provider.WaitRunning(ctx, &script{gets: c.gets}, "x", provider.WaitOptions{
					OnPoll: func(provider.Instance, error) { polls++ },
				})
				assert.ErrorIs(t, err, c.want)
				if c.want == nil {
					assert.Equal(t, provider.StateRunning, in.State)
				}
				if c.text != "" {
					assert.ErrorContains(t, err, c.text)
				}
				assert.Equal(t, c.takes, time.Since(began))
				assert.Positive(t, polls)
			})
		})
	}
}

func TestWaitGone(t *testing.T) {
	gone, stopping := fails(provider.ErrNotFound), is(provider.StateStopping, "")
	for name, c := range map[string]struct {
		gets    gets
		deletes []error
		want    error
		takes   time.Duration
	}{
		"at once":       {gets: gets{gone}},
		"under way":     {gets: gets{stopping, gone}, takes: 2 * time.Second},
		"delete heals":  {gets: gets{gone}, deletes: []error{errors.New("x")}, takes: 2 * time.Second},
		"get heals":     {gets: gets{fails(errors.New("x")), gone}, takes: 2 * time.Second},
		"unconfigured":  {gets: gets{gone}, deletes: []error{&provider.Error{Class: provider.ErrPermanent, Code: provider.CodeUnconfigured}}, want: provider.ErrPermanent},
		"never answers": {gets: gets{stopping}, want: context.DeadlineExceeded, takes: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				err := provider.WaitGone(ctx, &script{gets: c.gets, deletes: c.deletes}, "x", provider.WaitOptions{})
				assert.ErrorIs(t, err, c.want)
				assert.Equal(t, c.takes, time.Since(began))
			})
		})
	}
}

// FuzzParseID has IDs of any form either refused as malformed, or come back as they
// were.
func FuzzParseID(f *testing.F) {
	format := provider.IDFormat{Scopes: "zones", Kinds: "instances"}
	for _, id := range []string{"", "zones/a/instances/proxy-x", "zones//instances/x", "hosts/a/domains/b", "zones/../instances/x", "zones/a/instances/x/y", "zones/a%2f/instances/x"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		scope, name, err := format.Parse(id)
		if err != nil {
			require.ErrorIs(t, err, provider.ErrPermanent)
			require.True(t, provider.HasCode(err, provider.CodeMalformedID))
			return
		}
		require.Equal(t, id, format.Format(scope, name))
	})
}

func TestErrorsAreMadeOfAClassAndACode(t *testing.T) {
	cause := errors.New("no such bridge")
	for class, make := range map[error]func(code, format string, args ...any) error{
		provider.ErrPermanent: provider.Permanentf, provider.ErrTransient: provider.Transientf, provider.ErrQuotaExceeded: provider.Quotaf,
	} {
		err := make("NoBridge", "host %s: %w", "kvm1", cause)
		require.ErrorIs(t, err, class)
		require.ErrorIs(t, err, cause)
		assert.True(t, provider.HasCode(err, "NoBridge"))
		assert.EqualError(t, err, "host kvm1: no such bridge (NoBridge)")
	}
}

func TestATimeoutOfTheProvidersOwnIsNotTheCallers(t *testing.T) {
	err := provider.Transientf("NoAnswer", "asked for 5s: %w", context.DeadlineExceeded)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "asked for 5s: context deadline exceeded")
	assert.Equal(t, "transient", provider.Class(err))
}
