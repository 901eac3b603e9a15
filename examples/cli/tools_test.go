package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

// The local provider has none of the optional interfaces. Each of these adds one.

type withConsole struct {
	*local.Provider
	read func(id string, limit int) ([]byte, error)
}

func (p withConsole) ReadConsole(_ context.Context, id string, limit int) ([]byte, error) {
	return p.read(id, limit)
}

type withDoctor struct {
	*local.Provider
	found []provider.Finding
}

func (p withDoctor) Diagnose(context.Context) ([]provider.Finding, error) { return p.found, nil }

type withSweep struct {
	*local.Provider
	sweep func(provider.SweepRequest) ([]provider.Leftover, error)
}

func (p withSweep) Sweep(_ context.Context, req provider.SweepRequest) ([]provider.Leftover, error) {
	return p.sweep(req)
}

type withPlaces struct {
	wrapped
	place func(provider.PlaceRequest) (provider.Placement, error)
}

func (p withPlaces) Place(_ context.Context, req provider.PlaceRequest) (provider.Placement, error) {
	return p.place(req)
}

// console gives the world's provider a console.
func (w *world) console(read func(id string, limit int) ([]byte, error)) {
	w.wrap = func(p provider.Provider) provider.Provider { return withConsole{p.(*local.Provider), read} }
}

// goldenOf is golden, with what else differs from run to run left out.
func goldenOf(t *testing.T, name string, o outcome) {
	t.Helper()
	text := o.stdout
	for pattern, by := range map[string]string{
		`\d{4}-\d\d-\d\dT[0-9:.]+Z`: "TIME", `\d+s ago`: "N s ago", `"port": \d+`: `"port": N`, `port( +)\d{4,5}`: "port${1}N",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, by)
	}
	golden(t, name, text)
}

func TestGetShowsAllOfOne(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	in := w.left()[0]
	for _, arg := range []string{in.Name, in.UID, in.ID} {
		got := w.run("get", arg)
		require.Equal(t, exitOK, got.code, got.stderr)
		goldenOf(t, "get.stdout", got)
		assert.NotContains(t, got.stdout, "crawler:")
	}
	got := w.run("get", "-o", "json", "--show-url", "--key-file", w.path("key"), in.Name)
	require.Equal(t, exitOK, got.code, got.stderr)
	goldenOf(t, "get.json", got)
	assert.Contains(t, got.stdout, "http://crawler:")
}

func TestAnInstanceThatIsNotThere(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	for _, command := range []string{"get", "console"} {
		got := w.run(command, "never")
		assert.Equal(t, exitNotFound, got.code)
		assert.Contains(t, got.stderr, "nothing with the tag egressctl has that name or UID")
		assert.Contains(t, got.stderr, "see what there is: egressctl --providers")
		got = w.run(command, "--tag", "other", w.left()[0].ID)
		assert.Equal(t, exitPermanent, got.code)
		assert.Contains(t, got.stderr, "if it is yours: egressctl --providers "+w.path("providers.yaml")+" "+command+" hosts/local")
		assert.Equal(t, exitUsage, w.run(command).code)
	}
	w.partly()
	got := w.run("get", "elsewhere")
	assert.Equal(t, exitTransient, got.code, "it may be where nobody answered")
	assert.Contains(t, got.stderr, "warning: kvm2 could not be read: no answer")
}

func TestConsole(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	in := w.left()[0]
	const boot = "\x1b[2J\x1b[01;01HBdsDxe: loading\r\n[    0.0] Linux\r\n\x1b]0;owned\x07login: \x9b31m"
	w.console(func(id string, limit int) ([]byte, error) {
		assert.Equal(t, in.ID, id)
		return []byte(boot[max(0, len(boot)-limit):]), nil
	})
	got := w.run("console", in.Name)
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Equal(t, "BdsDxe: loading\n[    0.0] Linux\nlogin: \uFFFD31m", got.stdout)
	assert.Equal(t, boot, w.run("console", "--raw", in.Name).stdout)
	assert.Equal(t, "[    0.0] Linux\nlogin: \uFFFD31m", w.run("console", "--lines", "2", in.Name).stdout)
	assert.Equal(t, "31m", w.run("console", "--bytes", "3", in.Name).stdout)
	var result consoleText
	require.NoError(t, json.Unmarshal([]byte(w.run("console", "-o", "json", "--lines", "1", in.Name).stdout), &result))
	assert.Equal(t, consoleText{in.ID, in.Name, "login: \uFFFD31m"}, result)
	assert.Equal(t, exitUsage, w.run("console", "-o", "json", "--follow", in.Name).code)
	w.wrap = nil
	got = w.run("console", in.Name)
	assert.Equal(t, exitPermanent, got.code)
	assert.Contains(t, got.stderr, "keeps no console")
}

