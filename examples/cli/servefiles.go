package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
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

// readPools reads a file of pools.
func readPools(path string) ([]poolEntry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parsePools(data)
}

// parsePools tells all that is wrong with pools, by their fields.
func parsePools(data []byte) ([]poolEntry, error) {
	if hasSecondDocument(string(data)) {
		return nil, errors.New("the file must be one YAML document: what stands behind --- would be left out")
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("the file is no YAML: %w", unquoted(err))
	}
	var file struct {
		Pools []json.RawMessage `json:"pools"`
	}
	if err := strictly(text, &file); err != nil {
		return nil, fmt.Errorf("the file must have a list, pools: %w", err)
	}
	if len(file.Pools) == 0 {
		return nil, errors.New("pools: list at least one")
	}
	var errs []error
	all := make([]poolEntry, len(file.Pools))
	for i, pool := range file.Pools {
		if err := strictly(pool, &all[i]); err != nil {
			errs = append(errs, fmt.Errorf("pools[%d]: %w", i, err))
		}
	}
	if errs == nil {
		errs = checkPools(all)
	}
	return all, errors.Join(errs...)
}

// strictly decodes JSON without unknown fields.
func strictly(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		kind, _, _ := strings.Cut(wrong.Value, " ")
		return fmt.Errorf("%s: has the wrong kind, %s", cmp.Or(wrong.Field, "it"), kind)
	}
	return unquoted(err)
}

// unquoted leaves out of an error what is long: it may be a secret, where the file is
// another one than was meant.
func unquoted(err error) error {
	if err == nil || !longWord.MatchString(err.Error()) {
		return err
	}
	return errors.New(longWord.ReplaceAllString(err.Error(), "…"))
}

var longWord = regexp.MustCompile("[^\\s\"'`]{33,}")

// hasSecondDocument tells of what would be ignored.
func hasSecondDocument(text string) bool {
	content := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n\t ")
		switch {
		case content && (line == "---" || strings.HasPrefix(line, "--- ")):
			return true
		case line != "" && line != "---" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "%"):
			content = true
		}
	}
	return false
}

func checkPools(all []poolEntry) (errs []error) {
	total, names := 0, map[string]bool{}
	for i, p := range all {
		bare := len(all) == 1 && p.Name == "" && len(p.Attributes) == 0 // one kind needs no name
		problems := p.problems(bare, names[p.Name])
		names[p.Name] = true
		if total += max(p.Size, 0); total < 0 {
			total, problems = 0, append(problems, errors.New("size: makes more than can be counted"))
		}
		for _, err := range problems {
			errs = append(errs, fmt.Errorf("pools[%d].%w", i, err))
		}
	}
	return errs
}

// problems are those of one pool, which may be bare of a name, or have one that is taken.
func (p poolEntry) problems(bare, taken bool) (errs []error) {
	if err := provider.ValidTag(p.Name); err != nil && !bare {
		errs = append(errs, fmt.Errorf("name: %w", unquoted(err)))
	}
	if taken && p.Name != "" {
		errs = append(errs, fmt.Errorf("name: %q: is used twice", p.Name))
	}
	if p.Size < 0 {
		errs = append(errs, fmt.Errorf("size: %d: must not be negative", p.Size))
	}
	if p.MaxAge < 0 {
		errs = append(errs, fmt.Errorf("maxAge: %v: must not be negative", p.MaxAge))
	}
	return errs
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
