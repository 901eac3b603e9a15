package archtest

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/mdtest"
)

const root = "../.."

// goSources are all files of Go below the root, of nested modules too, which every
// test run compiles.
func goSources(t *testing.T) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.Contains(path, "testdata") {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, string(text))
		return err
	}))
	return all
}

// Go that a manual shows is Go that is compiled: each block stands as it is in some
// file.
func TestGoOfTheManualsIsCompiled(t *testing.T) {
	sources := goSources(t)
	seen := 0
	for _, b := range mdtest.Blocks(t, root) {
		if b.Kind != "go" {
			continue
		}
		seen++
		found := false
		for _, source := range sources {
			found = found || strings.Contains(source, b.Text)
		}
		assert.True(t, found, "%s:%d: no file has this block: put it into a program, an Example or a test, and show it from there", b.File, b.Line)
	}
	assert.Greater(t, seen, 5)
}

// shown stands for what a manual leaves out of JSON.
var shown = strings.NewReplacer("{…}", "{}", "…", "")

// Other words would keep a block from its test.
func TestBlocksOfTheManualsAreOfAKnownKind(t *testing.T) {
	for _, b := range mdtest.Blocks(t, root) {
		assert.Contains(t, []string{"", "go", "json", "python", "sh", "text", "yaml"}, b.Kind, "%s:%d", b.File, b.Line)
	}
}

func TestJSONOfTheManualsIsJSON(t *testing.T) {
	seen := 0
	for _, b := range mdtest.Blocks(t, root) {
		for part := range strings.SplitSeq(b.Text, "\n\n") {
			if b.Kind == "json" || b.Kind == "" && strings.HasPrefix(part, "{") {
				seen++
				assert.True(t, json.Valid([]byte(shown.Replace(part))), "%s:%d: %s", b.File, b.Line, part)
			}
		}
	}
	for _, path := range mdtest.Files(t, root) {
		for _, command := range mdtest.Commands(t, path) {
			for _, m := range regexp.MustCompile(`(?: -d | -p |--data )'([^']*)'`).FindAllStringSubmatch(command, -1) {
				seen++
				assert.True(t, json.Valid([]byte(shown.Replace(m[1]))), "%s: %s", path, command)
			}
		}
	}
	assert.Greater(t, seen, 5)
}

var (
	makeCommand = regexp.MustCompile(`(?:^|&& |\$\(|; )make((?: +[^\s#)]+)+)`)
	target      = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// makefiles are those that a manual's commands may be for: the root's, and the
// operator's.
func makefiles(t *testing.T, manual string) string {
	t.Helper()
	text := read(t, "Makefile")
	if name := filepath.Base(manual); name == "operator.md" || name == "CHANGELOG.md" {
		text += read(t, "examples/operator/Makefile")
	}
	return text
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// What a manual has made exists, and so do the variables that it gives.
func TestMakeTargetsOfTheManualsExist(t *testing.T) {
	scripts := ""
	for _, script := range []string{"scripts/bench", "scripts/fuzz", "scripts/lab-test"} {
		scripts += read(t, script)
	}
	seen := 0
	for _, path := range mdtest.Files(t, root) {
		text := makefiles(t, path)
		targets := map[string]bool{}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			targets[m[1]] = true
		}
		for _, command := range mdtest.Commands(t, path) {
			for _, m := range makeCommand.FindAllStringSubmatch(command, -1) {
				for _, word := range strings.Fields(m[1]) {
					name, _, isVariable := strings.Cut(word, "=")
					switch {
					case strings.HasPrefix(word, "-"):
					case isVariable:
						assert.True(t, strings.Contains(text+scripts, name), "%s: %s: nothing reads %s", path, command, name)
					default:
						seen++
						assert.True(t, targets[word], "%s: %s: there is no target %s", path, command, word)
					}
				}
			}
		}
	}
	assert.Greater(t, seen, 20)
}

var (
	goCommand   = regexp.MustCompile(`(?:cd (\S+) && |^|[ (])go (?:test|build|run|doc|vet) [^)#]*`)
	packagePath = regexp.MustCompile(`\s\./([a-z][\w/-]*)`)
)

// The packages that a manual has built, tested or explained are there.
func TestPackagesOfTheManualsExist(t *testing.T) {
	seen := 0
	for _, path := range mdtest.Files(t, root) {
		for _, command := range mdtest.Commands(t, path) {
			for _, m := range goCommand.FindAllStringSubmatch(command, -1) {
				for _, p := range packagePath.FindAllStringSubmatch(m[0], -1) {
					seen++
					assert.DirExists(t, filepath.Join(root, m[1], p[1]), "%s: %s", path, command)
				}
			}
		}
	}
	assert.Greater(t, seen, 5)
}