// The log grows between two looks, more than fits into one, and begins anew.
func TestConsoleFollows(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	texts := []string{"one\n", "one\ntwo \x1b[3", "error", "\ntwo \x1b[31mred\n", "red\nthree\n", "new\n", "end"}
	var mu sync.Mutex
	reads := 0
	w.console(func(string, int) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		text := texts[min(reads, len(texts)-1)]
		reads++
		switch text {
		case "error":
			return nil, errors.New("no answer")
		case "end":
			return nil, &provider.Error{Class: provider.ErrNotFound, Err: errors.New("it is gone")}
		}
		return []byte(text), nil
	})
	got := w.run("console", "-f", w.left()[0].Name)
	assert.Equal(t, "one\ntwo red\nthree\nnew\n", got.stdout)
	assert.Contains(t, got.stderr, "cannot read on at present: no answer")
	assert.Contains(t, got.stderr, "some of the console was missed")
	assert.Equal(t, exitNotFound, got.code)

	w.console(func(string, int) ([]byte, error) { return []byte("login: "), nil })
	w.change = func(a *app) { a.stdout = &trigger{at: []string{"login"}, signals: w.signals} }
	assert.Equal(t, exitOK, w.run("console", "-f", w.left()[0].Name).code, "Ctrl-C is its usual end")
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		before, text string
		want         int
	}{
		{"", "abc", 0}, {"abc", "", 0}, {"abc", "abc", 3}, {"abc", "abcd", 3}, {"xxabc", "abcd", 3}, {"abc", "xyz", 0},
		{"aaab", "aab", 3}, {"ababab", "ababx", 4}, {"abc", "c", 1},
	} {
		assert.Equal(t, c.want, overlap([]byte(c.before), []byte(c.text)), c)
	}
}

func TestPlainText(t *testing.T) {
	for raw, want := range map[string]string{
		"a\tb\nc":                      "a\tb\nc",
		"\x1b[1;31mred\x1b[0m":         "red",
		"\x1b]0;title\x07x":            "x",
		"\x1b]8;;http://a\x1b\\link":   "link",
		"\x1bPq#0\x1b\\x":              "x",
		"\u009b31mx\u009dtitle\u009cy": "xy",
		"\x1b(Bx\x1b7y\x1bcz":          "xyz",
		"a\x00\x08\x7f\u0085b":         "ab",
		"10%\r20%\r\r\nnext":           "10%\n20%\nnext",
		"\x1b[31\nnot lost":            "\nnot lost",
		"\x1b]0;no end\nnot lost":      "\nnot lost",
		"\u202eevil\u2066 \u200ftext":  "evil text",
		"caf\xc3\xa9 \xff":             "café \uFFFD",
		"\x1b\x1b[31mx":                "x",
	} {
		assert.Equal(t, want, plainText(raw), "%q", raw)
	}
	var out strings.Builder
	p := plain{w: &out}
	for _, b := range []byte("caf\xc3\xa9\x1b[31mred\r\n") {
		_, err := p.Write([]byte{b})
		require.NoError(t, err)
	}
	assert.Equal(t, "café"+"red\n", out.String(), "a sequence may come byte by byte")
	assert.Equal(t, "a b", oneLine("a\n\tb\n"))
}

