package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The README shows what compiles here.
func TestREADMEShowsThisProgram(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(source), "func main() {\n")
	require.True(t, found)
	shown, _, _ = strings.Cut(shown, "\n}\n")
	assert.Contains(t, string(readme), "```go\nfunc main() {\n"+shown+"\n}\n```\n")
}
