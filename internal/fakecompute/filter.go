package fakecompute

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// filter is a parsed filter of a list.
type filter func(map[string]any) bool

// parseFilter reads comparisons FIELD = "VALUE", joined by AND and OR and put in
// parentheses.
func parseFilter(text string) (filter, error) {
	if text == "" {
		return func(map[string]any) bool { return true }, nil
	}
	p := &filterParser{tokens: filterTokens.FindAllString(text, -1)}
	f, err := p.or()
	if err == nil && len(p.tokens) > 0 {
		err = fmt.Errorf("invalid list filter expression: %q is too much", p.tokens[0])
	}
	return f, err
}

var filterTokens = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[()=]|[^\s()="]+`)

type filterParser struct{ tokens []string }

func (p *filterParser) next() string {
	if len(p.tokens) == 0 {
		return ""
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t
}

func (p *filterParser) takes(token string) bool {
	if len(p.tokens) == 0 || p.tokens[0] != token {
		return false
	}
	p.next()
	return true
}

func (p *filterParser) or() (filter, error) {
	left, err := p.and()
	for err == nil && p.takes("OR") {
		var right filter
		a := left
		if right, err = p.and(); err == nil {
			left = func(v map[string]any) bool { return a(v) || right(v) }
		}
	}
	return left, err
}

func (p *filterParser) and() (filter, error) {
	left, err := p.term()
	for err == nil && p.takes("AND") {
		var right filter
		a := left
		if right, err = p.term(); err == nil {
			left = func(v map[string]any) bool { return a(v) && right(v) }
		}
	}
	return left, err
}

func (p *filterParser) term() (filter, error) {
	if p.takes("(") {
		f, err := p.or()
		if err == nil && !p.takes(")") {
			err = fmt.Errorf("invalid list filter expression: a parenthesis is open")
		}
		return f, err
	}
	field := p.next()
	if !p.takes("=") {
		return nil, fmt.Errorf("invalid list filter expression: %q has no =", field)
	}
	value := p.next()
	if unquoted, err := strconv.Unquote(value); err == nil {
		value = unquoted
	}
	return func(v map[string]any) bool { return lookUp(v, field) == value }, nil
}

// lookUp is the value of a field such as labels.x, as text.
func lookUp(v map[string]any, field string) string {
	head, rest, deeper := strings.Cut(field, ".")
	switch inner := v[head].(type) {
	case map[string]any:
		if deeper {
			return lookUp(inner, rest)
		}
	case nil:
		return ""
	default:
		return fmt.Sprint(inner)
	}
	return ""
}