func TestDoctor(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	w.write("providers.yaml", "providers: [{name: dev, type: local}, {name: broken, type: broken}]")
	found := []provider.Finding{
		{Scope: "kvm1", Check: "host", Status: provider.FindingOK, Evidence: "its sshd answers"},
		{Scope: "kvm1", Check: "clock", Status: provider.FindingWarning, Evidence: "4 s off", Remedy: "timedatectl set-ntp true"},
		{Scope: "kvm1", Check: "pool", Status: provider.FindingFailure, Evidence: "the pool default\nis not \x1b[31mactive", Remedy: "virsh pool-start default"},
		{Scope: "kvm1", Check: "space", Status: provider.FindingSkipped, Evidence: "there is no pool"},
	}
	w.change = func(a *app) {
		types := w.types(setup.Hooks{})
		types["broken"] = registry.For(func(string, struct{}) (*local.Provider, error) { return nil, errors.New("its key is missing") })
		a.types = func(setup.Hooks) registry.Types { return types }
	}
	w.wrap = func(p provider.Provider) provider.Provider { return withDoctor{p.(*local.Provider), found} }
	got := w.run("doctor")
	assert.Equal(t, exitOther, got.code)
	assert.Contains(t, got.stderr, "2 of 5 checks failed")
	golden(t, "doctor.stdout", got.stdout)
	golden(t, "doctor.json", w.run("doctor", "-o", "json").stdout)
	found = found[:2]
	assert.Equal(t, exitOK, w.run("doctor", "--provider", "dev").code, "a warning is no failure")
	w.wrap = nil
	got = w.run("doctor", "--provider", "dev")
	assert.Equal(t, exitOK, got.code)
	assert.Contains(t, got.stdout, "nothing to examine")
	assert.Equal(t, exitUsage, w.run("doctor", "--provider", "x").code)
}

// A host where nothing listens is examined by the real provider.
func TestDoctorOfAHostThatIsDown(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	w.write("known_hosts", "[127.0.0.1]:1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n")
	w.write("providers.yaml", fmt.Sprintf(`
providers:
  - name: rack
    type: kvm
    kvm:
      sshKeyFile: %s
      knownHostsFile: %s
      hosts: [{name: kvm1, address: "127.0.0.1:1", user: egress, bridge: br0}]
      machineTypes: {small: {vcpus: 1, memoryMiB: 512}}
`, w.path("absent"), w.path("known_hosts")))
	w.change = func(a *app) { a.types = setup.Types }
	got := w.run("doctor")
	assert.Equal(t, exitOther, got.code, got.stderr)
	assert.Regexp(t, `rack +kvm1 +ssh-files +failure +.*absent`, got.stdout)
	assert.Contains(t, got.stdout, "next: put the file there: a key by ssh-keygen")
	assert.Regexp(t, `rack +kvm1 +pool +skipped`, got.stdout)
}

func TestSweepRemovesNothingUnlessTold(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	var asked []provider.SweepRequest
	w.wrap = func(p provider.Provider) provider.Provider {
		return withSweep{p.(*local.Provider), func(req provider.SweepRequest) ([]provider.Leftover, error) {
			asked = append(asked, req)
			return []provider.Leftover{
				{Scope: "kvm1", Kind: "domain", Name: "proxy-abcdefghijklmnop", Age: 2 * time.Hour, Reason: "nobody finished making it", Removed: true},
				{Scope: "kvm1", Kind: "volume", Name: "proxy-bbcdefghijklmnop.qcow2", Reason: "its domain is gone; kept: run virsh vol-delete"},
			}, nil
		}}
	}
	got := w.run("sweep")
	assert.Equal(t, exitOK, got.code, got.stderr)
	golden(t, "sweep.stdout", got.stdout)
	assert.Contains(t, got.stderr, "nothing was removed; 1 would be")
	got = w.run("sweep", "--yes", "--older-than", "0s", "-o", "json")
	assert.Equal(t, exitOK, got.code, got.stderr)
	golden(t, "sweep.json", got.stdout)
	assert.Equal(t, []provider.SweepRequest{
		{Tag: "egressctl", MinAge: time.Hour, DryRun: true}, {Tag: "egressctl", MinAge: 1},
	}, asked)
	assert.Equal(t, exitUsage, w.run("sweep", "--yes", "--dry-run").code)
	w.wrap = nil
	assert.Contains(t, w.run("sweep").stderr, "nothing was found")
}

