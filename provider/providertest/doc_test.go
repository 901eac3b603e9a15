package providertest_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider/providertest"
)

const guide = "../../docs/writing-a-provider.md"

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// blocks are the contents of the guide's code blocks of one kind, in a section.
func blocks(t *testing.T, kind, section string) []string {
	t.Helper()
	_, text, found := strings.Cut(read(t, guide), "\n## "+section+"\n")
	require.True(t, found, "the guide has no section %q", section)
	text, _, _ = strings.Cut(text, "\n## ")
	var out []string
	for _, m := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// The provider in the guide is the one that passes the suite, whole.
func TestTheGuidesProviderIsTheOneThatPasses(t *testing.T) {
	_, body, _ := strings.Cut(read(t, "example_minimal_test.go"), "\n)\n\n")
	body, _, _ = strings.Cut(body, "// A whole provider in one file")
	assert.Equal(t, strings.TrimSpace(body), strings.TrimSpace(strings.Join(blocks(t, "go", "A whole provider"), "\n")))
	for _, b := range blocks(t, "go", "The test") {
		assert.Contains(t, read(t, "rack_test.go"), b)
	}
}

var randomName = regexp.MustCompile(`proxy-[a-z2-7]{16}`)

// What the guide shows of a failure is what the suite prints.
func TestTheGuidesFailureIsReal(t *testing.T) {
	failed := breakage{sabotage: deleteOfNothingFails}.run(t)
	require.Len(t, failed, 1)
	text := "--- FAIL: TestConformance/" + failed[0].Name + "\n"
	for line := range strings.Lines(failed[0].Err.Error() + "\n") {
		text += "    " + randomName.ReplaceAllString(line, "proxy-…")
	}
	assert.Equal(t, []string{text}, blocks(t, "text", "The test"))
}

// The guide names every case beside the field that lets it run.
func TestTheGuideNamesEveryCase(t *testing.T) {
	assert.Contains(t, read(t, guide), caseTable())
}

func caseTable() string {
	byField := map[string][]string{}
	fields := []string{"`New`, `Request`"}
	for _, c := range providertest.Cases() {
		field := fields[0]
		if len(c.Needs) > 0 {
			field = "`" + strings.Join(c.Needs, "`, `") + "`"
		}
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
		byField[field] = append(byField[field], c.Name)
	}
	var b strings.Builder
	for _, f := range fields {
		b.WriteString("| " + f + " | " + strings.Join(byField[f], ", ") + " |\n")
	}
	return b.String()
}
