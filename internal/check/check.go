// Package check collects everything that is wrong with a configuration, so
// that its user sees all of it at once.
//
//	var problems check.Problems
//	problems.Require(cfg.User != "", "user", "give the account to log in as")
//	problems.Add("port", cfg.Port, "must lie between 1 and 65535")
//	return problems.Err()
//
// Each problem names the path of its field. A value is shown only where the
// caller passes it: secrets never are.
package check

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Problems is a list of what is wrong. The zero value is empty and ready.
type Problems struct {
	errs []error
}

// Add reports that the field at path holds a bad value. The problem says what
// is wrong and what to do. A string is shown quoted.
func (p *Problems) Add(path string, value any, problem string) {
	if s, ok := value.(string); ok {
		p.errs = append(p.errs, fmt.Errorf("%s: %q: %s", path, s, problem))
		return
	}
	p.errs = append(p.errs, fmt.Errorf("%s: %v: %s", path, value, problem))
}

// Missing reports that the field at path must be set, without a value.
func (p *Problems) Missing(path, remedy string) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s", path, remedy))
}

// Require calls Missing unless ok holds.
func (p *Problems) Require(ok bool, path, remedy string) {
	if !ok {
		p.Missing(path, remedy)
	}
}

// Within takes over the problems of a nested field, each path set below path;
// an empty path leaves them as they are.
// An error that is no list of problems is taken as one.
func (p *Problems) Within(path string, err error) {
	for _, e := range flatten(err) {
		if path == "" {
			p.errs = append(p.errs, e)
			continue
		}
		p.errs = append(p.errs, fmt.Errorf("%s%s%w", path, joiner(e), e))
	}
}

// Err returns all problems joined by errors.Join, in the order they were
// found, or nil where there are none.
func (p *Problems) Err() error { return errors.Join(p.errs...) }

func flatten(err error) []error {
	switch joined := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

var fieldPath = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.\[\]"-]*: `)

// joiner is the dot between a path and a problem that begins with a path of
// its own, and a colon before any other text.
func joiner(err error) string {
	if strings.HasPrefix(err.Error(), "[") {
		return ""
	}
	if fieldPath.MatchString(err.Error()) {
		return "."
	}
	return ": "
}
