package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"github.com/egressfleet/egress/provider"
)

// The codes that are ours; the package's page explains them.
const (
	codeBadPlacement       = "BadPlacement"
	codeUserDataTooLarge   = "UserDataTooLarge"
	codeCredentialsMissing = "CredentialsMissing"
	codeCredentialsInvalid = "CredentialsInvalid"
	codeNoAnswer           = "NoAnswer"
	codeConnectionLost     = "ConnectionLost"
	codeNoZoneLeft         = "NoZoneLeft"
	codeBadRecord          = "BadRecord"
)

// complaint is what the API said of a failure, by an HTTP error or by an
// operation.
type complaint struct {
	// status is that of HTTP; 0 in an operation that has none.
	status int
	// codes are all words for it, the most general one first.
	codes []string
	// message is for people.
	message string
	// retryAfter is the API's own advice.
	retryAfter time.Duration
}

// Waits after a failure that gives none of its own. Google says that a stockout
// may last minutes or days; a fleet waits longer each time.
const (
	capacityWait = 5 * time.Minute
	quotaWait    = 5 * time.Minute
	addressWait  = time.Minute
)

// rule is one row of the table of errors.
type rule struct {
	// code matches a code of the complaint as a whole or without its variant, such as
	// "_WITH_DETAILS"; text its message; status that of HTTP. One that is empty
	// matches all.
	code, text *regexp.Regexp
	status     []int
	class      error
	// wait is how long to wait; nil for no advice.
	wait func() time.Duration
	// remedy is what to do, for people.
	remedy string
}

// rules is the one table of the API's errors. The first row that matches counts:
// rate limits come before quotas, because their codes speak of quotas too.
var rules = []rule{
	// Requests per minute. Compute Engine answers 403 where others answer 429.
	{code: word("rateLimitExceeded|userRateLimitExceeded|RATE_LIMIT_EXCEEDED|CONCURRENT_OPERATIONS_QUOTA_EXCEEDED|RESOURCE_OPERATION_RATE_EXCEEDED"), class: provider.ErrTransient, wait: nextMinute},
	{text: regexp.MustCompile(`(?i)quota exceeded for quota metric|per minute`), class: provider.ErrTransient, wait: nextMinute},
	{status: []int{http.StatusTooManyRequests}, class: provider.ErrTransient, wait: nextMinute},

	// Room and quotas.
	{code: word("(ZONE_|REGION_)?RESOURCE_POOL_EXHAUSTED"), class: provider.ErrQuotaExceeded, wait: always(capacityWait), remedy: "the zone has no room for this machine type: try another zone or type"},
	{code: word("IP_SPACE_EXHAUSTED"), class: provider.ErrQuotaExceeded, wait: always(addressWait), remedy: "the subnetwork has no address left"},
	{code: regexp.MustCompile(`(?i)quota|^limitExceeded$`), class: provider.ErrQuotaExceeded, wait: always(quotaWait)},

	// What passes.
	{code: word("resourceNotReady|RESOURCE_NOT_READY|RESOURCE_NOT_FOUND|UNSUPPORTED_OPERATION|INTERNAL_ERROR|backendError|internalError|CONFLICT"), class: provider.ErrTransient},

	// What a person must mend.
	{code: word("conditionNotMet|CONDITION_NOT_MET"), class: provider.ErrPermanent, remedy: "a policy of the organization forbids it; for external addresses it is constraints/compute.vmExternalIpAccess"},
	{code: word("accessNotConfigured|SERVICE_DISABLED"), class: provider.ErrPermanent, remedy: "enable the API: gcloud services enable compute.googleapis.com"},
	{code: word("PERMISSIONS_ERROR|forbidden|PERMISSION_DENIED|IAM_PERMISSION_DENIED"), class: provider.ErrPermanent},
	{text: regexp.MustCompile(`(?i)does not exist in zone`), class: provider.ErrPermanent},
	{code: word("invalid|invalidResourceUsage|INVALID_USAGE|INVALID_FIELD_VALUE|badRequest|required|parseError"), class: provider.ErrPermanent},
	{status: []int{400, 401, 402, 403, 405, 410, 411, 412, 413, 414, 422}, class: provider.ErrPermanent},

	// A name that is not found is the instance's own absence only where the answer
	// says so; see absent.
	{status: []int{404}, class: provider.ErrPermanent},
}

