package kvm_test

import (
	"strings"
	"testing"
	"testing/quick"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/kvm"
)

func TestMetadataXML(t *testing.T) {
	element, err := sampleRecord.Element()
	require.NoError(t, err)
	golden(t, "metadata-element.xml", element)
	bare, err := sampleRecord.Bare()
	require.NoError(t, err)
	golden(t, "metadata-bare.xml", bare)
}

// TestMetadataReadBack reads every form that a libvirt gives back.
func TestMetadataReadBack(t *testing.T) {
	element, err := sampleRecord.Element()
	require.NoError(t, err)
	bare, err := sampleRecord.Bare()
	require.NoError(t, err)
	for form, text := range map[string]string{
		"prefixed":             element,
		"bare":                 bare,
		"undeclared prefix":    strings.Replace(element, ` xmlns:egress="`+kvm.MetadataURI+`"`, "", 1),
		"default namespace":    strings.Replace(bare, "<instance", `<instance xmlns="`+kvm.MetadataURI+`"`, 1),
		"other prefix":         strings.ReplaceAll(element, "egress:", "x:"),
		"spaces around":        "\n  " + element + "\n",
		"single quotes":        strings.ReplaceAll(element, `"`, `'`),
		"prefixed children":    strings.NewReplacer("<tag>", "<egress:tag>", "</tag>", "</egress:tag>").Replace(element),
		"an unknown extension": strings.Replace(element, "<tag>", "<future>1</future><tag>", 1),
	} {
		got, err := kvm.ParseRecord(text)
		require.NoError(t, err, form)
		assert.Equal(t, sampleRecord, got, form)
	}
}

func TestMetadataOfOthers(t *testing.T) {
	for _, text := range []string{
		"<instance/>", `<instance managed="false"><tag>a</tag><uid>u</uid></instance>`, `<other managed="true" stage="made"><tag>a</tag><uid>u</uid></other>`,
		`<instance managed="true" stage="made"><uid>u</uid></instance>`, "", "<", "text",
		`<instance managed="true" stage="brewing"><tag>a</tag><uid>u</uid></instance>`,
		`<instance managed="true" stage="made"><tag>a</tag><uid>u</uid><entry key="k" encoding="base64">?</entry></instance>`,
	} {
		_, err := kvm.ParseRecord(text)
		assert.Error(t, err, text)
	}
}

// TestMetadataKeepsStrings writes and reads whatever a caller may give.
func TestMetadataKeepsStrings(t *testing.T) {
	keeps := func(value string) bool {
		if !utf8.ValidString(value) {
			return true
		}
		want := sampleRecord
		want.Metadata = map[string]string{"key": value}
		text, err := want.Bare()
		require.NoError(t, err)
		got, err := kvm.ParseRecord(text)
		return assert.NoError(t, err) && assert.Equal(t, want, got)
	}
	for _, value := range []string{"", " ", "\n", "\x00", "]]>", "<&\"'", "a  b", "ü", "\r\n"} {
		assert.True(t, keeps(value))
	}
	require.NoError(t, quick.Check(keeps, nil))
}

func FuzzMetadata(f *testing.F) {
	text, err := sampleRecord.Element()
	require.NoError(f, err)
	f.Add(text)
	f.Add(`<instance managed="true" stage="made"><tag>a</tag><uid>u</uid><entry key="k" encoding="base64">AA==</entry></instance>`)
	f.Add("<egress:instance>")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := kvm.ParseRecord(text)
		if err != nil {
			return
		}
		r.Created = r.Created.UTC()
		if r.Created.Year() < 0 || r.Created.Year() > 9999 {
			return
		}
		again, err := r.Bare()
		require.NoError(t, err)
		got, err := kvm.ParseRecord(again)
		require.NoError(t, err)
		assert.WithinDuration(t, r.Created, got.Created, 0)
		got.Created, r.Created = time.Time{}, time.Time{}
		assert.Equal(t, r, got)
	})
}
