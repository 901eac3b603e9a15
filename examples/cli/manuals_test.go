package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/mdtest"
)

var (
	programCommand = regexp.MustCompile(`(?:^|[\s(/$])egressctl((?: +(?:'[^']*'|"[^"]*"|[^\s)"|&;<>#]+))*)`)
	argument       = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
)

// Every command line of the manuals and of the program's own page is one that the
// program takes: subcommand, flags with their values, and number of arguments.
func TestCommandLinesOfTheManualsAreTaken(t *testing.T) {
	seen := 0
	check := func(where, command string) {
		if strings.Contains(command, "go build ") || strings.HasPrefix(command, "install ") {
			return // there it is a file
		}
		for _, m := range programCommand.FindAllStringSubmatch(command, -1) {
			var args []string
			for _, word := range argument.FindAllString(m[1], -1) {
				args = append(args, strings.Trim(word, `'"`))
			}
			if len(args) == 0 {
				continue // the program's name alone
			}
			seen++
			root := newApp(nil, nil, nil).rootCommand()
			cmd, rest, err := root.Find(args)
			if !assert.NoError(t, err, "%s: %s", where, command) {
				continue
			}
			if assert.NoError(t, cmd.ParseFlags(rest), "%s: %s", where, command) {
				assert.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", where, command)
				assert.True(t, cmd.Runnable(), "%s: %s", where, command)
			}
		}
	}
	for _, path := range mdtest.Files(t, "../..") {
		for _, command := range mdtest.Commands(t, path) {
			check(path, command)
		}
	}
	page, err := os.ReadFile("main.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(string(page), -1) {
		check("main.go", m[1])
	}
	assert.Greater(t, seen, 30)
}
