package examples_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/internal/mdtest"
	"github.com/egressfleet/egress/provider/registry"
)

// labValues are what the lab prints, for a file that names it.
var labValues = strings.NewReplacer(
	"$KVM_TEST_SSH_KEY", "/lab/id", "$KVM_TEST_KNOWN_HOSTS", "/lab/known_hosts", "$KVM_TEST_HOST", "127.0.0.1:2222",
	"$KVM_TEST_USER", "root", "$KVM_TEST_BRIDGE", "br0", "$KVM_TEST_IMAGE_URL", "http://10.77.0.1/guest.qcow2",
	"$KVM_TEST_IMAGE_SHA256", strings.Repeat("0f", 32),
)

// hostsAlone makes a providers file of a host's part of it.
func hostsAlone(text string) string {
	const before = "providers:\n- name: a\n  type: kvm\n  kvm:\n    sshKeyFile: k\n    knownHostsFile: k\n" +
		"    machineTypes: {small: {vcpus: 1, memoryMiB: 1024}}\n    images: {a: {url: https://example.com/a.qcow2}}\n"
	return before + "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

// The providers files of the manuals, and parts of them, are taken as they stand.
func TestProvidersFilesOfTheManualsLoad(t *testing.T) {
	document := regexp.MustCompile(`(?s)<<END\n(.*?)\nEND\n`)
	files := map[string]string{}
	for _, b := range mdtest.Blocks(t, "..") {
		text := b.Text
		if m := document.FindStringSubmatch(text); m != nil {
			text = labValues.Replace(m[1])
		}
		switch {
		case strings.HasPrefix(text, "providers:"):
			files[b.File+": "+text] = text
		case strings.HasPrefix(text, "hosts:"):
			files[b.File+": "+text] = hostsAlone(text)
		}
	}
	for _, path := range mdtest.Files(t, "..") {
		for _, text := range mdtest.Commands(t, path) {
			if strings.HasPrefix(text, "providers: [{") {
				files[path+": "+text] = text
			}
		}
	}
	assert.GreaterOrEqual(t, len(files), 5)
	for name, text := range files {
		providers, err := registry.Parse([]byte(text), setup.Types(setup.Hooks{}))
		if assert.NoError(t, err, name) {
			assert.NoError(t, providers.Err(), name)
			require.NoError(t, providers.Close())
		}
	}
}

func TestYAMLOfTheManualsIsYAML(t *testing.T) {
	seen := 0
	for _, b := range mdtest.Blocks(t, "..") {
		if b.Kind != "yaml" && (b.Kind != "" || !regexp.MustCompile(`^[a-z]+:\n  `).MatchString(b.Text)) {
			continue
		}
		for part := range strings.SplitSeq(b.Text, "\n---\n") {
			seen++
			var v map[string]any
			assert.NoError(t, yaml.UnmarshalStrict([]byte(part), &v), "%s:%d", b.File, b.Line)
		}
	}
	assert.Greater(t, seen, 6)
}