func TestSweepTellsWhatWentWrong(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	w.wrap = func(p provider.Provider) provider.Provider {
		return withSweep{p.(*local.Provider), func(provider.SweepRequest) ([]provider.Leftover, error) {
			busy := &provider.Error{Class: provider.ErrTransient, Err: errors.New("it is busy")}
			return []provider.Leftover{{Scope: "kvm1", Kind: "image", Name: "base-x", Reason: "a fetch that was not finished", Err: busy}},
				&provider.PartialError{Missing: []provider.Missing{{Scope: "kvm2", Err: errors.New("no answer")}}}
		}}
	}
	got := w.run("sweep", "--yes")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stdout, "not removed")
	assert.Contains(t, got.stderr, "kvm1: image base-x could not be removed: it is busy")
	assert.Contains(t, got.stderr, "warning: kvm2 could not be read: no answer")
	assert.Contains(t, w.run("sweep", "--yes", "-o", "json").stdout, `"error": "it is busy"`)
}

// rack is a kvm provider without hosts.
type rack struct {
	*local.Provider
	mu     sync.Mutex
	pulls  []kvm.PullRequest
	prunes []kvm.PruneRequest
	pull   func(kvm.PullRequest) error
	gap    bool
}

func (r *rack) Close() error { return nil }

func (r *rack) ListImages(context.Context) ([]kvm.HostImage, error) {
	images := []kvm.HostImage{
		{Host: "kvm1", Volume: "base-debian13-0123.qcow2", Key: "debian13", Format: "qcow2", Bytes: 400 << 20, DiskBytes: 3 << 30, Whole: true, Configured: true, Users: 2},
		{Host: "kvm2", Volume: "base-debian12-4567.raw", Key: "debian12", Format: "raw", Bytes: 3 << 30, DiskBytes: 3 << 30},
	}
	if r.gap {
		return images[:1], &provider.PartialError{Missing: []provider.Missing{{Scope: "kvm2", Err: errors.New("no answer")}}}
	}
	return images, nil
}

func (r *rack) PullImage(_ context.Context, req kvm.PullRequest) (kvm.HostImage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pulls = append(r.pulls, req)
	if r.pull != nil {
		if err := r.pull(req); err != nil {
			return kvm.HostImage{}, err
		}
	}
	return kvm.HostImage{Host: req.Host, Volume: "base-" + req.Image, Key: req.Image, Format: "qcow2", Whole: true}, nil
}

func (r *rack) PruneImages(_ context.Context, req kvm.PruneRequest) ([]provider.Leftover, error) {
	r.prunes = append(r.prunes, req)
	return []provider.Leftover{
		{Scope: "kvm1", Kind: "image", Name: "base-debian13-0123.qcow2", Age: 3 * time.Hour, Reason: "kept: 2 disks are based on it"},
		{Scope: "kvm2", Kind: "image", Name: "base-debian12-4567.raw", Age: 72 * time.Hour, Reason: "no disk is based on it", Removed: true},
	}, nil
}

const rackProviders = `
providers:
  - name: rack
    type: kvm
    kvm:
      hosts:
        - {name: kvm1, address: local, bridge: br0}
        - {name: kvm2, address: local, bridge: br0}
      machineTypes: {small: {vcpus: 1, memoryMiB: 512}}
      images:
        debian12: {url: "https://images.example.com/12"}
        debian13: {url: "https://images.example.com/13"}
  - {name: dev, type: local}
`

func newRack(t *testing.T) (*world, *rack) {
	w := newWorld(t, local.HostConfig{})
	w.write("providers.yaml", rackProviders)
	r := &rack{Provider: w.provider()}
	w.change = func(a *app) {
		a.types = func(hooks setup.Hooks) registry.Types {
			types := w.types(setup.Hooks{})
			types["kvm"] = registry.For(func(name string, cfg kvm.Config) (*rack, error) {
				cfg.Name = name
				hooks.KVM(&cfg)
				return r, nil
			})
			return types
		}
	}
	return w, r
}

