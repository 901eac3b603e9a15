package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The four classes of a provider's errors. Match them with errors.Is.
var (
	// ErrNotFound says that the backend proved the instance absent.
	ErrNotFound = errors.New("not found")
	// ErrQuotaExceeded says that a quota or the capacity is used up: retry
	// slowly, or elsewhere.
	ErrQuotaExceeded = errors.New("quota or capacity exceeded")
	// ErrPermanent says that the request, the configuration or a permission is
	// wrong: retrying cannot help.
	ErrPermanent = errors.New("permanent failure")
	// ErrTransient says that trying again later may help.
	ErrTransient = errors.New("transient failure")
)

// Codes that the contract itself defines. All others are the backend's own.
const (
	// CodeCollision marks a name that is held by another tag or UID.
	CodeCollision = "Collision"
	// CodeMalformedID marks an ID that has not the form of this provider's.
	CodeMalformedID = "MalformedID"
	// CodeUnconfigured marks an ID whose host or zone is not in the
	// configuration. What runs there is the administrator's: callers that must
	// finish let go of it loudly, with the ID.
	CodeUnconfigured = "Unconfigured"
	// CodeInvalidRequest marks a request that [CreateRequest.Validate] refuses.
	CodeInvalidRequest = "InvalidRequest"
	// CodeTerminal marks the error of [WaitRunning] about an instance that is
	// Stopped or Failed.
	CodeTerminal = "Terminal"
	// CodeInFlight marks the cause that an [Explainer] gives for an instance that is
	// still being made, or has come meanwhile: ask Get again.
	CodeInFlight = "InFlight"
	// CodeUnsupported marks what this provider cannot do.
	CodeUnsupported = "Unsupported"
)

// Error is a provider's error with what is known of it. Only Class and Err are
// always set.
type Error struct {
	// Class is one of the four sentinels. Nil counts as ErrTransient.
	Class error
	// Op is the method that failed: "Create", "Get", "Delete", "ListByTag".
	Op string
	// Provider is the configured name of the provider.
	Provider string
	// ID is the instance's, where one is known.
	ID string
	// Code is the backend's own word for the error, or one of the constants
	// here: "ErrNoDomain", "ZONE_RESOURCE_POOL_EXHAUSTED", "Collision".
	Code string
	// Scope is what the error is about, where narrower than the provider: a
	// host, a zone, a quota.
	Scope string
	// RetryAfter is the backend's own advice; zero where it gave none.
	RetryAfter time.Duration
	// Err is the cause.
	Err error
}

// Error puts together what is known, the cause last.
func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Provider, e.Op, e.ID} {
		if part != "" {
			b.WriteString(part + " ")
		}
	}
	text := strings.TrimSuffix(b.String(), " ")
	if text != "" {
		text += ": "
	}
	if e.Scope != "" {
		text += e.Scope + ": "
	}
	if e.Err != nil {
		text += e.Err.Error()
	} else {
		text += e.class().Error()
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	return text
}

// Unwrap gives the class and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.class()}
	}
	return []error{e.class(), e.Err}
}

func (e *Error) class() error {
	if e.Class == nil {
		return ErrTransient
	}
	return e.Class
}

// Permanentf is for those who write providers. It makes an [*Error] of the class
// ErrPermanent, with a code, of what [fmt.Errorf] makes of the format.
func Permanentf(code, format string, args ...any) error {
	return &Error{Class: ErrPermanent, Code: code, Err: fmt.Errorf(format, args...)}
}

// Transientf is like [Permanentf], with the class ErrTransient. Of the end of a context, and of a time-out of the
// network, which matches the same, it keeps the text alone: else the provider's own
// would be taken for that of the caller's context.
func Transientf(code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errors.New(err.Error())
	}
	return &Error{Class: ErrTransient, Code: code, Err: err}
}

// Quotaf is like [Permanentf], with the class ErrQuotaExceeded.
func Quotaf(code, format string, args ...any) error {
	return &Error{Class: ErrQuotaExceeded, Code: code, Err: fmt.Errorf(format, args...)}
}

// HasCode tells whether err is, or wraps, an [*Error] with that code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Class returns the class of err as one of a closed set of words, for metrics:
// "ok" for nil, "canceled" for a call that its context cut short, "not_found",
// "quota_exceeded", "permanent", and "transient" for all others.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrQuotaExceeded):
		return "quota_exceeded"
	case errors.Is(err, ErrPermanent):
		return "permanent"
	}
	return "transient"
}

// PartialError says that a list is not whole. It is ErrTransient: ask again.
// Callers adopt what they see, keep the missing in their counts, and sweep only
// scopes that answered.
type PartialError struct {
	// Missing has an entry for each scope that did not answer, and for each
	// instance that could not be read.
	Missing []Missing
}

// Missing is one scope that a list could not read.
type Missing struct {
	// Scope is the host or zone, or the ID of an instance.
	Scope string
	// Err says why.
	Err error
}

// Error names every missing scope with its reason.
func (e *PartialError) Error() string {
	reasons := make([]string, 0, len(e.Missing))
	for _, m := range e.Missing {
		reasons = append(reasons, fmt.Sprintf("%s: %v", m.Scope, m.Err))
	}
	return "the list is not whole: " + strings.Join(reasons, "; ")
}

// Is matches ErrTransient, and a context's error where one cut a scope short.
func (e *PartialError) Is(target error) bool {
	switch target {
	case ErrTransient:
		return true
	case context.Canceled, context.DeadlineExceeded:
		for _, m := range e.Missing {
			if errors.Is(m.Err, target) {
				return true
			}
		}
	}
	return false
}
