package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// table is a result for people. A table without a header is a list of names and
// values.
type table struct {
	header []string
	rows   []row
}

// row is a line of a table, and what stands below it.
type row struct {
	cells []string
	below []string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, row{cells: cells}) }

// below puts a line below the last row, unless it is empty.
func (t *table) below(format, text string) {
	if text != "" {
		last := &t.rows[len(t.rows)-1]
		last.below = append(last.below, fmt.Sprintf(format, oneLine(text)))
	}
}

// printTable writes a table to standard output. What hosts and guests have said
// cannot steer the terminal.
func (a *app) printTable(t table) error {
	var out strings.Builder
	widths := t.widths()
	if t.header != nil {
		writeRow(&out, t.header, widths, false)
	}
	for _, r := range t.rows {
		writeRow(&out, r.cells, widths, a.colour)
		for _, line := range r.below {
			out.WriteString("  " + line + "\n")
		}
	}
	if _, err := io.WriteString(a.stdout, out.String()); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

func (t *table) widths() []int {
	var widths []int
	rows := t.rows
	if t.header != nil {
		rows = append([]row{{cells: t.header}}, rows...)
	}
	for _, r := range rows {
		for i, cell := range r.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(shownCell(cell)))
		}
	}
	return widths
}

func writeRow(out *strings.Builder, cells []string, widths []int, colour bool) {
	for i, cell := range cells {
		text := shownCell(cell)
		padding := ""
		if i < len(cells)-1 {
			padding = strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2)
		}
		if colour {
			text = painted(text)
		}
		out.WriteString(text + padding)
	}
	out.WriteByte('\n')
}

// shownCell is a cell in one line; an empty one is a dash.
func shownCell(text string) string {
	if text = oneLine(text); text == "" {
		return "-"
	}
	return text
}

// colours are those of the words that say how something is.
var colours = map[string]string{
	"Running": green, "Healthy": green, "ok": green, "removed": green,
	"Provisioning": yellow, "Stopping": yellow, "Unknown": yellow, "warning": yellow, "skipped": yellow, "would be removed": yellow,
	"Stopped": red, "Failed": red, "Unhealthy": red, "failure": red, "not removed": red,
}

const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	reset  = "\x1b[0m"
)

func painted(text string) string {
	if colour := colours[text]; colour != "" {
		return colour + text + reset
	}
	return text
}

// wantsColour tells whether w is a terminal whose user has nothing against
// colours (no-color.org).
func wantsColour(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor fits.
}
