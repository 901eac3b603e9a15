package health_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/egressfleet/egress/health"
)

// What a target answers is an address or an error, whatever else is in it.
func FuzzEcho(f *testing.F) {
	f.Add([]byte(`{"origin": "203.0.113.7", "headers": {"Via": ["a", "b"]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []health.EchoFunc{health.EchoJSON, health.EchoText} {
			echo, err := read(body)
			assert.Equal(t, err == nil, echo.IP.IsValid())
			assert.False(t, echo.IP.Is4In6())
			for name := range echo.Header {
				assert.Equal(t, http.CanonicalHeaderKey(name), name)
			}
		}
	})
}
