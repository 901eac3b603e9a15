package redislease_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// spoken is a Redis that gives answers without a connection. The arguments of a script
// begin with those that all have: see store.lua.
type spoken struct {
	answer func(args []any) any
}

func (spoken) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s spoken) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.speak(cmd) }
}

func (s spoken) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			_ = s.speak(cmd)
		}
		return nil
	}
}

func (s spoken) speak(cmd redis.Cmder) error {
	if c, ok := cmd.(*redis.Cmd); ok {
		c.SetVal(s.answer(cmd.Args()[4:])) // behind command, script, number of keys, key
	}
	return nil
}

// speaking returns a store of a Redis that answers so.
func speaking(t testing.TB, answer func(args []any) any) *redislease.Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:0", MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	client.AddHook(spoken{answer})
	t.Cleanup(func() { _ = client.Close() })
	s, err := redislease.New(redislease.Config{Client: client, Fleet: "test"})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// exact is up to where a script counts.
const exact = 1 << 53

const stored = `192.0.2.1` + "\n" + `{"id":"a","url":"http://crawler:hunter2@192.0.2.7:3128"}`

// granting answers an acquire with that token, text and time.
func granting(token, text string, micros any) func([]any) any {
	return func([]any) any {
		return []any{"born", token, "lease", []any{token, text, micros, "x.example"}}
	}
}

