package gcp_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

// section is one of the manual's.
func section(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/gcp.md")
	require.NoError(t, err)
	_, found, ok := strings.Cut(string(text), "\n## "+name+"\n")
	require.True(t, ok, "docs/gcp.md has no section %q", name)
	found, _, _ = strings.Cut(found, "\n## ")
	return found
}

// The manual's table of Google's codes says what the code does, and has all that
// the code knows.
func TestTheManualTellsTheClassOfEachCode(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(section(t, "Google's codes"), -1)
	classes := map[string]error{"quota": provider.ErrQuotaExceeded, "transient": provider.ErrTransient, "permanent": provider.ErrPermanent}
	documented := map[string]bool{}
	for _, row := range rows {
		documented[row[1]] = true
		err := gcp.OperationError(finished(row[1], "as the API says"))
		assert.ErrorIs(t, err, classes[row[2]], row[1])
		assert.True(t, provider.HasCode(err, row[1]), row[1])
	}
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	for _, list := range regexp.MustCompile(`word\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
		for code := range strings.SplitSeq(strings.ReplaceAll(list[1], "(ZONE_|REGION_)?", ""), "|") {
			assert.True(t, documented[code], "docs/gcp.md lacks %s", code)
		}
	}
}

func TestTheManualTellsEveryState(t *testing.T) {
	text := section(t, "States")
	for status, state := range gcp.States {
		row := regexp.MustCompile("(?m)^\\|[^|]*`" + status + "`[^|]*\\| " + string(state)).FindString(text)
		assert.NotEmpty(t, row, "%s is %s", status, state)
	}
}
