package kvm

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/egressfleet/egress/provider"
)

// watchedFile is a file that is read on first use and again when it changed.
// What once worked stays in use while the file cannot be read, as in the middle
// of a rotation.
type watchedFile[T any] struct {
	path  string
	parse func(ctx context.Context, path string) (T, error)

	// turn holds one value while somebody reads; parse may wait for a person.
	turn  chan struct{}
	info  os.FileInfo // of the file that value was read from; nil before
	value T
}

func watch[T any](path string, parse func(context.Context, string) (T, error)) *watchedFile[T] {
	return &watchedFile[T]{path: path, parse: parse, turn: make(chan struct{}, 1)}
}

// get returns the content. With a stale one it also returns why it is stale.
func (w *watchedFile[T]) get(ctx context.Context) (value T, stale, err error) {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return value, nil, ctx.Err()
	}
	defer func() { <-w.turn }()
	info, err := os.Stat(w.path)
	if err == nil && w.info != nil && sameFile(info, w.info) {
		return w.value, nil, nil
	}
	if err == nil {
		value, err = w.parse(ctx, w.path)
	} else {
		err = unreadable(err)
	}
	if err != nil {
		if w.info != nil {
			return w.value, err, nil
		}
		return value, nil, err
	}
	w.info, w.value = info, value
	return value, nil, nil
}

func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// fileStamp is how some files were at a moment, nil for one that was not there.
type fileStamp []os.FileInfo

func stampOf(paths ...string) fileStamp {
	stamp := make(fileStamp, len(paths))
	for i, path := range paths {
		stamp[i], _ = os.Stat(path)
	}
	return stamp
}

// same tells that none of the files has changed.
func (s fileStamp) same(other fileStamp) bool {
	return slices.EqualFunc(s, other, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == b
		}
		return sameFile(a, b)
	})
}

// unreadable is transient: a file that is mounted late heals by itself.
func unreadable(err error) error {
	return provider.Transientf(codeKeyMissing, "cannot read ssh material: %w", err)
}

// sshKeys is the material of all hosts. Its maps do not change.
type sshKeys struct {
	agent      bool
	passphrase func(ctx context.Context, keyFile string) ([]byte, error)
	signers    map[string]*watchedFile[ssh.Signer] // by path
	known      map[string]*watchedFile[*knownhosts.HostKeyDB]
}

func newSSHKeys(cfg Config, hops []hop) *sshKeys {
	k := &sshKeys{
		agent: cfg.SSHAgent, passphrase: cfg.Passphrase,
		signers: map[string]*watchedFile[ssh.Signer]{}, known: map[string]*watchedFile[*knownhosts.HostKeyDB]{},
	}
	for _, h := range hops {
		if h.keyFile != "" && k.signers[h.keyFile] == nil {
			k.signers[h.keyFile] = watch(h.keyFile, k.parseKeyFile)
		}
		if h.knownHosts != "" && k.known[h.knownHosts] == nil {
			k.known[h.knownHosts] = watch(h.knownHosts, parseKnownHosts)
		}
	}
	return k
}

// check reads all of it, for the warning at the start. It asks for no
// passphrase.
func (k *sshKeys) check() error {
	var all []error
	for _, path := range slices.Sorted(maps.Keys(k.signers)) {
		_, err := readKeyFile(path)
		if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); !locked || k.passphrase == nil && !k.agent {
			all = append(all, keyError(path, err))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(k.known)) {
		_, err := parseKnownHosts(context.Background(), path)
		all = append(all, err)
	}
	if k.agent && os.Getenv(agentVariable) == "" {
		all = append(all, errNoAgent())
	}
	return errors.Join(all...)
}