func TestWhatAnotherProgramHasWrittenIsNoLease(t *testing.T) {
	for name, answer := range map[string]func([]any) any{
		"no JSON":           granting("7", "\nnonsense hunter2", "60000000"),
		"no ID":             granting("7", "\n"+`{"url":"http://crawler:hunter2@192.0.2.7:3128"}`, "60000000"),
		"no proxy":          granting("7", "\n"+`{"id":"a"}`, "60000000"),
		"a proxy for an ID": granting("7", "\n"+`{"id":"http://crawler:hunter2@192.0.2.7:3128"}`, "60000000"),
		"a printed proxy":   granting("7", "\n"+`{"id":"a","url":"http://***@192.0.2.7:3128"}`, "60000000"),
		"no token":          granting("seven", stored, "60000000"),
		"token of a day to come, when scripts count no more": granting("9223372036854775807", stored, "60000000"),
		"no time":            granting("7", stored, "0"),
		"time gone by":       granting("7", stored, int64(-5)),
		"a time of no kind":  granting("7", stored, 1.5),
		"no grant":           func([]any) any { return []any{"born", "7", "lease"} },
		"a word of no kind":  func([]any) any { return []any{"born", "7", "leese"} },
		"no answer":          func([]any) any { return nil },
		"an answer of a map": func([]any) any { return map[any]any{"lease": 7} },
		"nonsense, shortly":  func([]any) any { return "7 hunter2" },
	} {
		t.Run(name, func(t *testing.T) {
			s := speaking(t, answer)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.Acquire(ctx, lease.Request{Holder: "me"})
			require.ErrorContains(t, err, "what Redis has cannot be read", "and is not waited for")
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestWhoDoesNotWaitIsNotToldToWait(t *testing.T) {
	s := speaking(t, func([]any) any { return []any{"born", "7", "wait", "1000", "5000"} })
	_, err := s.TryAcquire(t.Context(), lease.Request{Holder: "me"})
	require.ErrorContains(t, err, "what Redis has cannot be read")
}

func TestAnAnswerOfNoKindEndsNoLease(t *testing.T) {
	for _, answer := range []any{[]any{"born", "7", "what"}, []any{"born", "7", "lease", []any{"8", stored, "60000000", ""}}, "7"} {
		s := speaking(t, func([]any) any { return answer })
		_, err := s.Renew(t.Context(), lease.Key{ID: "x", Token: 7}, time.Minute)
		require.ErrorContains(t, err, "cannot be read")
		require.NotErrorIs(t, err, lease.ErrNotHeld)
	}
	s := speaking(t, func([]any) any { return []any{"born", "7", "what"} })
	require.Error(t, s.Release(t.Context(), lease.Key{ID: "x", Token: 7}))
	require.Error(t, s.Report(t.Context(), lease.Key{ID: "x", Token: 7}, lease.Outcome{Kind: lease.OK}))
	_, err := s.Drain(t.Context(), "a")
	require.Error(t, err, "not zero")
}

func TestCountsAndVerdictsThatCannotBeAreNotPassedOn(t *testing.T) {
	s := speaking(t, func([]any) any { return []any{"born", "7", "none", []any{int64(3), int64(-1), int64(1)}, "-5"} })
	_, err := s.TryAcquire(t.Context(), lease.Request{Holder: "me"})
	var unavailable *lease.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	assert.Equal(t, lease.Counts{Total: 3, Draining: 1}, unavailable.Counts)
	assert.Zero(t, unavailable.RetryAfter)

	s = speaking(t, func([]any) any {
		return []any{"born", "7", "1000", []any{[]any{"a", stored, `{"health":"Splendid"}`, "0", "1", "0", []any{}, []any{}}}}
	})
	_, err = s.List(t.Context())
	require.ErrorContains(t, err, "a verdict")

	s = speaking(t, func([]any) any { return []any{"born", "7", int64(-3)} })
	_, err = s.Drain(t.Context(), "a")
	require.ErrorContains(t, err, "how many hold an endpoint")
}

// The highest token is sent back, and the next one is above it.
func TestATokenBeyondCountingIsNotSentBack(t *testing.T) {
	var seen []any
	s := speaking(t, func(args []any) any {
		seen = append(seen, args[1])
		return []any{"born", "9223372036854775807", "ok"}
	})
	for range 2 {
		require.NoError(t, s.Release(t.Context(), lease.Key{ID: "x", Token: 7}))
	}
	assert.Equal(t, []any{int64(0), int64(0)}, seen)
}

// A text under another ID would be the last of each page, for ever.
func TestAListThatGoesInCirclesEnds(t *testing.T) {
	page := make([]any, 500)
	for i := range page {
		page[i] = []any{fmt.Sprintf("b%03d", i), stored, nil, "0", "1", "0", []any{}, []any{}}
	}
	s := speaking(t, func([]any) any { return []any{"born", "7", "1000000", page} })
	_, err := s.List(t.Context())
	require.ErrorContains(t, err, "the ID of an endpoint")

	for i := range page {
		id := fmt.Sprintf("b%03d", i)
		page[i] = []any{id, strings.Replace(stored, `"a"`, `"`+id+`"`, 1), nil, "0", "1", "0", []any{}, []any{}}
	}
	_, err = s.List(t.Context())
	require.ErrorContains(t, err, "the order of endpoints")
}

// Another ID would be read back, under which nothing is known.
func TestWhatIsNotUTF8IsNotStored(t *testing.T) {
	s := speaking(t, func([]any) any { return []any{"born", "7", int64(1)} })
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "\xff")
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), endpoint.Endpoint{ID: "a", URL: url}))
	for _, e := range []endpoint.Endpoint{
		{ID: "\xff", URL: url}, {ID: "a", URL: url, Attributes: map[string]string{"\xff": ""}}, {ID: "a", URL: url, Attributes: map[string]string{"a": "\xff"}},
	} {
		require.ErrorContains(t, s.Put(t.Context(), e), "must be UTF-8")
	}
}

// FuzzAnswers has the scripts answer anything, in JSON. Each call gives an error, or
// something that can be used.
func FuzzAnswers(f *testing.F) {
	f.Add(`["born", "7", "lease", ["7", "\n{}", "60000000", "x.example"]]`)
	f.Fuzz(func(t *testing.T, text string) {
		var answer any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if decoder.Decode(&answer) != nil {
			answer = text // as by the short way
		}
		answer = asRedis(answer)
		s := speaking(t, func(args []any) any {
			seen, ok := args[1].(int64)
			assert.True(t, ok && seen >= 0 && seen <= exact, "%v", args[1])
			return answer
		})
		checkHolder(t, s)
		checkOwner(t, s)
	})
}