func TestImagesLs(t *testing.T) {
	w, r := newRack(t)
	got := w.run("images", "ls")
	require.Equal(t, exitOK, got.code, got.stderr)
	golden(t, "images-ls.stdout", got.stdout)
	golden(t, "images-ls.json", w.run("images", "ls", "-o", "json").stdout)
	r.gap = true
	got = w.run("images", "ls", "-o", "json")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stdout, `"scope": "kvm2"`)
	assert.Equal(t, exitUsage, w.run("images").code)
	got = w.run("images", "nonsense")
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, `unknown command "nonsense" for "egressctl images"`)
	got = w.run("images", "ls", "--provider", "dev")
	assert.Equal(t, exitPermanent, got.code)
	assert.Contains(t, got.stderr, "no provider of the file keeps images")
}

func TestImagesPull(t *testing.T) {
	w, r := newRack(t)
	got := w.run("images", "pull")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.ElementsMatch(t, []kvm.PullRequest{
		{Host: "kvm1", Image: "debian12"}, {Host: "kvm1", Image: "debian13"}, {Host: "kvm2", Image: "debian12"}, {Host: "kvm2", Image: "debian13"},
	}, r.pulls)
	assert.Contains(t, got.stderr, "kvm1: debian13 is there as base-debian13")

	r.pulls = nil
	r.pull = func(req kvm.PullRequest) error {
		if req.Host == "kvm2" {
			return &provider.Error{Class: provider.ErrQuotaExceeded, Err: errors.New("the pool has no room")}
		}
		return nil
	}
	got = w.run("images", "pull", "--again", "--host", "kvm1,kvm2", "debian13", "-o", "json")
	assert.Equal(t, exitQuota, got.code, "the others are still fetched")
	assert.ElementsMatch(t, []kvm.PullRequest{{Host: "kvm1", Image: "debian13", Again: true}, {Host: "kvm2", Image: "debian13", Again: true}}, r.pulls)
	assert.Contains(t, got.stderr, "kvm2: debian13: the pool has no room")
	golden(t, "images-pull.json", got.stdout)
	got = w.run("images", "pull", "--host", "kvm3")
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, `--host: "kvm3": the providers have ["kvm1" "kvm2"]`)
}

func TestImagesPrune(t *testing.T) {
	w, r := newRack(t)
	got := w.run("images", "prune", "--dry-run")
	require.Equal(t, exitOK, got.code, got.stderr)
	golden(t, "images-prune-dry.stdout", got.stdout)
	got = w.run("images", "prune", "--all", "--older-than", "0s", "--host", "kvm2", "-o", "json")
	require.Equal(t, exitOK, got.code, got.stderr)
	golden(t, "images-prune.json", got.stdout)
	assert.Equal(t, []kvm.PruneRequest{{MinAge: time.Hour, DryRun: true}, {Host: "kvm2", Configured: true, MinAge: 1}}, r.prunes)
	assert.Equal(t, exitUsage, w.run("images", "prune", "--host", "kvm3").code)
}

