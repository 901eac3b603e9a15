package provider

import (
	"context"
	"errors"
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
