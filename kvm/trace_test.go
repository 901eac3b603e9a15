package kvm_test

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// lines collects log lines as maps.
type lines struct {
	mu  sync.Mutex
	all []map[string]any
}

func (l *lines) logger(verbosity int) logr.Logger {
	return funcr.NewJSON(func(text string) {
		var m map[string]any
		if json.Unmarshal([]byte(text), &m) == nil {
			m["text"] = text
			l.mu.Lock()
			defer l.mu.Unlock()
			l.all = append(l.all, m)
		}
	}, funcr.Options{Verbosity: verbosity})
}

func (l *lines) of(msg string) (found []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		if m["msg"] == msg {
			found = append(found, m)
		}
	}
	return found
}

func (l *lines) rpcs() (names []string) {
	for _, m := range l.of("libvirt call") {
		names = append(names, m["rpc"].(string))
	}
	return names
}

// walk is one life, with a failure of each kind.
func walk(t *testing.T, r *rig, ctx context.Context) {
	t.Helper()
	id, err := r.Create(ctx, request("u1"))
	require.NoError(t, err)
	_, err = r.Get(ctx, id)
	require.NoError(t, err)
	_, err = r.again(t).ListByTag(ctx, "tag-a") // has not seen the metadata
	require.NoError(t, err)
	r.host().PutFile("/var/log/libvirt/qemu/"+provider.Name("u1")+"-console.log", []byte("login:"))
	_, err = r.ReadConsole(ctx, id, 0)
	require.NoError(t, err)
	_, err = r.ListImages(ctx)
	require.NoError(t, err)
	network := r.cfg.Hosts[0]
	r.cfg.Hosts[0].Bridge, r.cfg.Hosts[0].Network = "br0", ""
	_, err = r.again(t).Diagnose(ctx)
	require.NoError(t, err)
	r.cfg.Hosts[0] = network
	watching, stop := context.WithCancel(ctx)
	require.ErrorIs(t, r.Watch(watching, "tag-a", func(string) { stop() }), context.Canceled)
	require.NoError(t, r.Delete(ctx, id))
	_, err = r.Get(ctx, id)
	require.ErrorIs(t, err, provider.ErrNotFound)
}

// TestEveryCallIsTraced compares what the host was asked with what the log and
// the hook tell: one line each.
func TestEveryCallIsTraced(t *testing.T) {
	var log lines
	var mu sync.Mutex
	var hooked []string
	r := newRig(t, func(c *kvm.Config) {
		c.Logger = log.logger(2)
		c.Trace = &kvm.Trace{Call: func(_ context.Context, info kvm.CallInfo) func(error) {
			mu.Lock()
			defer mu.Unlock()
			hooked = append(hooked, info.RPC)
			return nil
		}}
		c.Hosts[0].Bridge, c.Hosts[0].Network = "", "default"
	})
	r.host().SetNetwork("default", true)
	_, err := r.Place(testContext(t), provider.PlaceRequest{UID: "u1"})
	require.NoError(t, err)
	walk(t, r, testContext(t))
	asked := r.host().Calls()
	assert.ElementsMatch(t, asked, log.rpcs())
	assert.ElementsMatch(t, asked, hooked)
	for _, name := range kvm.APIMethods() {
		assert.Contains(t, asked, libvirtName(name), "the walk does not reach a function: extend it")
	}
}

// libvirtName is what libvirt calls a function of go-libvirt.
func libvirtName(method string) string {
	if method == "LifecycleEvents" {
		return "virConnectDomainEventRegisterAny"
	}
	return "vir" + method
}

// TestCallsGoThroughOnePlace reads the source: functions of libvirt are called
// in calls.go alone, each once, in the function given to do or run, under the
// name that the log has for it.
func TestCallsGoThroughOnePlace(t *testing.T) {
	methods := kvm.APIMethods()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	seen := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "stream.go" { // which implements two of them
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			called, wrapped, named := callsOf(fn, methods)
			if len(called) == 0 {
				continue
			}
			assert.Equal(t, "calls.go", file, "%s calls %v", fn.Name.Name, called)
			assert.Equal(t, called, wrapped, "%s: calls outside of do and run", fn.Name.Name)
			require.Len(t, called, 1, fn.Name.Name)
			assert.Equal(t, []string{libvirtName(called[0])}, named, fn.Name.Name)
			seen[called[0]]++
		}
	}
	for _, m := range methods {
		assert.Equal(t, 1, seen[m], m)
	}
}

