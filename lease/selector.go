package lease

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Selector chooses endpoints by their attributes: all its requirements must
// hold. The empty one chooses all. It has the form and meaning of Kubernetes'
// label selectors.
type Selector []Requirement

// Requirement is one condition on an attribute.
type Requirement struct {
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	// Values are those of In and NotIn; the others have none.
	Values []string `json:"values,omitempty"`
}

// Operator relates an attribute to values.
type Operator string

// The operators. NotIn also holds where the attribute is missing.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Matches tells whether the attributes satisfy every requirement.
func (s Selector) Matches(attributes map[string]string) bool {
	for i := range s {
		value, has := attributes[s[i].Key]
		if !s[i].holds(value, has) {
			return false
		}
	}
	return true
}

// holds tells whether the requirement holds for an attribute of that value, or for
// none.
func (r *Requirement) holds(value string, has bool) bool {
	switch r.Operator {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	return false
}

// Validate reports every problem, with its path.
func (s Selector) Validate() error {
	var errs []error
	for i := range s {
		if err := s[i].validate(); err != nil {
			errs = append(errs, fmt.Errorf("selector[%d]%w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Requirement) validate() error {
	needsValues := r.Operator == In || r.Operator == NotIn
	switch {
	case r.Key == "":
		return errors.New(".key: name an attribute")
	case !needsValues && r.Operator != Exists && r.Operator != DoesNotExist:
		return fmt.Errorf(".operator: %q: must be In, NotIn, Exists or DoesNotExist", r.Operator)
	case needsValues != (len(r.Values) > 0):
		return fmt.Errorf(".values: %q: In and NotIn need some, the others none", r.Values)
	}
	return nil
}

// String returns the form that [ParseSelector] reads.
func (s Selector) String() string {
	parts := make([]string, 0, len(s))
	for _, r := range s {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ",")
}

// String returns the form that [ParseSelector] reads.
func (r Requirement) String() string {
	switch r.Operator {
	case In:
		if len(r.Values) == 1 && wordPattern.MatchString(r.Values[0]) {
			return r.Key + "=" + r.Values[0]
		}
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")"
	case NotIn:
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")"
	case DoesNotExist:
		return "!" + r.Key
	}
	return r.Key
}

const word = `([A-Za-z0-9_./:-]+)`

var wordPattern = regexp.MustCompile(`^` + word + `$`)

// requirementForms are what a requirement may look like, with the operator.
var requirementForms = []struct {
	form     *regexp.Regexp
	operator Operator
}{
	{regexp.MustCompile(`^` + word + `\s*==?\s*` + word + `$`), In},
	{regexp.MustCompile(`^` + word + `\s*!=\s*` + word + `$`), NotIn},
	{regexp.MustCompile(`^` + word + `\s+in\s*\(([^()]*)\)$`), In},
	{regexp.MustCompile(`^` + word + `\s+notin\s*\(([^()]*)\)$`), NotIn},
	{regexp.MustCompile(`^` + word + `$`), Exists},
	{regexp.MustCompile(`^!\s*` + word + `$`), DoesNotExist},
}

// ParseSelector reads requirements separated by commas: "region=eu",
// "region!=eu", "region in (eu,us)", "region notin (eu)", "fast", "!fast".
func ParseSelector(text string) (Selector, error) {
	var s Selector
	for _, part := range splitOutside(text) {
		if part = strings.TrimSpace(part); part == "" {
			if strings.TrimSpace(text) == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("selector %q: there is nothing between two commas", text)
		}
		r, err := parseRequirement(part)
		if err != nil {
			return nil, fmt.Errorf("selector %q: %w", text, err)
		}
		s = append(s, r)
	}
	return s, nil
}

// splitOutside splits at commas that stand outside of parentheses.
func splitOutside(text string) []string {
	var parts []string
	depth, begin := 0, 0
	for i, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:])
}

func parseRequirement(part string) (Requirement, error) {
	for _, f := range requirementForms {
		m := f.form.FindStringSubmatch(part)
		if m == nil {
			continue
		}
		r := Requirement{Key: m[1], Operator: f.operator}
		if len(m) > 2 {
			for value := range strings.SplitSeq(m[2], ",") {
				r.Values = append(r.Values, strings.TrimSpace(value))
			}
		}
		return r, nil
	}
	return Requirement{}, fmt.Errorf(`%q is no requirement: write "a=b", "a!=b", "a in (b,c)", "a notin (b)", "a" or "!a"`, part)
}
