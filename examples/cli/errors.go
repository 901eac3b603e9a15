package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/provider"
)

// The exit codes, which the help of the program explains.
const (
	exitOK          = 0
	exitOther       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitQuota       = 4
	exitPermanent   = 5
	exitTransient   = 6
	exitInterrupted = 130
)

// exitCode is that of an error's class. Of several errors the one counts that
// repeating the command helps least.
func exitCode(err error) int {
	for _, class := range []struct {
		sentinel error
		code     int
	}{
		{errInterrupted, exitInterrupted},
		{errUsage, exitUsage},
		{provider.ErrPermanent, exitPermanent},
		{provider.ErrQuotaExceeded, exitQuota},
		{provider.ErrNotFound, exitNotFound},
		{provider.ErrTransient, exitTransient},
		{context.DeadlineExceeded, exitTransient},
	} {
		if errors.Is(err, class.sentinel) {
			return class.code
		}
	}
	if err != nil {
		return exitOther
	}
	return exitOK
}

// errUsage marks what is wrong with flags and arguments.
var errUsage = errors.New("wrong usage")

// usagef returns an error of wrong usage.
func usagef(format string, args ...any) error { return asUsage(fmt.Errorf(format, args...)) }

func asUsage(err error) error { return marked{err, errUsage} }

// permanent gives a class to an error that has none.
func permanent(err error) error { return marked{err, provider.ErrPermanent} }

// marked is an error with a class that its text does not show.
type marked struct{ cause, class error }

func (m marked) Error() string   { return m.cause.Error() }
func (m marked) Unwrap() []error { return []error{m.cause, m.class} }

// advised is an error that knows what to do next.
type advised struct {
	error
	next string
}

func (e advised) Unwrap() error { return e.error }

// advise says what to do next.
func advise(err error, format string, args ...any) error {
	return advised{err, fmt.Sprintf(format, args...)}
}

// report tells an error, and what to do next.
func (a *app) report(err error) {
	if err == nil {
		return
	}
	for _, e := range parts(err) {
		a.screen.say("%s: %s", programName, strings.ReplaceAll(e.Error(), "\n", "\n  "))
		if next := nextStep(e); next != "" {
			a.screen.say("  next: %s", next)
		}
	}
}

// parts takes joined errors apart: those whose text is one error a line.
func parts(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // a wrapped one is one error.
	if !ok {
		return []error{err}
	}
	var all []error
	var texts []string
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
		texts = append(texts, e.Error())
	}
	if err.Error() != strings.Join(texts, "\n") {
		return []error{err}
	}
	return all
}

// nextStep is an error's own advice, or that of its class.
func nextStep(err error) string {
	var own advised
	switch {
	case errors.As(err, &own):
		return own.next
	case errors.Is(err, errInterrupted):
		return ""
	case errors.Is(err, errUsage):
		return "see " + programName + " COMMAND --help"
	case errors.Is(err, provider.ErrPermanent):
		return "correct what it names, in the providers file, in the flags or on the host; trying again does not help"
	case errors.Is(err, provider.ErrQuotaExceeded):
		return "free memory or disk on the host, or have the cloud's quota raised; remove instances by rm, or choose another place by --zone"
	case errors.Is(err, provider.ErrNotFound):
		return "somebody removed it; see what there is by ls, or make another by up"
	case exitCode(err) == exitTransient:
		return "try again; -v shows every call"
	}
	return "run it again with -v to see every call"
}

// afterProbe is what to do about a probe that failed.
func afterProbe(err error) string {
	var failed *endpoint.Error
	errors.As(err, &failed)
	switch {
	case failed == nil || failed.Stage <= endpoint.StageProxyTLS:
		return "no proxy listens there, or this machine cannot reach it: look into the guest with --keep and --ssh-key, at /var/log/cloud-init-output.log"
	case failed.Status == http.StatusProxyAuthRequired:
		return "the proxy does not know the password: was it made with another --key-file?"
	case failed.Status == http.StatusForbidden:
		return "the proxy refuses: allow the target's private network by --destinations, its port by --connect-ports, and this machine by --clients"
	case failed.Stage == endpoint.StageTargetTLS:
		return "name the target's certificate authority by --probe-ca, or another target by --probe"
	}
	return "check that the guest has a way out and a resolver; name another target by --probe, or leave the probe out by --no-probe"
}
