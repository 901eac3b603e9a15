package kvm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// watchedFile is a file that is read on first use and again when it changed.
// What once worked stays in use while the file cannot be read, as in the middle
// of a rotation.
type watchedFile[T any] struct {
	path  string
	parse func(path string) (T, error)

	mu    sync.Mutex
	info  os.FileInfo // of the file that value was read from; nil before
	value T
}

// get returns the content. With a stale one it also returns why it is stale.
func (w *watchedFile[T]) get() (value T, stale, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := os.Stat(w.path)
	if err == nil && w.info != nil && sameFile(info, w.info) {
		return w.value, nil, nil
	}
	if err == nil {
		value, err = w.parse(w.path)
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

// unreadable is transient: a file that is mounted late heals by itself.
func unreadable(err error) error {
	return transient(codeKeyMissing, "cannot read ssh material: %w", err)
}

// sshKeys is the material of all hosts.
type sshKeys struct {
	signer watchedFile[ssh.Signer]
	known  *watchedFile[*knownhosts.HostKeyDB] // nil if host keys are ignored
}

func newSSHKeys(cfg Config) *sshKeys {
	k := &sshKeys{signer: watchedFile[ssh.Signer]{path: cfg.SSHKeyFile, parse: parseKeyFile}}
	if !cfg.InsecureIgnoreHostKey {
		k.known = &watchedFile[*knownhosts.HostKeyDB]{path: cfg.KnownHostsFile, parse: parseKnownHosts}
	}
	return k
}

// check reads all of it, for the warning at the start.
func (k *sshKeys) check() error {
	_, _, err := k.signer.get()
	if k.known != nil {
		_, _, knownErr := k.known.get()
		err = errors.Join(err, knownErr)
	}
	return err
}

func parseKeyFile(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the path is the configuration's.
	if err != nil {
		return nil, unreadable(err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err == nil {
		return signer, nil
	}
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, permanent(codeKeyInvalid, "%s needs a passphrase: give a key without one", path)
	}
	if _, _, _, _, pubErr := ssh.ParseAuthorizedKey(text); pubErr == nil {
		return nil, permanent(codeKeyInvalid, "%s is not a private key but a public one: give the file without .pub", path)
	}
	return nil, permanent(codeKeyInvalid, "%s is not a private key: %w", path, err)
}

func parseKnownHosts(path string) (*knownhosts.HostKeyDB, error) {
	db, err := knownhosts.NewDB(path)
	var pathErr *os.PathError
	switch {
	case errors.As(err, &pathErr):
		return nil, unreadable(err)
	case err != nil:
		return nil, permanent(codeKeyInvalid, "%s is not a known_hosts file: %w", path, err)
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
func (k *sshKeys) hostKeys(address string) (keys *hostKeys, stale, err error) {
	keys = &hostKeys{}
	if k.known == nil {
		keys.callback = ssh.InsecureIgnoreHostKey() //nolint:gosec // switched on by name.
		return keys, nil, nil
	}
	db, stale, err := k.known.get()
	if err != nil {
		return nil, nil, err
	}
	keys.algorithms = db.HostKeyAlgorithms(address)
	if len(keys.algorithms) == 0 {
		return nil, stale, unknownHost(address, k.known.path)
	}
	keys.callback = func(host string, remote net.Addr, key ssh.PublicKey) error {
		if err := db.HostKeyCallback()(host, remote, key); err != nil {
			keys.refusal = permanent(codeHostKeyChanged,
				"%s shows a host key (%s %s) that is not the one in %s, or a revoked one: somebody may be in between; "+
					"if the host was set up anew, replace its line: %w",
				address, key.Type(), ssh.FingerprintSHA256(key), k.known.path, err)
			return keys.refusal
		}
		return nil
	}
	return keys, stale, nil
}

func unknownHost(address, path string) error {
	host, port, _ := net.SplitHostPort(address)
	return permanent(codeHostKeyUnknown,
		"host %s port %s is not in %s: run `ssh-keyscan -p %s %s >> %s` and compare what it added with the host's own keys",
		host, port, path, port, host, path)
}

// noCommonKey is a host that has no key of the types that known_hosts names.
func noCommonKey(address, path string, algorithms []string) error {
	return permanent(codeHostKeyUnknown, "%w", fmt.Errorf(
		"%s offers no host key of the types that %s has for it (%v): add its other keys with ssh-keyscan", address, path, algorithms))
}