// word matches one of the codes, with or without a variant behind it.
func word(codes string) *regexp.Regexp {
	return regexp.MustCompile(`^(?:` + codes + `)(?:_[A-Z_]+)?$`)
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// nextMinute is the time until the API fills up its limits again: at the start
// of a minute, and not a minute after the refusal.
func nextMinute() time.Duration {
	now := time.Now()
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}

func (r rule) matches(c complaint) bool {
	if r.code != nil && !slices.ContainsFunc(c.codes, r.code.MatchString) ||
		r.text != nil && !r.text.MatchString(c.message) {
		return false
	}
	return len(r.status) == 0 || slices.Contains(r.status, c.status)
}

// code is the word that the rule goes by, as it came.
func (r rule) word(c complaint) string {
	for _, code := range c.codes {
		if r.code != nil && r.code.MatchString(code) {
			return code
		}
	}
	if len(c.codes) > 0 {
		return c.codes[0]
	}
	return fmt.Sprintf("HTTP %d", c.status)
}

// classify looks a complaint up. What is in no row is transient. rank is the
// place of the row.
func (c complaint) classify(cause error) (out *provider.Error, rank int) {
	for rank, r := range rules {
		if r.matches(c) {
			out := &provider.Error{Class: r.class, Code: r.word(c), Scope: c.scope(), RetryAfter: c.retryAfter, Err: cause}
			if out.RetryAfter == 0 && r.wait != nil {
				out.RetryAfter = r.wait()
			}
			if r.remedy != "" {
				out.Err = fmt.Errorf("%w: %s", cause, r.remedy)
			}
			return out, rank
		}
	}
	return &provider.Error{Class: provider.ErrTransient, Code: rule{}.word(c), RetryAfter: c.retryAfter, Err: cause}, len(rules)
}

// What messages say of quotas and zones.
var (
	quotaPattern    = regexp.MustCompile(`Quota '([^']+)' exceeded\.?(?:\s+Limit: *[0-9.]+ *(?:in region ([a-z0-9-]+)|(globally))?)?`)
	inZonePattern   = regexp.MustCompile(`(?:[zZ]one '?(?:projects/[^/' ]+/zones/)?)([a-z]+(?:-[a-z0-9]+)*-[a-z])\b`)
	instancePattern = regexp.MustCompile(`'?projects/[^' ]+/zones/[^' /]+/instances/([^' /]+)'?`)
)

// scope is what a complaint is about, where its message tells.
func (c complaint) scope() string {
	if m := quotaPattern.FindStringSubmatch(c.message); m != nil {
		switch {
		case m[2] != "":
			return "quota " + m[1] + " in region " + m[2]
		case m[3] != "":
			return "quota " + m[1] + " of the project"
		}
		return "quota " + m[1]
	}
	if m := inZonePattern.FindStringSubmatch(c.message); m != nil {
		return m[1]
	}
	return ""
}

// heard is the complaint of an HTTP error.
func heard(e *googleapi.Error) complaint {
	c := complaint{status: e.Code, message: e.Message}
	for _, item := range e.Errors {
		if item.Reason != "" {
			c.codes = append(c.codes, item.Reason)
		}
		c.message = or(c.message, item.Message)
	}
	for _, detail := range e.Details {
		if fields, ok := detail.(map[string]any); ok {
			if reason, ok := fields["reason"].(string); ok && reason != "" {
				c.codes = append(c.codes, reason)
			}
		}
	}
	if d, err := time.ParseDuration(e.Header.Get("Retry-After") + "s"); err == nil && d > 0 {
		c.retryAfter = d
	}
	return c
}

// operationError is the error of a finished operation; nil if it has none. Of
// several the one that stands first in the table counts.
func operationError(op *computepb.Operation) error {
	all := op.GetError().GetErrors()
	if len(all) == 0 && op.GetHttpErrorStatusCode() >= 300 {
		all = []*computepb.Errors{{Message: op.HttpErrorMessage}}
	}
	var first *provider.Error
	best := len(rules) + 1
	for _, e := range all {
		c := complaint{status: int(op.GetHttpErrorStatusCode()), message: e.GetMessage()}
		if e.GetCode() != "" {
			c.codes = []string{e.GetCode()}
		}
		text := or(e.GetMessage(), or(e.GetCode(), "the operation failed"))
		if out, rank := c.classify(errors.New(text)); rank < best {
			first, best = out, rank
		}
	}
	if first == nil {
		return nil
	}
	first.Scope = or(first.Scope, lastPart(op.GetZone()))
	return first
}

// hasStatus tells of an HTTP error with that status.
func hasStatus(err error, status int) bool {
	var e *googleapi.Error
	return errors.As(err, &e) && e.Code == status
}

// absent tells whether an error proves that the instance of that name is not
// there: a 404 of the API that does not speak of something else, such as the
// project. One of somebody between here and the API has no such message.
func absent(err error, name string) bool {
	var e *googleapi.Error
	if !errors.As(err, &e) || e.Code != http.StatusNotFound || e.Message == "" {
		return false
	}
	if m := instancePattern.FindStringSubmatch(e.Message); m != nil {
		return m[1] == name
	}
	return !strings.Contains(e.Message, "projects/") && slices.Contains(heard(e).codes, "notFound")
}

// unsure tells whether a call may have had its effect all the same.
func unsure(err error) bool {
	var e *googleapi.Error
	if errors.As(err, &e) {
		return e.Code >= 500
	}
	var known *provider.Error
	return !errors.As(err, &known) || known.Code == codeNoAnswer || known.Code == codeConnectionLost
}

// classify gives a class and a code to an error that has none.
func classify(err error) *provider.Error {
	var known *provider.Error
	if errors.As(err, &known) {
		return &provider.Error{Class: known.Class, Code: known.Code, Scope: known.Scope, ID: known.ID, RetryAfter: known.RetryAfter, Err: stripped(err, known)}
	}
	var api *googleapi.Error
	if errors.As(err, &api) {
		out, _ := heard(api).classify(&apiError{api, err})
		return out
	}
	return &provider.Error{Class: provider.ErrTransient, Err: err}
}

// apiError prints what the API said without the frills of googleapi.Error, which
// repeats message and body.
type apiError struct {
	api *googleapi.Error
	err error // what the client returned
}

// Error is the message.
func (e *apiError) Error() string {
	message := e.api.Message
	if message == "" && len(e.api.Errors) > 0 {
		message = e.api.Errors[0].Message
	}
	return fmt.Sprintf("%s (HTTP %d)", strings.TrimSpace(or(message, http.StatusText(e.api.Code))), e.api.Code)
}

// Unwrap gives the error of the client to errors.As.
func (e *apiError) Unwrap() error { return e.err }

// stripped is err without the outer shell where that is the known error
// itself, whose parts the new error shows.
func stripped(err error, known *provider.Error) error {
	if err == error(known) && known.Err != nil { //nolint:errorlint // the shell itself is asked for.
		return known.Err
	}
	return err
}

// connection is an error of the way to the API, or of the credentials.
func connection(err error) error {
	var refused *auth.Error
	if errors.As(err, &refused) && refused.Response != nil && !refused.Temporary() {
		return provider.Permanentf(codeCredentialsInvalid, "the credentials are refused: %w", err)
	}
	return provider.Transientf(codeConnectionLost, "the API cannot be reached: %w", err)
}

// failure is the error of one method of the contract.
func (p *Provider) failure(op, id, scope string, err error) error {
	if err == nil {
		return nil
	}
	out := classify(err)
	out.Op, out.Provider, out.ID = op, p.cfg.Name, or(id, out.ID)
	if out.Class == provider.ErrQuotaExceeded { //nolint:errorlint // a sentinel itself.
		out.Scope = or(out.Scope, scope)
	}
	return out
}
