package cloudinit_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/cloudinit"
)

// oddStrings are strings that YAML takes for something else when they are not
// quoted well.
var oddStrings = []string{
	"", " ", "no", "1.10", "0x1f", "null", "~", "a: b", "#x", "- x", "a\\b", `"`, "'", "\n", "\r\n", "\t", "\x00", "\x7f",
	"\u0085", "\u00a0", "\u2028", "\ufeff", "é", "😀", "%TAG", "@x", "`", "{{ x }}", "line\nline\n", "line\n\n\n", " indented\n", "\n\nblank\n",
}

func TestQuoteThroughPython(t *testing.T) {
	document := ""
	for _, s := range oddStrings {
		document += "- " + cloudinit.Quote(s) + "\n- content:" + cloudinit.Block(s, "    ") + "\n"
	}
	var got []any
	cloudInitPython(t, &got, `
import json, sys, yaml
print(json.dumps(yaml.safe_load(open(sys.argv[1], "rb"))))
`, tempFile(t, "quoted.yaml", []byte(document)))
	require.Len(t, got, 2*len(oddStrings))
	for i, s := range oddStrings {
		assert.Equal(t, s, got[2*i])
		assert.Equal(t, map[string]any{"content": s}, got[2*i+1])
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range oddStrings {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		var got map[string]string
		document := "a: " + cloudinit.Quote(s) + "\nb:" + cloudinit.Block(s, "  ") + "\nc: \"end\"\n"
		require.NoError(t, yaml.Unmarshal([]byte(document), &got), document)
		require.Equal(t, map[string]string{"a": s, "b": s, "c": "end"}, got, document)
	})
}
