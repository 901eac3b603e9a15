package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTestsThatTheDocsNameExist keeps claims from outliving their tests.
func TestTestsThatTheDocsNameExist(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	defined := map[string][]string{} // the folders of a test
	var names, folders []string
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			folder, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			folders = append(folders, filepath.ToSlash(folder))
			defined[m[1]] = append(defined[m[1]], filepath.ToSlash(folder))
			names = append(names, m[1])
		}
		return err
	}))
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	// listed are tests behind the name of their package, or of a folder above it.
	listed := regexp.MustCompile("([a-z][a-z0-9]*(?:/[a-z0-9]+)*) ((?:`(?:Test|Fuzz)\\w+`(?:, )?)+)")
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)(\\*?)`")
	for _, doc := range append(docs, filepath.Join(root, "SECURITY.md"), filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if m[2] == "" {
				assert.NotEmpty(t, defined[m[1]], "%s names %s, which is no test", filepath.Base(doc), m[1])
				continue
			}
			assert.True(t, anyHasPrefix(names, m[1]), "%s names %s*, which no test begins with", filepath.Base(doc), m[1])
		}
		for _, m := range listed.FindAllStringSubmatch(string(text), -1) {
			if !anyIsIn(folders, m[1]) {
				continue // a word
			}
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[2], -1) {
				assert.True(t, anyIsIn(defined[name], m[1]), "%s: %s has no %s: it is in %q", filepath.Base(doc), m[1], name, defined[name])
			}
		}
	}
}

func anyIsIn(folders []string, name string) bool {
	for _, folder := range folders {
		if strings.Contains("/"+folder+"/", "/"+name+"/") {
			return true
		}
	}
	return false
}

func anyHasPrefix(names []string, prefix string) bool {
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