// readKeyFile returns the errors of package ssh as they are.
func readKeyFile(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the path is the configuration's.
	if err != nil {
		return nil, unreadable(err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err == nil {
		return signer, nil
	}
	if _, _, _, _, pubErr := ssh.ParseAuthorizedKey(text); pubErr == nil {
		return nil, provider.Permanentf(codeKeyInvalid, "%s is not a private key but a public one: give the file without .pub", path)
	}
	return nil, err
}

// keyError gives an error of a key file its class.
func keyError(path string, err error) error {
	if _, ok := errors.AsType[*provider.Error](err); err == nil || ok {
		return err
	}
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return provider.Permanentf(codeKeyLocked, "%s needs a passphrase: give a key without one, or load it into an agent and set sshAgent, or have the program set Config.Passphrase", path)
	}
	return provider.Permanentf(codeKeyInvalid, "%s is not a private key: %w", path, err)
}

func (k *sshKeys) parseKeyFile(ctx context.Context, path string) (ssh.Signer, error) {
	signer, err := readKeyFile(path)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked && k.passphrase != nil {
		return k.unlock(ctx, path)
	}
	return signer, keyError(path, err)
}

// unlock asks for the passphrase of a key file. Neither it nor what the callback
// says of it gets any further.
func (k *sshKeys) unlock(ctx context.Context, path string) (ssh.Signer, error) {
	phrase, err := k.passphrase(ctx, path)
	defer clear(phrase)
	if err != nil {
		return nil, provider.Transientf(codeKeyLocked, "the passphrase of %s is not to be had: %w", path, err)
	}
	text, err := os.ReadFile(path) //nolint:gosec // the path is the configuration's.
	if err != nil {
		return nil, unreadable(err)
	}
	signer, err := ssh.ParsePrivateKeyWithPassphrase(text, phrase)
	switch {
	case errors.Is(err, x509.IncorrectPasswordError):
		return nil, provider.Permanentf(codeKeyLocked, "the passphrase that Config.Passphrase gave for %s is not the right one", path)
	case err != nil:
		return nil, provider.Permanentf(codeKeyInvalid, "%s is not a private key: %w", path, err)
	}
	return signer, nil
}

// agentVariable names the socket of the SSH agent.
const agentVariable = "SSH_AUTH_SOCK"

func errNoAgent() error {
	return provider.Transientf(codeAgentUnusable, "there is no ssh agent: %s is not set; start one (eval \"$(ssh-agent)\"; ssh-add), or give sshKeyFile", agentVariable)
}

// login is what may log in to a server.
type login struct {
	signers []ssh.Signer
	// offer says which keys these are, and missing why some are not there.
	offer   string
	missing error
	close   func()
}

// login takes the key of the hop's file, then those of the agent. One x
func (k *sshKeys) login(ctx context.Context, h hop) (l *login, stale, err error) {
	l = &login{close: func() {}}
	if h.keyFile != "" {
		signer, old, fileErr := k.signers[h.keyFile].get(ctx)
		if stale, err = old, fileErr; err == nil {
			l.signers, l.offer = []ssh.Signer{signer}, "the key "+h.keyFile
		}
	}
	if k.agent {
		agentErr := l.addAgent(ctx)
		if agentErr == nil && provider.HasCode(err, codeKeyLocked) {
			err = nil // as ssh does: the agent is there for such keys
		}
		err = joined(err, agentErr)
	}
	if len(l.signers) == 0 {
		l.close()
		return nil, nil, err
	}
	l.missing = err
	return l, stale, nil
}

// joined is errors.Join on one line.
func joined(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// addAgent asks the agent for its keys. Its connection serves until close.
func (l *login) addAgent(ctx context.Context) error {
	path := os.Getenv(agentVariable)
	if path == "" {
		return errNoAgent()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return provider.Transientf(codeAgentUnusable, "the ssh agent at %s does not answer: %w", path, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	l.close = func() { stop(); _ = conn.Close() }
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return provider.Transientf(codeAgentUnusable, "the ssh agent at %s does not tell its keys: %w", path, err)
	}
	if len(signers) == 0 {
		return provider.Transientf(codeAgentUnusable, "the ssh agent at %s has no key: add one with ssh-add", path)
	}
	if l.offer != "" {
		l.offer += " and "
	}
	l.offer += fmt.Sprintf("%d of the ssh agent", len(signers))
	l.signers = append(l.signers, signers...)
	return nil
}

func parseKnownHosts(_ context.Context, path string) (*knownhosts.HostKeyDB, error) {
	db, err := knownhosts.NewDB(path)
	var pathErr *os.PathError
	switch {
	case errors.As(err, &pathErr):
		return nil, unreadable(err)
	case err != nil:
		return nil, provider.Permanentf(codeKeyInvalid, "%s is not a known_hosts file, which has lines as ssh-keyscan prints them: %w", path, err)
	}
	return db, nil
}

// hostKeys says which host keys are accepted, and keeps its verdict, which
// x/crypto/ssh returns as text only.
type hostKeys struct {
	callback   ssh.HostKeyCallback
	algorithms []string
	refusal    error
}

// hostKeys refuses a host that known_hosts does not have: without a key for it
// there is no list of algorithms, which x/crypto/ssh would read as any.
func (k *sshKeys) hostKeys(ctx context.Context, h hop) (keys *hostKeys, stale, err error) {
	keys = &hostKeys{}
	address := h.address
	if h.knownHosts == "" {
		keys.callback = ssh.InsecureIgnoreHostKey() //nolint:gosec // switched on by name.
		return keys, nil, nil
	}
	db, stale, err := k.known[h.knownHosts].get(ctx)
	if err != nil {
		return nil, nil, err
	}
	keys.algorithms = db.HostKeyAlgorithms(address)
	if len(keys.algorithms) == 0 {
		return nil, stale, unknownHost(address, h.knownHosts)
	}
	keys.callback = func(host string, remote net.Addr, key ssh.PublicKey) error {
		if err := db.HostKeyCallback()(host, remote, key); err != nil {
			keys.refusal = provider.Permanentf(codeHostKeyChanged,
				"%s shows a host key (%s %s) that is not the one in %s, or a revoked one: somebody may be in between; "+
					"if the host was set up anew, replace its line: %w",
				address, key.Type(), ssh.FingerprintSHA256(key), h.knownHosts, err)
			return keys.refusal
		}
		return nil
	}
	return keys, stale, nil
}

func unknownHost(address, path string) error {
	host, port, _ := net.SplitHostPort(address)
	return provider.Permanentf(codeHostKeyUnknown,
		"host %s port %s is not in %s: run `ssh-keyscan -p %s %s >> %s` and compare what it added with the host's own keys",
		host, port, path, port, host, path)
}

// noCommonKey is a host that has no key of the types that known_hosts names.
func noCommonKey(address, path string, algorithms []string) error {
	return provider.Permanentf(codeHostKeyUnknown, "%w", fmt.Errorf(
		"%s offers no host key of the types that %s has for it (%v): add its other keys with ssh-keyscan", address, path, algorithms))
}
