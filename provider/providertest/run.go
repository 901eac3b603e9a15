package providertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// Case is one clause of the contract.
type Case struct {
	// Name is the case's, as of a subtest: "delete-of-nothing".
	Name string
	// Why is the clause itself, with its reason.
	Why string
	// Needs are the fields of the harness without which the case skips.
	Needs []string

	action func(*trial)
}

// Cases returns all cases in the order in which they run: the contract as a
// list.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{createCases, collisionCases, getCases, stateCases, deleteCases, listCases, cancelCases, lastCases} {
		all = append(all, group...)
	}
	return all
}

// Result is what came of one case.
type Result struct {
	Case
	// Err tells what the provider did wrong, and the clause. Nil means that it
	// holds, or that the case was skipped.
	Err error
	// Skipped says why the case did not run; empty if it did.
	Skipped string
}

// Run runs every case as a subtest of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	s, err := newSuite(h)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			r := s.run(t.Context(), c)
			if r.Skipped != "" {
				t.Skip(r.Skipped)
			}
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

// Check runs every case and returns what came of each. It is [Run] for callers
// without a testing.T, such as a test of a harness. Its error is about the
// harness.
func Check(ctx context.Context, h Harness) ([]Result, error) {
	s, err := newSuite(h)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var results []Result
	for _, c := range Cases() {
		results = append(results, s.run(ctx, c))
	}
	return results, nil
}

// run runs one case, cleans up after it, and puts its problems together.
func (s *suite) run(ctx context.Context, c Case) Result {
	if missing := s.h.missing(c.Needs); missing != "" {
		return Result{Case: c, Skipped: "not checked, needs " + missing + ": " + c.Why}
	}
	t := &trial{suite: s, ctx: ctx, tags: map[string]bool{}, ids: map[string]bool{}, p: s.main}
	t.tag = t.newTag()
	t.runAction(c.action)
	t.cleanUp()
	return Result{Case: c, Err: t.verdict(c)}
}

// runAction lets the case end itself, as testing does.
func (t *trial) runAction(action func(*trial)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				t.errorf("panic: %v\n%s", p, stack())
			}
		}()
		defer t.undoAll()
		action(t)
	}()
	<-done
}

func stack() []byte {
	buf := make([]byte, 4<<10)
	return buf[:runtime.Stack(buf, false)]
}

// verdict joins the problems and the clause.
func (t *trial) verdict(c Case) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(t.problems, "\n") + "\n" + wrap("the contract: "+c.Why))
}

// wrap breaks a text into lines of at most 78 characters.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		if column > 0 && column+1+len(word) > 78 {
			b.WriteByte('\n')
			column = 0
		}
		if column > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// errorf notes a problem and goes on.
func (t *trial) errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

// fatalf notes a problem and ends the case. Only the case's own goroutine may
// call it.
func (t *trial) fatalf(format string, args ...any) {
	t.errorf(format, args...)
	runtime.Goexit()
}
