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
	_, main, found := strings.Cut(string(source), "func main() {\n")
	require.True(t, found)
	main, _, _ = strings.Cut(main, "\n}\n")
	assert.Contains(t, string(readme), "func main() {\n"+main+"\n}\n")
}
