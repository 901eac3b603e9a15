package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/provider"
)

// defaultClient is who has a token that stands alone.
const defaultClient = "crawler"

// parseTokens reads lines of a name and a token, or of a token alone. It never
// tells what it read: that may be a token.
func parseTokens(text string) (map[string]string, error) {
	clients := map[string]string{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) == 1 {
			words = []string{defaultClient, words[0]}
		}
		if len(words) > 2 {
			return nil, fmt.Errorf("line %d: has more than a name and a token", number)
		}
		if _, taken := clients[words[0]]; taken {
			return nil, fmt.Errorf("line %d: gives the client %s a second token: give each token a name of its own", number, clientOf(words[0]))
		}
		clients[words[0]] = words[1]
	}
	return clients, nil
}

// clientOf is a name that may be shown: a long one may be a token in the wrong place.
func clientOf(name string) string {
	if len(name) > 32 {
		return "of that line"
	}
	return name
}

// poolEntry is a pool of a file.
type poolEntry struct {
	Name       string            `json:"name"`
	Size       int               `json:"size"`
	MaxAge     provider.Duration `json:"maxAge"`
	Attributes map[string]string `json:"attributes"`
	provider.Placement
}

// readPools reads a file of pools. What is wrong with one the fleet tells.
func readPools(path string) ([]poolEntry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Pools []poolEntry `json:"pools"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, err
	}
	if len(file.Pools) == 0 {
		return nil, errors.New("pools: list at least one")
	}
	return file.Pools, nil
}

// certificate is a pair of files, which are read again when one has changed. So a
// certificate that is renewed needs no restart.
type certificate struct {
	cert, key string

	mu      sync.Mutex
	changed [2]time.Time
	pair    *tls.Certificate
}

// openCertificate reads the pair. Without files there is none.
func openCertificate(cert, key string) (*certificate, error) {
	if cert == "" {
		return nil, nil
	}
	c := &certificate{cert: cert, key: key}
	if _, err := c.get(nil); err != nil {
		return nil, usagef("--tls-cert, --tls-key: %w", err)
	}
	return c, nil
}

// get is a hook of tls.Config. While a changed pair cannot be read, the former goes
// on.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, err := changes(c.cert, c.key)
	if err == nil && (c.pair == nil || changed != c.changed) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.cert, c.key); err == nil {
			c.pair, c.changed = &pair, changed
		}
	}
	if c.pair != nil {
		return c.pair, nil
	}
	return nil, err
}

func changes(cert, key string) (at [2]time.Time, err error) {
	for i, path := range []string{cert, key} {
		info, err := os.Stat(path)
		if err != nil {
			return at, err
		}
		at[i] = info.ModTime()
	}
	return at, nil
}