func TestProbe(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	made := w.up("--count", "2")
	require.Equal(t, exitOK, made.code, made.stderr)
	urls := strings.Fields(made.stdout)
	good := w.run("probe", "--probe-ca", w.path("ca.pem"), urls[0], urls[1])
	require.Equal(t, exitOK, good.code, good.stderr)
	assert.Regexp(t, `http://\*\*\*@127.0.0.1:\d+ +Healthy +200 +- +\S+ +\S+ +- +\S+ +\S+`, good.stdout)
	assert.NotContains(t, good.stdout, "crawler")
	assert.Contains(t, good.stderr, "can be read in this machine's list of processes")

	require.NoError(t, w.host.Inject(w.left()[0].ID, local.ProxyDown))
	got := w.run("probe", "--probe-ca", w.path("ca.pem"), "--key-file", w.path("key"), "--name", w.left()[1].Name, "-o", "json", "http://127.0.0.1:1")
	assert.Equal(t, exitOther, got.code)
	var result struct{ Probes []probed }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &result))
	require.Len(t, result.Probes, 2)
	dead, live := result.Probes[0], result.Probes[1]
	assert.Equal(t, "dial", dead.Stage)
	assert.EqualValues(t, "Unhealthy", dead.Health)
	assert.Contains(t, dead.Error, "connection refused")
	assert.Equal(t, w.left()[1].Name, live.Name)
	assert.Positive(t, live.Milliseconds["targetTLS"])
	assert.Contains(t, got.stderr, "1 of 2 proxies are not healthy")
	assert.Contains(t, got.stderr, "next: no proxy listens there")

	w.change = func(a *app) { a.stdin = strings.NewReader(urls[0] + "\n" + urls[1] + "\n") }
	piped := w.run("probe", "-")
	assert.Contains(t, piped.stderr, "2 of 2 proxies", "the authority of the target is not known")
	assert.NotContains(t, piped.stderr, "list of processes")
	got = w.run("probe", "192.0.2.7:3128")
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, "write it like http://192.0.2.7:3128")
	assert.Equal(t, exitUsage, w.run("probe").code)
}

// A target that tells the address it sees, in either form.
func TestProbeTellsTheEgressAddress(t *testing.T) {
	for name, body := range map[string]string{"text": "198.51.100.7\n", "json": `{"ip": "198.51.100.7", "headers": {"Via": "squid"}}`} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, local.HostConfig{})
			w.answer(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, body) })
			made := w.up("-o", "json")
			require.Equal(t, exitOK, made.code, made.stderr)
			assert.Contains(t, made.stdout, `"egressIP": "198.51.100.7"`)
			got := w.run("probe", "--probe-ca", w.path("ca.pem"), "--key-file", w.path("key"), "--name", w.left()[0].Name)
			assert.Equal(t, exitOK, got.code, got.stderr)
			assert.Contains(t, got.stdout, "198.51.100.7")
			assert.Equal(t, name == "json", strings.Contains(got.stdout, "by the headers Via"))
		})
	}
}

// placed is a world whose provider chooses among two hosts.
func placed(t *testing.T, cfg local.HostConfig, create func(zone string) error) (*world, *[]provider.PlaceRequest) {
	w := newWorld(t, cfg)
	var asked []provider.PlaceRequest
	w.wrap = func(p provider.Provider) provider.Provider {
		inner := p.(*local.Provider)
		return withPlaces{
			wrapped: wrapped{Provider: inner, create: func(ctx context.Context, req provider.CreateRequest) (string, error) {
				if err := create(req.Placement.Zone); err != nil {
					return "", err
				}
				req.Placement = provider.Placement{}
				return inner.Create(ctx, req)
			}},
			place: func(req provider.PlaceRequest) (provider.Placement, error) {
				asked = append(asked, req)
				switch {
				case req.Placement.Zone != "":
				case len(req.Avoid) == 0:
					req.Placement.Zone = "kvm1"
				case len(req.Avoid) == 1:
					req.Placement.Zone = "kvm2"
				default:
					return req.Placement, &provider.Error{Class: provider.ErrQuotaExceeded, Err: errors.New("no host has room")}
				}
				return req.Placement, nil
			},
		}
	}
	return w, &asked
}

func fullWhere(full ...string) func(zone string) error {
	return func(zone string) error {
		for _, f := range full {
			if f == zone {
				return &provider.Error{Class: provider.ErrQuotaExceeded, Scope: zone, Err: errors.New("it needs 512 MiB and has 3")}
			}
		}
		return nil
	}
}

func TestUpGoesElsewhereWhereAHostIsFull(t *testing.T) {
	w, asked := placed(t, local.HostConfig{}, fullWhere("kvm1"))
	got := w.up()
	require.Equal(t, exitOK, got.code, got.stderr)
	require.Len(t, *asked, 2)
	assert.NotEqual(t, (*asked)[0].UID, (*asked)[1].UID, "another instance")
	assert.Equal(t, []provider.Placement{{Zone: "kvm1"}}, (*asked)[1].Avoid)
	assert.Contains(t, got.stderr, "creating on kvm1, tag egressctl")
	assert.Contains(t, got.stderr, "no room on kvm1: ")
	assert.Contains(t, got.stderr, "creating on kvm2, tag egressctl")
	assert.Len(t, w.left(), 1)
}

