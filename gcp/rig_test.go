package gcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const (
	zoneA  = "europe-west1-b"
	zoneB  = "europe-west1-c"
	debian = "projects/debian-cloud/global/images/family/debian-13"
)

// discovery is read once: it has six megabytes.
var discovery = sync.OnceValues(fakecompute.LoadDiscovery)

// rig is a provider on a server of its own.
type rig struct {
	*gcp.Provider
	server *fakecompute.Server
	cfg    gcp.Config
	url    string

	mu  sync.Mutex
	log bytes.Buffer
}

// newRig starts a server with two zones. amend may change both configurations.
func newRig(t *testing.T, amend func(*gcp.Config, *fakecompute.Config)) *rig {
	t.Helper()
	d, err := discovery()
	if err != nil {
		t.Logf("SKIPPED: requests are not held to the discovery document, which is not to be had: %v", err)
	}
	r := &rig{}
	fake := fakecompute.Config{
		Zones: []string{zoneA, zoneB}, Discovery: d, Refused: func(problem string) { t.Errorf("the API refuses: %s", problem) },
	}
	r.cfg = gcp.Config{Project: "test-project", Zones: []string{zoneA, zoneB}, Logger: funcr.New(r.keep, funcr.Options{Verbosity: 5})}
	if amend != nil {
		amend(&r.cfg, &fake)
	}
	r.server = fakecompute.New(fake)
	listener := httptest.NewServer(r.server)
	t.Cleanup(listener.Close)
	r.url = listener.URL
	r.cfg.ClientOptions = append(r.cfg.ClientOptions, option.WithEndpoint(listener.URL), option.WithoutAuthentication())
	r.Provider = r.again(t)
	return r
}

// again returns another provider on the same server.
func (r *rig) again(t *testing.T) *gcp.Provider {
	t.Helper()
	p, err := gcp.New(r.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (r *rig) keep(prefix, args string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.log, prefix, args)
}

func (r *rig) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// request is one that works, in zoneA.
func request(uid string) provider.CreateRequest {
	return provider.CreateRequest{
		UID: uid, Tag: "tag-1",
		Placement: provider.Placement{Zone: zoneA, MachineType: "e2-small", Image: debian},
		UserData:  provider.UserData("#cloud-config\npassword: secret-of-" + uid + "\n"),
		Metadata:  map[string]string{"port": "3128"},
	}
}

func nameOf(id string) string { return id[strings.LastIndex(id, "/")+1:] }

func zoneOf(id string) string { return strings.Split(id, "/")[1] }

// bodyOf is what an insert of the request sends.
func bodyOf(t *testing.T, cfg gcp.Config, req provider.CreateRequest) map[string]any {
	t.Helper()
	insert, err := cfg.InsertRequest(req)
	require.NoError(t, err)
	text, err := protojson.Marshal(insert.GetInstanceResource())
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal(text, &body))
	return body
}

// short is long enough for what happens at once.
const short = 10 * time.Second

// fails has every call of a method fail in that way.
func fails(method string, fault fakecompute.Fault) func(fakecompute.Call) fakecompute.Fault {
	return func(c fakecompute.Call) fakecompute.Fault {
		if c.Method == method {
			return fault
		}
		return fakecompute.Fault{}
	}
}
