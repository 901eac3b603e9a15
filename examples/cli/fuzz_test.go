package main

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
