package gcp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/internal/mdtest"
)

const (
	manualProject = "/projects/my-project"
	compute       = "/compute/v1" + manualProject
	// done is the operation that makes the firewall rule.
	done = `{"name": "op", "operationType": "insert", "status": "DONE", "selfLink": "https://compute.googleapis.com` + compute + `/global/operations/op",
		"targetLink": "https://compute.googleapis.com` + compute + `/global/firewalls/egress-proxy"}`
)

// google is what gcloud talks to: the fake Compute Engine, and for the calls that it has
// not an answer that says yes.
type google struct {
	*rig
	mu   sync.Mutex
	sent map[string]string // bodies
}

var yes = map[string]string{
	"POST /v1" + manualProject + "/services/compute.googleapis.com:enable": `{"name": "operations/noop.DONE_OPERATION", "done": true}`,
	"POST " + compute + "/global/firewalls":                                done,
	"GET " + compute + "/global/operations/op":                             done,
	"POST " + compute + "/global/operations/op/wait":                       done,
	"GET " + compute + "/global/firewalls/egress-proxy":                    `{"name": "egress-proxy"}`,
	"GET " + compute + "/global/firewalls": `{"items": [{"name": "default-allow-ssh", "network": "x/default",
		"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}]}`,
	"GET " + compute + "/aggregated/disks": `{"items": {"zones/` + zoneA + `": {"disks": [
		{"name": "left-behind", "zone": "x/` + zoneA + `", "labels": {"egress-managed": "true"}},
		{"name": "in-use", "zone": "x/` + zoneA + `", "labels": {"egress-managed": "true"}, "users": ["an-instance"]},
		{"name": "of-a-stranger", "zone": "x/` + zoneA + `"}]}}}`,
}

// ServeHTTP implements http.Handler.
func (g *google) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := r.Method + " " + r.URL.Path
	answer, ok := yes[call]
	switch {
	case !ok && strings.HasPrefix(r.URL.Path, "/compute/"):
		g.server.ServeHTTP(w, r)
		return
	case !ok:
		answer = "{}"
	}
	body, _ := io.ReadAll(r.Body)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent[call] = string(body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, answer)
}

// gcloud runs a script with a gcloud that reaches g alone, as somebody without
// credentials.
func (g *google) gcloud(t *testing.T, url, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "HTTPS_PROXY=http://127.0.0.1:1", "no_proxy=127.0.0.1",
		"CLOUDSDK_CONFIG=" + dir, "CLOUDSDK_CORE_CHECK_GCE_METADATA=false", "CLOUDSDK_CORE_DISABLE_PROMPTS=1",
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true", "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=true",
		"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE=" + filepath.Join(dir, "token"),
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE=" + url + "/compute/v1/",
	}
	for _, api := range []string{"CLOUDRESOURCEMANAGER", "IAM", "SERVICEUSAGE"} {
		cmd.Env = append(cmd.Env, "CLOUDSDK_API_ENDPOINT_OVERRIDES_"+api+"="+url+"/")
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)
	return string(out)
}

// triedGcloud is the version whose calls the stand-ins answer.
const triedGcloud = "528."

// The commands of gcloud in docs/gcp.md, in their order, on stand-ins for Google.
func TestGcloudOfTheManualWorks(t *testing.T) {
	version, err := exec.CommandContext(t.Context(), "gcloud", "--version").Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		t.Skip("needs gcloud, of Google's own packages")
	case !strings.HasPrefix(string(version), "Google Cloud SDK "+triedGcloud):
		t.Skipf("needs gcloud %s: another version may ask for what the stand-ins do not answer; this is %.40q", triedGcloud, version)
	}
	g := &google{sent: map[string]string{}, rig: newRig(t, func(c *gcp.Config, f *fakecompute.Config) {
		c.Project, f.Project = "my-project", "my-project"
		f.Discovery = nil // gcloud sends parameters of before
	})}
	req := request("uid-1")
	req.Tag = "crawler-a"
	id, err := g.Create(t.Context(), req)
	require.NoError(t, err)
	g.server.Put(zoneA, map[string]any{"name": "of-a-stranger"})
	server := httptest.NewServer(g)
	defer server.Close()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("none"), 0o600))

	said := ""
	for _, b := range mdtest.Blocks(t, "..") {
		if strings.HasPrefix(b.Text, "gcloud ") {
			said += g.gcloud(t, server.URL, dir, b.Text)
		}
	}
	for _, text := range []string{"default-allow-ssh", "0.0.0.0/0", "tcp:22", nameOf(id), "left-behind"} {
		assert.Contains(t, said, text, "it is listed")
	}
	assert.Equal(t, 2, strings.Count(said, "\n"+nameOf(id)), "by both filters, of all tags and of one")
	assert.NotContains(t, said, "of-a-stranger")
	assert.NotContains(t, said, "in-use")
	for call, texts := range map[string][]string{
		"POST /v1" + manualProject + "/serviceAccounts": {`"accountId": "egress"`},
		"POST /v1" + manualProject + "/roles":           {`"compute.instances.create"`, `"compute.machineTypes.get"`, `"roleId": "egress"`},
		"POST /v1" + manualProject + ":setIamPolicy":    {`"serviceAccount:egress@my-project.iam.gserviceaccount.com"`, `"projects/my-project/roles/egress"`},
		"POST " + compute + "/global/firewalls":         {`"3128"`, `"203.0.113.0/24"`, `"egress-proxy"`},
	} {
		for _, text := range texts {
			assert.Contains(t, g.sent[call], text, "%s", call)
		}
	}
	login := "gcloud auth application-default login" // by a browser
	require.Contains(t, mdtest.Commands(t, "../docs/gcp.md"), login)
	g.gcloud(t, server.URL, dir, login+" --help")
}