// asRedis makes of JSON what a client of Redis makes of its protocol.
func asRedis(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = asRedis(v[i])
		}
	case map[string]any:
		m := map[any]any{}
		for key, value := range v {
			m[key] = asRedis(value)
		}
		return m
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64()
		return n
	}
	return v
}

func checkHolder(t *testing.T, s *redislease.Store) {
	t.Helper()
	if l, err := s.TryAcquire(t.Context(), lease.Request{Holder: "me"}); fine(t, err) {
		checkGrant(t, l.Grant())
	}
	key := lease.Key{ID: "x", Token: 7}
	if grant, err := s.Renew(t.Context(), key, time.Minute); fine(t, err) {
		checkGrant(t, grant)
		require.Equal(t, key, grant.Key)
	}
	fine(t, s.Release(t.Context(), key))
	fine(t, s.ReleaseUnused(t.Context(), key))
	fine(t, s.Report(t.Context(), key, lease.Outcome{Kind: lease.OK}))
	if all, err := s.List(t.Context()); fine(t, err) {
		last := ""
		for _, st := range all {
			require.Greater(t, st.Endpoint.ID, last)
			last = st.Endpoint.ID
			checkEndpoint(t, st.Endpoint)
			require.Contains(t, []endpoint.Health{endpoint.Unknown, endpoint.Healthy, endpoint.Unhealthy}, st.Verdict.Health)
			for _, until := range append(slices.Collect(maps.Values(st.CoolDomains)), st.CoolUntil) {
				require.True(t, until.IsZero() || until.After(time.Now().Add(-time.Minute)), "%v", until)
			}
		}
	}
	if stats, err := s.Stats(t.Context()); fine(t, err) {
		checkCounts(t, stats.Endpoints)
		require.GreaterOrEqual(t, min(stats.Acquired, stats.Released, stats.Renewed, stats.Expired, stats.Revoked), int64(0))
		require.GreaterOrEqual(t, min(stats.Waits, stats.Canceled, stats.LateReports, stats.DroppedReports, int64(stats.Waiting), int64(stats.WaitTime)), int64(0))
		for kind, n := range stats.Outcomes {
			require.NoError(t, lease.Outcome{Kind: kind}.Validate())
			require.GreaterOrEqual(t, n, int64(0))
		}
	}
}

func checkOwner(t *testing.T, s *redislease.Store) {
	t.Helper()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "hunter2")
	require.NoError(t, err)
	fine(t, s.Put(t.Context(), endpoint.Endpoint{ID: "a", URL: url}))
	fine(t, s.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Healthy}))
	fine(t, s.Revoke(t.Context(), "a"))
	fine(t, s.Remove(t.Context(), "a"))
	if n, err := s.Drain(t.Context(), "a"); fine(t, err) {
		require.GreaterOrEqual(t, n, 0)
	}
}

// fine tells whether a call succeeded. Its error has no secret.
func fine(t *testing.T, err error) bool {
	t.Helper()
	if err == nil {
		return true
	}
	require.NotContains(t, err.Error(), "hunter2")
	require.Less(t, len(err.Error()), 1000)
	if unavailable, ok := err.(*lease.UnavailableError); ok { //nolint:errorlint // as it is returned.
		checkCounts(t, unavailable.Counts)
		require.GreaterOrEqual(t, unavailable.RetryAfter, time.Duration(0))
	}
	return false
}

func checkCounts(t *testing.T, c lease.Counts) {
	t.Helper()
	require.GreaterOrEqual(t, min(c.Total, c.NotSelected, c.Draining, c.Unknown, c.Unhealthy, c.Leased, c.Cooling, c.CoolingForDomain, c.Free), 0)
}

