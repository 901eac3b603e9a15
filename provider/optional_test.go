package provider_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// decorator knows the four methods only.
type decorator struct {
	provider.Provider
	inner provider.Provider
}

func (d decorator) Unwrap() provider.Provider { return d.inner }

// loud has an optional interface of its own.
type loud struct{ decorator }

func (loud) Close() error { return nil }

func TestAsFindsWhatADecoratorHides(t *testing.T) {
	p, err := local.New(local.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	once := decorator{Provider: p, inner: p}
	twice := decorator{Provider: once, inner: once}

	closer, ok := provider.As[io.Closer](twice)
	require.True(t, ok)
	assert.Same(t, p, closer)
	found, ok := provider.As[*local.Provider](twice)
	require.True(t, ok, "a type serves as well as an interface")
	assert.Same(t, p, found)
	closer, ok = provider.As[io.Closer](loud{twice})
	require.True(t, ok)
	assert.IsType(t, loud{}, closer, "the outermost counts")
}

func TestAsSaysNo(t *testing.T) {
	for what, p := range map[string]provider.Provider{
		"nothing": nil, "a decorator of nothing": decorator{}, "the wrong kind": struct{ provider.Provider }{},
	} {
		_, ok := provider.As[io.Reader](p)
		assert.False(t, ok, what)
	}
}

// An ability that only some backends have is found through decorators.
func ExampleAs() {
	p, err := local.New(local.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if closer, ok := provider.As[io.Closer](p); ok {
		fmt.Println("it closes:", closer.Close())
	}
	// Output: it closes: <nil>
}
