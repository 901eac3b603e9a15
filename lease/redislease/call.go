package redislease

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/lease"
)

//go:embed lua
var lua embed.FS

// scripts are the transitions. Each is its own file behind those that it shares with
// others.
type scripts struct {
	acquire, leave, renew, release, report     *redis.Script
	put, remove, verdict, drain, revoke, reads *redis.Script
	stats                                      *redis.Script
}

var production = compile(source("clock"), source("quick"))

// compile makes them with what tells the time, and what tells whether the short way
// will do.
func compile(clock, quick string) *scripts {
	// Those that free memory, or keep what is there, run where it is full.
	const full = "#!lua flags=allow-oom\n"
	const bounded = "#!lua\n"
	// Defining functions takes most of a script's time, so those that an ordinary
	// acquire and release do not need are within one.
	rare := "function rare()\nlocal self\n" + source("face", "class", "queue", "due", "rare") + "end\n"
	long := source("store", "slot", "lease") + rare + source("begin")
	shared := clock + long
	return &scripts{
		acquire: redis.NewScript(bounded + clock + quick + source("quickacquire") + long + source("pick", "acquire")),
		leave:   redis.NewScript(full + shared + source("pick", "leave")),
		renew:   redis.NewScript(full + shared + source("renew")),
		release: redis.NewScript(full + clock + quick + source("quickrelease") + long + source("release")),
		report:  redis.NewScript(full + shared + source("report")),
		put:     redis.NewScript(bounded + shared + source("put")),
		remove:  redis.NewScript(full + shared + source("remove")),
		verdict: redis.NewScript(full + shared + source("verdict")),
		drain:   redis.NewScript(full + shared + source("drain")),
		revoke:  redis.NewScript(full + shared + source("revoke")),
		reads:   redis.NewScript(full + shared + source("list")),
		stats:   redis.NewScript(full + shared + source("pick", "stats")),
	}
}

// source is the text of those files, in order.
func source(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // they are part of the program
		}
		b.Write(text)
	}
	return b.String()
}

// reply is what a script answers, without what every answer begins with.
type reply []any

func (r reply) text(i int) string {
	if i < len(r) {
		if s, ok := r[i].(string); ok {
			return s
		}
	}
	return ""
}

func (r reply) list(i int) reply {
	if i < len(r) {
		if l, ok := r[i].([]any); ok {
			return l
		}
	}
	return nil
}

// exact is up to where scripts count.
const exact = 1 << 53

// number reads an integer, or one that was written out. What is none is zero.
func (r reply) number(i int) int64 {
	n, _ := r.isNumber(i)
	return n
}

func (r reply) isNumber(i int) (n int64, ok bool) {
	if i < len(r) {
		n, ok = r[i].(int64)
	}
	if !ok {
		read, err := strconv.ParseInt(r.text(i), 10, 64)
		n, ok = read, err == nil
	}
	if n < -exact || n > exact {
		return 0, false
	}
	return n, ok
}

// count reads how many of something there are.
func (r reply) count(i int) int64 { return max(r.number(i), 0) }

// errUnreadable says that what came from Redis is none of this package's: another
// program, or another version, has written there.
var errUnreadable = errors.New("redislease: what Redis has cannot be read")

// word reads the word that an answer begins with, which is one of those.
func (r reply) word(known ...string) (string, error) {
	if word := r.text(0); slices.Contains(known, word) {
		return word, nil
	}
	return "", fmt.Errorf("%w: an answer of a script", errUnreadable)
}

type result struct {
	reply reply
	err   error
}

// job is a call that waits for its turn.
type job struct {
	ctx      context.Context
	script   *redis.Script
	args     []any
	answered chan result
}

// Calls that come while maxTrips round trips are under way wait, and then go together:
// up to maxTogether in one. So a store that many use costs Redis and its clients
// few packets, and one that few use delays nobody.
const (
	maxTrips    = 8
	maxTogether = 32
)

