package main

import (
	"math"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/provider"
)

// What is wrong with a file of tokens is told by its line, and never by a token.
func FuzzTokens(f *testing.F) {
	f.Add("crawler 0123456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "0123", "S3CR3T0123")
		clients, err := parseTokens(text)
		if err != nil {
			assert.Contains(t, err.Error(), "line ")
			for word := range strings.FieldsSeq(text) {
				if len(word) > 32 {
					assert.NotContains(t, err.Error(), word)
				}
			}
			return
		}
		for name, token := range clients {
			require.NotEmpty(t, name)
			require.NotEmpty(t, token)
			require.Len(t, strings.Fields(name+" "+token), 2)
		}
	})
}

// What is taken of a file of pools is what a fleet takes, and is read back from what is
// written of it. What is wrong is told by field, and never by what may be a token.
func FuzzPools(f *testing.F) {
	f.Add("pools: [{name: eu, size: 3, zone: kvm1, maxAge: 24h, attributes: {class: good}}, {name: us}]")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parsePools([]byte(text))
		if err != nil {
			for word := range strings.FieldsSeq(text) {
				if word = strings.Trim(word, "\"'`:,[]{}"); len(word) > 40 {
					assert.NotContains(t, err.Error(), word)
				}
			}
			assert.Regexp(t, `^(the file |pools: |pools\[\d+\][:.] ?\S)`, err.Error())
			return
		}
		requireAllKnown(t, text)
		total, names := 0, map[string]bool{}
		for _, p := range all {
			require.True(t, provider.ValidTag(p.Name) == nil || len(all) == 1 && p.Name == "" && len(p.Attributes) == 0)
			require.False(t, names[p.Name])
			require.GreaterOrEqual(t, p.Size, 0)
			require.GreaterOrEqual(t, p.MaxAge, provider.Duration(0))
			require.LessOrEqual(t, p.Size, math.MaxInt-total)
			total, names[p.Name] = total+p.Size, true
		}
		written, err := yaml.Marshal(map[string]any{"pools": all})
		require.NoError(t, err)
		again, err := parsePools(written)
		require.NoError(t, err, "%s", written)
		require.Equal(t, all, again)
	})
}

// requireAllKnown holds that a file of pools has no field that is not read.
func requireAllKnown(t *testing.T, text string) {
	t.Helper()
	var file map[string][]map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &file))
	for name, pools := range file {
		require.True(t, strings.EqualFold(name, "pools"))
		for _, pool := range pools {
			for field := range pool {
				require.Contains(t, "name size maxage attributes region zone machinetype image", strings.ToLower(strings.ToUpper(field)))
			}
		}
	}
}

// Nothing in a text steers the terminal that it is shown on, however it comes in
// pieces.
func FuzzPlain(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m\r\n", uint(3))
	f.Fuzz(func(t *testing.T, text string, cut uint) {
		shown := plainText(text)
		for _, r := range shown {
			require.False(t, r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)), "%q", shown)
		}
		var pieces strings.Builder
		p := plain{w: &pieces}
		at := min(cut, uint(len(text)))
		for _, piece := range []string{text[:at], text[at:]} {
			_, err := p.Write([]byte(piece))
			require.NoError(t, err)
		}
		require.Equal(t, shown, pieces.String())
		require.Equal(t, shown, plainText(shown))
	})
}
