// Package mdtest takes the code out of the manuals, so that tests can hold it to what
// it is about.
package mdtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Block is a block of code: fenced, or set in by four blanks.
type Block struct {
	// File is the path from the root.
	File string
	// Line is that of its first line.
	Line int
	// Kind is what stands behind the fence.
	Kind string
	// Text has neither fences nor the indentation of the whole.
	Text string
}

// Files are the paths of all manuals below the root.
func Files(t testing.TB, root string) (paths []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			paths = append(paths, path)
		}
		return nil
	}))
	require.Greater(t, len(paths), 8)
	return paths
}

// Blocks are those of all manuals below the root.
func Blocks(t testing.TB, root string) (all []Block) {
	t.Helper()
	for _, path := range Files(t, root) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		all = append(all, blocksOf(filepath.ToSlash(name), string(text))...)
	}
	return all
}

// Find is the block of a manual below the root that has the text.
func Find(t testing.TB, root, file, has string) Block {
	t.Helper()
	for _, b := range Blocks(t, root) {
		if b.File == file && strings.Contains(b.Text, has) {
			return b
		}
	}
	require.Fail(t, file+" has no block with "+has)
	return Block{}
}

var fence = regexp.MustCompile("^( *)```(.*)$")

const indent = "    "

func blocksOf(file, text string) (all []Block) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		b := Block{File: file}
		var body []string
		if m := fence.FindStringSubmatch(lines[i]); m != nil {
			b.Kind = strings.TrimSpace(m[2])
			for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
				body = append(body, strings.TrimPrefix(lines[i], m[1]))
			}
			i++
			b.Line = i - len(body)
		} else if strings.HasPrefix(lines[i], indent) && (i == 0 || lines[i-1] == "") {
			b.Line = i + 1
			for ; i < len(lines) && (strings.HasPrefix(lines[i], indent) || lines[i] == ""); i++ {
				body = append(body, strings.TrimPrefix(lines[i], indent))
			}
		} else {
			i++
			continue
		}
		b.Text = strings.TrimRight(strings.Join(body, "\n"), "\n") + "\n"
		all = append(all, b)
	}
	return all
}

var (
	span         = regexp.MustCompile("(?:^|[^`])`([^`\n]+)`")
	continuation = regexp.MustCompile(`\\\n\s*`)
	heredoc      = regexp.MustCompile(`(?s)<<'?(\w+)'?\n.*?\n *(\w+)\n`)
)

// Commands are the lines of a manual's code that may be commands, spans in the text
// among them. A line that goes on in the next is one, and here-documents are left out.
func Commands(t testing.TB, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, b := range blocksOf(path, string(text)) {
		if b.Kind == "" || b.Kind == "sh" {
			joined := heredoc.ReplaceAllString(continuation.ReplaceAllString(b.Text, " "), "\n")
			all = append(all, strings.Split(strings.TrimSpace(joined), "\n")...)
		}
	}
	for _, m := range span.FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}