// do runs a script and returns when it has answered or ctx has ended, even where
// Redis hangs. The call itself goes on until CallTimeout.
func (s *Store) do(ctx context.Context, script *redis.Script, args ...any) (reply, error) {
	j := job{ctx, script, args, make(chan result, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, lease.ErrClosed
	}
	s.jobs = append(s.jobs, j)
	if s.trips < maxTrips {
		s.trips++
		go s.work()
	}
	s.mu.Unlock()
	select {
	case r := <-j.answered:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("redislease: %w", ctx.Err())
	}
}

// work makes the calls that wait until there are none.
func (s *Store) work() {
	for {
		s.mu.Lock()
		n := min(len(s.jobs), maxTogether)
		if n == 0 {
			s.trips--
			s.mu.Unlock()
			return
		}
		jobs := slices.Clone(s.jobs[:n])
		s.jobs = slices.Delete(s.jobs, 0, n)
		s.mu.Unlock()
		s.call(jobs)
	}
}

// call makes calls in one round trip. One whose script Redis does not know is made
// again with the script's text.
func (s *Store) call(jobs []job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(jobs[0].ctx), s.cfg.CallTimeout)
	defer cancel()
	known, seen, settings := *s.known.Load(), s.seen.Load(), s.settings
	if s.clock != nil {
		settings = fmt.Sprint(settings, " ", s.clock())
	}
	args := func(j job) []any {
		return append(append(make([]any, 0, 3+len(j.args)), known, seen, settings), j.args...)
	}
	pipe := s.cfg.Client.Pipeline()
	answers := make([]*redis.Cmd, 0, len(jobs))
	for _, j := range jobs {
		answers = append(answers, j.script.EvalSha(ctx, pipe, []string{s.base}, args(j)...))
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	for i, j := range jobs {
		if redis.HasErrorPrefix(answers[i].Err(), "NOSCRIPT") {
			answers[i] = j.script.Eval(ctx, s.cfg.Client, []string{s.base}, args(j)...)
		}
		r, err := s.learn(known, answers[i])
		j.answered <- result{r, err}
	}
}

// learn reads an answer, and from it what there is to know of the store.
func (s *Store) learn(known string, cmd *redis.Cmd) (reply, error) {
	answer, err := cmd.Result()
	if err != nil {
		return nil, fmt.Errorf("redislease: %w", err)
	}
	r, err := replyOf(answer)
	if err != nil {
		return nil, err
	}
	if born := r.text(0); born != known && born != "" {
		s.reborn(known, born)
	}
	s.see(r.number(1))
	return r[2:], nil
}

// replyOf reads what a script answers: a list or, by the short way, a text, which has
// the last token, and behind it what was granted.
func replyOf(answer any) (reply, error) {
	switch a := answer.(type) {
	case []any:
		if len(a) >= 2 {
			return a, nil
		}
	case string:
		token, granted, leased := strings.Cut(a, " ")
		if leased {
			return reply{"", token, "lease", []any{token, granted}}, nil
		}
		return reply{"", token, "ok"}, nil
	}
	return nil, fmt.Errorf("%w: an answer of a script", errUnreadable)
}

// reborn takes note of another incarnation of the store than was known.
func (s *Store) reborn(known, born string) {
	if known != "" {
		s.log.Info("the store has lost its data: nothing is leased until all former leases must have ended", "fleet", s.cfg.Fleet, "for", s.cfg.MaxTTL)
	}
	s.known.Store(&born)
}

// see takes note of a token.
func (s *Store) see(token int64) {
	for {
		seen := s.seen.Load()
		if token <= seen || s.seen.CompareAndSwap(seen, token) {
			return
		}
	}
}

// permanent tells whether asking again cannot help before somebody changes
// something: the password, the rights, the server, what it has. A client that was closed
// stays so.
func permanent(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, lease.ErrClosed) || errors.Is(err, redis.ErrClosed) || errors.Is(err, errUnreadable) {
		return true
	}
	for _, prefix := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "ERR", "WRONGTYPE"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