// callsOf finds the functions of libvirt that fn calls, those of them that are
// inside an argument of do or run, and the names given to an rpc.
func callsOf(fn *ast.FuncDecl, methods []string) (called, wrapped, named []string) {
	collect := func(into *[]string) func(ast.Node) bool {
		return func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(methods, sel.Sel.Name) {
				*into = append(*into, sel.Sel.Name)
			}
			return true
		}
	}
	ast.Inspect(fn, collect(&called))
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "do" || id.Name == "run") {
				ast.Inspect(n.Args[len(n.Args)-1], collect(&wrapped))
			}
		case *ast.KeyValueExpr:
			key, isKey := n.Key.(*ast.Ident)
			if lit, ok := n.Value.(*ast.BasicLit); ok && isKey && key.Name == "name" {
				named = append(named, strings.Trim(lit.Value, `"`))
			}
		}
		return true
	})
	return called, wrapped, named
}

func TestLogLines(t *testing.T) {
	var log lines
	r := newRig(t, func(c *kvm.Config) { c.Logger, c.Name = log.logger(1), "lab" })
	walk(t, r, testContext(t))
	for msg, keys := range map[string][]string{
		"fetching base image into host pool": {"pool", "volume", "url", "bytes"},
		"base image cached":                  {"volume", "sha256", "bytes", "duration"},
		"domain defined":                     {"uid", "firmware"},
		"overlay volume created":             {},
		"seed volume uploaded":               {"volume", "bytes"},
		"KVM domain ensured running":         {},
		"KVM domain fetched":                 {"state", "ip", "uid"},
	} {
		found := log.of(msg)
		require.Len(t, found, 1, msg)
		for _, key := range append(keys, "provider", "host", "name") {
			assert.Contains(t, found[0], key, msg)
		}
		assert.Equal(t, "kvm", found[0]["logger"])
		assert.Equal(t, "lab", found[0]["provider"])
	}
	require.Len(t, log.of("libvirt host connected"), 8, "control, two uploads, agent, a download, events, and two other providers' controls")
	for _, m := range log.of("libvirt call") {
		assert.Equal(t, "kvm/libvirt", m["logger"])
		for _, key := range []string{"provider", "host", "duration"} {
			assert.Contains(t, m, key)
		}
		assert.NotContains(t, m, "xml", "bodies are for V(2)")
		if m["rpc"] == "virDomainGetState" {
			assert.NotContains(t, m, "flags")
		}
	}
	last := log.of("libvirt call")[len(log.of("libvirt call"))-1]
	assert.Equal(t, "ErrNoDomain", last["libvirtError"])
	assert.EqualValues(t, libvirt.ErrNoDomain, last["libvirtCode"])
}

// TestContextLogger is preferred to the configured one.
func TestContextLogger(t *testing.T) {
	var configured, own lines
	r := newRig(t, func(c *kvm.Config) { c.Logger = configured.logger(1) })
	ctx := logr.NewContext(testContext(t), own.logger(1))
	_, err := r.Create(ctx, request("u1"))
	require.NoError(t, err)
	assert.NotEmpty(t, own.of("libvirt call"))
	assert.Empty(t, configured.of("libvirt call"))
}

// TestNoSecrets searches everything that is logged, at any level, and every
// error, for what the guest alone shall know.
func TestNoSecrets(t *testing.T) {
	var log lines
	r := newRig(t, func(c *kvm.Config) {
		c.Logger = log.logger(9)
		c.VendorData = "#cloud-config\n# vendor-secret\n"
		image := c.Images["debian"]
		image.URL = strings.Replace(image.URL, "http://", "http://user:hunter2@", 1) + "?sig=hunter3"
		c.Images["debian"] = image
	})
	walk(t, r, testContext(t))
	for k := range 30 {
		r.host().ForgetCalls()
		heal := kill(r.host(), k, true)
		_, err := r.again(t).Create(testContext(t), request("u1"))
		if err != nil {
			assertNoSecret(t, err.Error())
		}
		heal()
	}
	for _, m := range log.all {
		assertNoSecret(t, m["text"].(string))
	}
}

func assertNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{"secret-u1", "vendor-secret", "hunter"} {
		assert.NotContains(t, text, secret)
	}
}

// TestSteps shows the steps as a CLI would.
func TestSteps(t *testing.T) {
	var steps []string
	var results []error
	type key struct{}
	r := newRig(t, func(c *kvm.Config) {
		c.Trace = &kvm.Trace{
			Operation: func(ctx context.Context, info kvm.OperationInfo) (context.Context, func(error)) {
				return context.WithValue(ctx, key{}, info.Op), func(err error) { results = append(results, err) }
			},
			Step: func(ctx context.Context, info kvm.StepInfo) (context.Context, func(error)) {
				assert.Equal(t, info.Op, ctx.Value(key{}), "the operation's context is the step's parent")
				steps = append(steps, info.Step)
				return nil, nil
			},
			Dial: func(_ context.Context, info kvm.DialInfo) func(error) {
				assert.Equal(t, "kvm1", info.Host)
				return nil
			},
		}
	})
	walk(t, r, testContext(t))
	assert.Equal(t, []string{"room", "base-image", "define", "overlay", "seed", "mark", "autostart", "start", "destroy", "volumes", "undefine"}, steps)
	require.Len(t, results, 8)
	assert.NoError(t, errors.Join(results[:7]...))
	require.ErrorIs(t, results[7], provider.ErrNotFound)
}

func TestErrorTable(t *testing.T) {
	for _, c := range []struct {
		code  libvirt.ErrorNumber
		msg   string
		class error
		name  string
	}{
		{libvirt.ErrNoDomain, "x", provider.ErrNotFound, "ErrNoDomain"},
		{libvirt.ErrNoStoragePool, "x", provider.ErrPermanent, "ErrNoStoragePool"},
		{libvirt.ErrXMLError, "x", provider.ErrPermanent, "ErrXMLError"},
		{libvirt.ErrAuthUnavailable, "x", provider.ErrPermanent, "ErrAuthUnavailable"},
		{libvirt.ErrNoMemory, "x", provider.ErrQuotaExceeded, "ErrNoMemory"},
		{libvirt.ErrInternalError, "qemu-img: No space left on device", provider.ErrQuotaExceeded, "ErrInternalError"},
		{libvirt.ErrSystemError, "write: Disk quota exceeded", provider.ErrQuotaExceeded, "ErrSystemError"},
		{libvirt.ErrInternalError, "pool 'default' has asynchronous jobs running.", provider.ErrTransient, "ErrInternalError"},
		{libvirt.ErrOperationFailed, "Unable to find any firmware to satisfy 'efi'", provider.ErrPermanent, "NoFirmware"},
		{libvirt.ErrSystemError, "Cannot get interface MTU on 'br9': No such device", provider.ErrPermanent, "NoBridge"},
		{libvirt.ErrSystemError, "Unable to get index for interface eno9: No such device", provider.ErrPermanent, "NoBridge"},
		{libvirt.ErrConfigUnsupported, "unsupported configuration: an interface of type 'bridge' is requesting a vlan tag, but that is not supported for this type of connection", provider.ErrPermanent, "NoVLAN"},
		{libvirt.ErrOperationInvalid, "Requested operation is not valid: network 'n' is not active", provider.ErrTransient, "NetworkInactive"},
		{libvirt.ErrNoNetwork, "Network not found: no network with matching name 'n'", provider.ErrPermanent, "ErrNoNetwork"},
		{libvirt.ErrInternalError, "internal error: Unable to add port vnet3 to OVS bridge br0", provider.ErrTransient, "ErrInternalError"},
		{libvirt.ErrOperationInvalid, "storage pool 'p' is not active", provider.ErrTransient, "ErrOperationInvalid"},
		{libvirt.ErrOperationTimeout, "x", provider.ErrTransient, "ErrOperationTimeout"},
	} {
		class, code := kvm.Classify(fakelibvirt.Errorf(c.code, "%s", c.msg))
		assert.Equal(t, c.class, class, c.msg)
		assert.Equal(t, c.name, code)
	}
	class, _ := kvm.Classify(libvirt.ErrUnsupported)
	assert.Equal(t, provider.ErrPermanent, class)
}
