package gcp_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

// withTokens is a provider whose tokens come from a server of the test's own.
func withTokens(t *testing.T, r *rig, tokens http.HandlerFunc) *gcp.Provider {
	t.Helper()
	server := httptest.NewServer(tokens)
	t.Cleanup(server.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "test-project", "client_email": "egress@test-project.iam.gserviceaccount.com",
		"private_key_id": "1", "private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": server.URL,
	})
	require.NoError(t, err)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(r.url), option.WithAuthCredentialsJSON(option.ServiceAccount, account)}
	return r.again(t)
}

func TestTokensAreFetchedAndNeverLogged(t *testing.T) {
	r := newRig(t, nil)
	p := withTokens(t, r, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"secret-token-1","token_type":"Bearer","expires_in":3600}`))
	})
	_, err := p.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	assert.NotContains(t, r.logs(), "secret-token-1")
	assert.Contains(t, r.logs(), "compute request")
}

func TestCredentialsThatAreRefusedArePermanent(t *testing.T) {
	r := newRig(t, nil)
	p := withTokens(t, r, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"account not found"}`))
	})
	_, err := p.ListByTag(t.Context(), "tag-1")
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "CredentialsInvalid"), "%v", err)
}

// A token server that is silent is no reason to outlive a context, of the first
// caller as of one who waits for the first one's token.
func TestASilentTokenServerHoldsUpNobody(t *testing.T) {
	r := newRig(t, nil)
	held := make(chan struct{})
	p := withTokens(t, r, func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-held:
		case <-req.Context().Done():
		}
	})
	defer close(held)
	done := make(chan error, 2)
	for range 2 {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := p.Get(ctx, "zones/"+zoneA+"/instances/"+provider.Name("x"))
			done <- err
		}()
	}
	for range 2 {
		select {
		case err := <-done:
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		case <-time.After(short):
			t.Fatal("it waits for the token although nobody waits for it")
		}
	}
}

func TestCredentialsThatCannotBeReadArePermanent(t *testing.T) {
	r := newRig(t, nil)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(r.url), option.WithAuthCredentialsJSON(option.ServiceAccount, []byte(`{"type":"service_account"`))}
	_, err := r.again(t).ListByTag(t.Context(), "tag-1")
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "CredentialsInvalid"), "%v", err)
}
