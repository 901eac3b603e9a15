package main

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain passes text on without what steers a terminal: escape sequences, control
// characters but tabs and line ends, and those that turn the direction of text.
// A sequence may come in several writes. A line that its writer begins again
// (a carriage return) becomes another line.
type plain struct {
	w     io.Writer
	state plainState
	cr    bool   // a carriage return came, and no line end yet
	rest  []byte // the beginning of a character
}

// plainState is where the text stands in an escape sequence (ECMA-48).
type plainState int

const (
	inText plainState = iota
	inEscape
	inCharset // one character follows
	inCSI     // up to a letter or its like
	inString  // up to a string terminator
)

// Write implements io.Writer.
func (p *plain) Write(data []byte) (int, error) {
	text := append(p.rest, data...)
	p.rest = nil
	var out strings.Builder
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			p.rest = append(p.rest, text...)
			break
		}
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		p.step(&out, r)
	}
	if _, err := io.WriteString(p.w, out.String()); err != nil {
		return 0, err
	}
	return len(data), nil
}

func (p *plain) step(out *strings.Builder, r rune) {
	// A sequence that is broken off must not take the rest of the text with it.
	if r == '\n' || r == '\x1b' {
		p.state = inText
	}
	switch p.state {
	case inText:
		p.text(out, r)
	case inEscape:
		p.escape(r)
	case inCharset:
		p.state = inText
	case inCSI:
		if r >= '@' && r <= '~' {
			p.state = inText
		}
	case inString:
		if r == '\a' || r == '\u009c' {
			p.state = inText
		}
	}
}

func (p *plain) text(out *strings.Builder, r rune) {
	switch r {
	case '\x1b':
		p.state = inEscape
		return
	case '\u009b':
		p.state = inCSI
		return
	case '\u0090', '\u0098', '\u009d', '\u009e', '\u009f':
		p.state = inString
		return
	case '\r':
		p.cr = true
		return
	}
	if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
		return
	}
	if p.cr && r != '\n' {
		out.WriteByte('\n')
	}
	p.cr = false
	out.WriteRune(r)
}

func (p *plain) escape(r rune) {
	switch {
	case r == '[':
		p.state = inCSI
	case strings.ContainsRune("]PX^_", r):
		p.state = inString
	case r >= ' ' && r <= '/':
		p.state = inCharset
	default:
		p.state = inText
	}
}

// plainText is a whole text in that form.
func plainText(text string) string {
	var out strings.Builder
	p := plain{w: &out}
	_, _ = p.Write([]byte(text))
	return out.String()
}

// oneLine is a text in that form, without line ends.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(plainText(text), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}
