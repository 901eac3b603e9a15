package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/provider"
)

const consoleHelp = `Show the end of what an instance wrote to its serial console: how it booted, and
why it did not.

A guest may write what steers a terminal, so escape sequences and control
characters are left out; with --raw they are not. With --follow what comes is
shown until Ctrl-C.`

// consoleFlags are the flags of console.
type consoleFlags struct {
	bytes, lines int
	follow, raw  bool
}

func (a *app) consoleCommand() *cobra.Command {
	var f consoleFlags
	cmd := &cobra.Command{
		Use: "console NAME|ID|UID", Short: "Show what an instance wrote to its console", Long: consoleHelp,
		Example: `  egressctl console --lines 40 proxy-abcdefghijklmnop
  egressctl console --follow proxy-abcdefghijklmnop`,
		Args: exactly(1, "name one instance"), ValidArgsFunction: a.completeInstance,
		RunE: func(cmd *cobra.Command, args []string) error { return a.console(cmd.Context(), &f, args[0]) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.bytes, "bytes", provider.DefaultConsoleBytes, "how many `bytes` of its end to read")
	flags.IntVar(&f.lines, "lines", 0, "show the last `lines` of them only; all if zero")
	flags.BoolVarP(&f.follow, "follow", "f", false, "show what comes, until Ctrl-C")
	flags.BoolVar(&f.raw, "raw", false, "show every byte as the guest wrote it")
	return cmd
}

// consoleText is the result for machines.
type consoleText struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Console string `json:"console"`
}

func (a *app) console(ctx context.Context, f *consoleFlags, arg string) error {
	asJSON := a.flags.output == outputJSON
	switch {
	case f.bytes < 1 || f.lines < 0:
		return usagef("--bytes must be positive, and --lines not negative")
	case asJSON && f.follow:
		return usagef("--follow: has no end, and so no JSON: leave out -o json")
	}
	return a.withSession(func(s *session) error {
		in, err := a.find(ctx, s, "console", arg)
		if err != nil {
			return err
		}
		read := func(ctx context.Context) ([]byte, error) { return provider.ReadConsole(ctx, s.p, in.ID, f.bytes) }
		text, err := read(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			var out strings.Builder
			_, _ = f.to(&out).Write(text)
			return a.writeJSON(consoleText{in.ID, in.Name, lastLines(out.String(), f.lines)})
		}
		if len(text) == 0 {
			a.screen.say("%s has written nothing yet", in.Name)
		}
		return a.showConsole(ctx, f, read, text)
	})
}

// to is where the bytes of a console go.
func (f *consoleFlags) to(w io.Writer) io.Writer {
	if f.raw {
		return w
	}
	return &plain{w: w}
}

// showConsole writes the end of a console and, if that is wanted, what comes.
func (a *app) showConsole(ctx context.Context, f *consoleFlags, read func(context.Context) ([]byte, error), text []byte) error {
	var first strings.Builder
	filter := &plain{w: &first}
	if f.raw {
		first.Write(text)
	} else {
		_, _ = filter.Write(text)
	}
	if _, err := io.WriteString(a.stdout, lastLines(first.String(), f.lines)); err != nil || !f.follow {
		return err
	}
	a.held = true
	if f.raw {
		return a.follow(ctx, read, text, a.stdout)
	}
	filter.w = a.stdout // it may stand within a sequence
	return a.follow(ctx, read, text, filter)
}

// follow writes what a console has beyond the text that was read before.
func (a *app) follow(ctx context.Context, read func(context.Context) ([]byte, error), before []byte, out io.Writer) error {
	said := ""
	for sleep(ctx, a.poll) {
		text, err := read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, provider.ErrNotFound), errors.Is(err, provider.ErrPermanent):
			return err
		case err != nil:
			if said != err.Error() {
				said = err.Error()
				a.screen.say("cannot read on at present: %v", err)
			}
			continue
		}
		known := overlap(before, text)
		if known == 0 && len(before) > 0 && len(text) > 0 {
			a.screen.say("some of the console was missed: it wrote more than --bytes at once, or its log began anew")
		}
		before, said = text, ""
		if _, err := out.Write(text[known:]); err != nil {
			return err
		}
	}
	return nil
}

// overlap is the length of the longest end of before that text begins with, by
// the failure function of Knuth, Morris and Pratt.
func overlap(before, text []byte) int {
	fallback := make([]int, len(text)+1)
	for i, k := 1, 0; i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = fallback[k]
		}
		if text[i] == text[k] {
			k++
		}
		fallback[i+1] = k
	}
	k := 0
	for _, b := range before {
		for k > 0 && (k == len(text) || b != text[k]) {
			k = fallback[k]
		}
		if k < len(text) && b == text[k] {
			k++
		}
	}
	return k
}

// lastLines are the last n lines of a text; all if n is zero.
func lastLines(text string, n int) string {
	if n == 0 {
		return text
	}
	end := strings.TrimRight(text, "\n")
	from := len(end)
	for ; n > 0 && from >= 0; n-- {
		from = strings.LastIndexByte(end[:from], '\n')
	}
	return text[from+1:]
}

// tailLines is how much of a console an error shows.
const tailLines = 12

// tellConsole shows the end of the console of an instance that came to nothing,
// where its provider keeps one.
func (b *boot) tellConsole(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	text, err := provider.ReadConsole(ctx, b.p, b.id, 16<<10)
	text = bytes.TrimSpace(text)
	if err != nil || len(text) == 0 {
		return
	}
	tail := lastLines(plainText(string(text)), tailLines)
	b.screen.say("%s  the end of its console:\n%s", b.name, indented(tail))
}

func indented(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return fmt.Sprintf("  | %s", strings.Join(lines, "\n  | "))
}
