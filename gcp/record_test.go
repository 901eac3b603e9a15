package gcp

import (
	"maps"
	"testing"
	"unicode/utf8"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

// FuzzRecord holds that whatever a caller may give comes back, in a description
// that the API takes.
func FuzzRecord(f *testing.F) {
	f.Add("tag-1", "uid-1", "port", "3128")
	f.Add("tag-1", "<&>\"\\", "key", "\x00\x1f\u2028\n")
	f.Add("t1", "~", "long", string(make([]byte, 3000)))
	f.Fuzz(func(t *testing.T, tag, uid, key, value string) {
		for _, text := range []string{tag, uid, key, value} {
			if !utf8.ValidString(text) {
				return // no request has these
			}
		}
		if tag == "" || uid == "" {
			return // nor these
		}
		want := map[string]string{key: value, key + "2": value}
		description, overflow, err := record{Tag: tag, UID: uid, Metadata: want}.render()
		require.NoError(t, err)
		in := &computepb.Instance{Labels: map[string]string{labelManaged: managed}, Description: proto.String(description)}
		if overflow != "" {
			in.Metadata = &computepb.Metadata{Items: []*computepb.Items{newItem(itemMetadata, overflow)}}
		}
		got, err := readRecord(in)
		require.NoError(t, err)
		assert.Equal(t, tag, got.Tag)
		assert.Equal(t, uid, got.UID)
		assert.True(t, maps.Equal(want, got.Metadata), "%q", got.Metadata)
	})
}

func TestOnlyWhatCarriesOurMarkHasARecord(t *testing.T) {
	whole := `{"egress":1,"tag":"tag-1","uid":"uid-1"}`
	for name, c := range map[string]struct {
		label, description string
		foreign            bool
	}{
		"no label":                 {"", whole, true},
		"another label":            {"false", whole, true},
		"no record":                {managed, "", false},
		"a text":                   {managed, "my machine", false},
		"a newer record":           {managed, `{"egress":2,"tag":"tag-1","uid":"uid-1"}`, false},
		"a record without tag":     {managed, `{"egress":1,"uid":"uid-1"}`, false},
		"metadata that is missing": {managed, `{"egress":1,"tag":"tag-1","uid":"uid-1","metadataItem":true}`, false},
	} {
		_, err := readRecord(&computepb.Instance{Labels: map[string]string{labelManaged: c.label}, Description: &c.description})
		require.Error(t, err, name)
		assert.Equal(t, c.foreign, err == errNotOurs, "%s: %v", name, err) //nolint:errorlint // it is itself.
	}
}