func checkGrant(t *testing.T, g lease.Grant) {
	t.Helper()
	require.NotEmpty(t, g.ID)
	require.Positive(t, g.Token)
	require.LessOrEqual(t, g.Token, int64(exact))
	require.Positive(t, g.TTL)
	checkEndpoint(t, g.Endpoint)
}

func checkEndpoint(t *testing.T, e endpoint.Endpoint) {
	t.Helper()
	require.NoError(t, e.Validate())
	again, err := endpoint.ParseURL(e.URL.Reveal())
	require.NoError(t, err)
	require.True(t, e.URL.Equal(again))
}

// FuzzStored reads anything as an endpoint. What is one is written so that it is read
// as the same.
func FuzzStored(f *testing.F) {
	f.Add(stored)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := redislease.Decode(text)
		if !fine(t, err) {
			require.ErrorContains(t, err, "cannot be read")
			return
		}
		checkEndpoint(t, e)
		again, err := redislease.Decode(redislease.Encode(e))
		require.NoError(t, err)
		requireSame(t, e, again)
	})
}

// FuzzEndpoint puts an endpoint, and lists what was sent.
func FuzzEndpoint(f *testing.F) {
	f.Add("a", "crawler", "hunter2", "region", "eu", uint64(1), "192.0.2.1")
	f.Fuzz(func(t *testing.T, id, user, password, key, value string, generation uint64, egress string) {
		url, err := endpoint.NewURL("http", "192.0.2.7:3128", user, password)
		if err != nil {
			return
		}
		want := endpoint.Endpoint{ID: id, URL: url, Attributes: map[string]string{key: value}, Generation: generation}
		want.EgressIP, _ = netip.ParseAddr(egress)
		var put []any
		s := speaking(t, func(args []any) any {
			if len(args) > 5 {
				put = args[3:]
				return []any{"born", "7", int64(1)}
			}
			text := put[5].(string) + "\n" + put[1].(string)
			return []any{"born", "7", "1000", []any{[]any{put[0], text, "{}", "0", "1", "0", []any{}, []any{}}}}
		})
		if err := s.Put(t.Context(), want); err != nil {
			require.True(t, id == "" || !utf8.ValidString(id) || !utf8.ValidString(key) || !utf8.ValidString(value), "%v", err)
			return
		}
		all, err := s.List(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		requireSame(t, want, all[0].Endpoint)
		require.Equal(t, strconv.FormatUint(generation, 10), put[2])
	})
}

func requireSame(t *testing.T, want, got endpoint.Endpoint) {
	t.Helper()
	require.Equal(t, want.ID, got.ID)
	require.True(t, want.URL.Equal(got.URL))
	require.Len(t, got.Attributes, len(want.Attributes))
	for key, value := range want.Attributes {
		require.Equal(t, value, got.Attributes[key])
	}
	require.Equal(t, want.Generation, got.Generation)
	require.Equal(t, want.EgressIP, got.EgressIP)
}

// FuzzReport reads anything as a report of a proxy fault.
func FuzzReport(f *testing.F) {
	f.Add("a", "1", "me", `{"kind":"proxy_fault"}`)
	f.Fuzz(func(t *testing.T, id, generation, holder, outcome string) {
		r, ok := redislease.ReportOf(map[string]any{"id": id, "gen": generation, "holder": holder, "outcome": outcome})
		var want lease.Outcome
		n, err := strconv.ParseUint(generation, 10, 64)
		whole := id != "" && err == nil && json.Unmarshal([]byte(outcome), &want) == nil && want.Validate() == nil
		require.Equal(t, whole, ok)
		if ok {
			require.Equal(t, lease.Report{EndpointID: id, Generation: n, Holder: holder, Outcome: want}, r)
		}
	})
}
