package provider

import (
	"context"
	"errors"
	"strings"
	"unicode"
)

// DefaultConsoleBytes is how much of a console [ReadConsole] returns where its
// caller does not say: 64 KiB, some thousand lines.
const DefaultConsoleBytes = 64 << 10

// ConsoleReader is an optional interface of providers that keep what a guest
// writes to its serial console.
type ConsoleReader interface {
	// ReadConsole returns the end of the console's log, at most limit bytes,
	// which is positive. The bytes are the guest's own: not always UTF-8, with
	// the control sequences of a terminal in them. An instance that has written
	// nothing yet gives none; one that does not exist is ErrNotFound.
	ReadConsole(ctx context.Context, id string, limit int) ([]byte, error)
}

// ReadConsole asks the provider's [ConsoleReader], or that of one that p
// decorates. Without one it is ErrPermanent with [CodeUnsupported]. A limit
// below one means [DefaultConsoleBytes].
func ReadConsole(ctx context.Context, p Provider, id string, limit int) ([]byte, error) {
	reader, ok := As[ConsoleReader](p)
	if !ok {
		return nil, &Error{
			Class: ErrPermanent, Op: "ReadConsole", ID: id, Code: CodeUnsupported,
			Err: errors.New("this provider keeps no console"),
		}
	}
	if limit < 1 {
		limit = DefaultConsoleBytes
	}
	return reader.ReadConsole(ctx, id, limit)
}

// The part of a console that [LastConsoleLine] reads and returns.
const (
	lineBytes = 4 << 10
	lineRunes = 200
)

// LastConsoleLine is the last line of an instance's console with anything on it, for
// a sentence about why the instance came to nothing: at most 200 characters, all
// printable, without the control sequences of a terminal. It is empty where there is
// none, or the console cannot be read.
func LastConsoleLine(ctx context.Context, p Provider, id string) string {
	text, err := ReadConsole(ctx, p, id, lineBytes)
	if err != nil {
		return ""
	}
	return lastLine(string(text))
}

func lastLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(strings.Map(printable, withoutEscapes(lines[i])))
		if line != "" {
			runes := []rune(line)
			return string(runes[:min(len(runes), lineRunes)])
		}
	}
	return ""
}

func printable(r rune) rune {
	if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
		return -1
	}
	return r
}

// withoutEscapes leaves out a terminal's control sequences, of the form ESC [ …
// letter.
func withoutEscapes(line string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(line, "\x1b[")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		end := strings.IndexFunc(after, func(r rune) bool { return r >= '@' && r <= '~' })
		line = after[end+1:]
		if end < 0 {
			return out.String()
		}
	}
}
