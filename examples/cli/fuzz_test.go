package main

import (
	"strings"
	"testing"

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
