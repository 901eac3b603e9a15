package kubernetes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/provider"
)

// The codes that are ours; the package's page explains them.
const (
	codeNoAnswer       = "NoAnswer"
	codeConnectionLost = "ConnectionLost"
	codeBusy           = "Busy"
	codeBadRecord      = "BadRecord"
	codeBadClient      = "BadClient"
)

// busy is for what passes as soon as somebody else is done.
func busy(format string, args ...any) error { return provider.Transientf(codeBusy, format, args...) }

// rule is one row of the table of errors.
type rule struct {
	// status are codes of HTTP; text matches the message. One that is empty matches
	// all.
	status []int32
	text   *regexp.Regexp
	class  error
}

// rules is the one table of the API's errors. The first row that matches counts;
// what is in no row is transient. 403 is the answer of the authorizer, and of every
// admission plugin that refuses: the text tells them apart.
var rules = []rule{
	{status: []int32{http.StatusForbidden}, text: regexp.MustCompile(`exceeded quota`), class: provider.ErrQuotaExceeded},
	// A quota or a namespace that is new: its controller has not seen it yet.
	{status: []int32{http.StatusForbidden}, text: regexp.MustCompile(`status unknown for quota|error looking up service account`), class: provider.ErrTransient},
	{status: []int32{http.StatusInsufficientStorage}, class: provider.ErrQuotaExceeded},
	// 404 of the pod itself is told by absent, before this table is asked: here it is
	// a namespace.
	{status: []int32{400, 401, 403, 404, 405, 406, 413, 415, 422}, class: provider.ErrPermanent},
}

// classOf looks a complaint of the API up.
func classOf(s metav1.Status) error {
	for _, r := range rules {
		if slices.Contains(r.status, s.Code) && (r.text == nil || r.text.MatchString(s.Message)) {
			return r.class
		}
	}
	return provider.ErrTransient
}

// unexpected tells of an answer that is not the API's own: somebody between here
// and there gave it, a load balancer without servers for instance.
func unexpected(s metav1.Status) bool {
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// absent tells whether an error proves that the object of that name is not there: a
// 404 of the API server itself that names it.
func absent(err error, resource, name string) bool {
	s, ok := statusOf(err)
	return ok && s.Reason == metav1.StatusReasonNotFound && !unexpected(s) &&
		s.Details != nil && s.Details.Kind == resource && s.Details.Name == name
}

// statusOf is what the API server said, if it did.
func statusOf(err error) (metav1.Status, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return metav1.Status{}, false
	}
	return status.Status(), true
}

// classify gives a class and a code to an error that has none.
func classify(err error) *provider.Error {
	var known *provider.Error
	if errors.As(err, &known) {
		out := *known
		return &out
	}
	if s, ok := statusOf(err); ok {
		return classifyStatus(err, s)
	}
	return &provider.Error{Class: provider.ErrTransient, Err: err}
}

func classifyStatus(err error, s metav1.Status) *provider.Error {
	out := &provider.Error{Class: classOf(s), Code: string(s.Reason), Err: err}
	if unexpected(s) && s.Code == http.StatusNotFound {
		out.Class = provider.ErrTransient
	}
	if out.Code == "" || unexpected(s) {
		out.Code = fmt.Sprintf("HTTP %d", s.Code)
	}
	if s.Details != nil {
		out.RetryAfter = time.Duration(s.Details.RetryAfterSeconds) * time.Second
	}
	return out
}

// final tells whether an error ends a Create for good, so that what it made must
// go at once.
func final(err error) bool {
	class := classify(err).Class
	return class == provider.ErrPermanent || class == provider.ErrQuotaExceeded //nolint:errorlint // sentinels themselves.
}

// failure is the error of one method of the contract.
func (p *Provider) failure(op, id string, err error) error {
	if err == nil {
		return nil
	}
	out := classify(err)
	out.Op, out.Provider, out.ID = op, p.cfg.Name, or(id, out.ID)
	if out.Class == provider.ErrQuotaExceeded { //nolint:errorlint // a sentinel itself.
		out.Scope = or(out.Scope, "namespace "+p.cfg.Namespace)
	}
	return out
}

// shortest is the length of a line of user-data below which it says nothing.
const shortest = 8

// withheld keeps an error of a call about a Secret from repeating what is in it,
// as a webhook's may: then class and code are all that is told.
func withheld(err error, files map[string][]byte, secrets ...string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, content := range files {
		secrets = append(secrets, base64.StdEncoding.EncodeToString(content))
		secrets = append(secrets, strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' || r == '\r' })...)
	}
	for _, s := range secrets {
		if s = strings.TrimSpace(s); len(s) >= shortest && strings.Contains(text, s) {
			out := classify(err)
			out.Err = errors.New("the API server's message is withheld: it repeats what is in the Secret")
			return out
		}
	}
	return err
}
