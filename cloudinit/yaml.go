package cloudinit

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// quote renders s as a double-quoted YAML scalar in plain ASCII. It is always
// a string to the reader, never a number, a boolean or a date. s must be
// valid UTF-8: YAML has no escape for a lone byte.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		b.WriteString(escape(r))
	}
	b.WriteByte('"')
	return b.String()
}

// escape renders one character of a double-quoted YAML scalar.
func escape(r rune) string {
	switch {
	case r == '"' || r == '\\':
		return `\` + string(r)
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r >= ' ' && r <= '~':
		return string(r)
	case r <= 0xff:
		return fmt.Sprintf(`\x%02x`, r)
	case r <= 0xffff:
		return fmt.Sprintf(`\u%04x`, r)
	default:
		return fmt.Sprintf(`\U%08x`, r)
	}
}

// quoteList renders a list of strings on one line.
func quoteList[T fmt.Stringer](list []T) string {
	quoted := make([]string, len(list))
	for i, v := range list {
		quoted[i] = quote(v.String())
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// text makes a string a fmt.Stringer, for quoteList.
type text string

func (t text) String() string { return string(t) }

// texts turns strings into a list for quoteList.
func texts(list []string) []text {
	out := make([]text, len(list))
	for i, s := range list {
		out[i] = text(s)
	}
	return out
}

// block renders s as the value of a key: a literal block, readable as it is,
// each line behind indent, or a quoted scalar where a block could not keep
// every byte.
func block(s, indent string) string {
	if !blockSafe(s) {
		return " " + quote(s)
	}
	var b strings.Builder
	b.WriteString(" |")
	for line := range strings.Lines(s) {
		b.WriteByte('\n')
		if line != "\n" {
			b.WriteString(indent + strings.TrimSuffix(line, "\n"))
		}
	}
	return b.String()
}

// blockSafe reports whether a literal block with the default chomping keeps s
// as it is: printable characters that neither start with white space nor end
// with anything but exactly one line end.
func blockSafe(s string) bool {
	if s == "" || s[0] == ' ' || s[0] == '\t' || s[0] == '\n' {
		return false
	}
	return strings.HasSuffix(s, "\n") && !strings.HasSuffix(s, "\n\n") &&
		utf8.ValidString(s) && !strings.ContainsFunc(s, isUnprintable)
}

// isUnprintable reports whether r is neither printable nor a line feed or tab.
func isUnprintable(r rune) bool {
	return !unicode.IsPrint(r) && r != '\n' && r != '\t'
}

// isPlainText reports whether b is printable ASCII, tabs and line feeds.
func isPlainText(b []byte) bool {
	for _, c := range b {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// isLine reports whether s is valid UTF-8 without control characters.
func isLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