func TestUpEndsWhereAllHostsAreFull(t *testing.T) {
	w, _ := placed(t, local.HostConfig{}, fullWhere("kvm1", "kvm2"))
	got := w.up()
	assert.Equal(t, exitQuota, got.code)
	assert.Contains(t, got.stderr, "kvm2: it needs 512 MiB and has 3")
	w, asked := placed(t, local.HostConfig{}, fullWhere("kvm1"))
	got = w.up("--zone", "kvm1")
	assert.Equal(t, exitQuota, got.code, "a host that was named is the one that is meant")
	assert.Len(t, *asked, 1)
}

func TestWhatDoesNotBootShowsItsConsole(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: time.Hour})
	w.console(func(string, int) ([]byte, error) { return []byte("\x1b[2Jgrub>\r\nno such partition\r\n"), nil })
	got := w.up("--timeout", "2s")
	assert.Equal(t, exitTransient, got.code)
	assert.Contains(t, got.stderr, "the end of its console:\n  | grub>\n  | no such partition\n")
	assert.Contains(t, got.stderr, "by --keep and then: egressctl --providers "+w.path("providers.yaml")+" console proxy-")
	assert.Empty(t, w.left())
}

func TestCompletion(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up("--count", "2").code)
	a, b := w.left()[0], w.left()[1]
	for _, command := range []string{"get", "rm", "console"} {
		got := w.run("__complete", command, "")
		assert.Contains(t, got.stdout, a.Name+"\trunning in local\n", command)
	}
	got := w.run("__complete", "rm", a.Name, "")
	assert.NotContains(t, got.stdout, a.Name)
	assert.Contains(t, got.stdout, b.Name)
	assert.Contains(t, w.run("__complete", "ls", "--provider", "").stdout, "dev\n")
	assert.Contains(t, w.run("__complete", "ls", "-o", "").stdout, "json\n")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		got := w.run("completion", shell)
		assert.Equal(t, exitOK, got.code)
		assert.Contains(t, got.stdout, "egressctl")
	}
	w, _ = newRack(t)
	assert.Contains(t, w.run("__complete", "images", "pull", "").stdout, "debian12\ndebian13\n")
	assert.Contains(t, w.run("__complete", "up", "--zone", "").stdout, "kvm1\nkvm2\n")
	w.write("providers.yaml", "nonsense: [")
	assert.NotContains(t, w.run("__complete", "get", "").stdout, "proxy-")
}

func TestColoursAreForTerminals(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	assert.NotContains(t, w.run("ls").stdout, "\x1b")
	plainly := w.run("ls").stdout
	w.change = func(a *app) { a.colour = true }
	coloured := w.run("ls").stdout
	assert.Contains(t, coloured, "\x1b[32mRunning\x1b[0m")
	assert.Equal(t, strings.ReplaceAll(plainly, "Running", green+"Running"+reset), coloured, "a colour takes no room")
	assert.False(t, wantsColour(&strings.Builder{}))
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	assert.False(t, wantsColour(file))
}

func TestHelp(t *testing.T) {
	t.Setenv("EGRESS_PROVIDERS", "")
	t.Setenv("XDG_CONFIG_HOME", "/home/me/.config")
	t.Setenv("HOME", "/home/me")
	w := &world{t: t, dir: "."}
	for _, command := range commandsOf(newApp(nil, nil, nil).rootCommand(), nil) {
		got := w.run(append(command, "--help")...)
		assert.Equal(t, exitOK, got.code)
		golden(t, "help-"+strings.Join(command, "-")+".stdout", got.stdout)
	}
}

// commandsOf are the commands below one, but those of cobra.
func commandsOf(cmd *cobra.Command, path []string) (all [][]string) {
	for _, child := range cmd.Commands() {
		words := append(slices.Clone(path), child.Name())
		all = append(append(all, words), commandsOf(child, words)...)
	}
	return all
}
