// Package config_test holds the manifests to a real API server.
package config_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/internal/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// dryRun has the API server look at the objects, unknown fields included, and make
// none.
func dryRun(t *testing.T, c client.Client, objects []*unstructured.Unstructured) {
	t.Helper()
	strict := client.WithFieldValidation(c, "Strict")
	for _, o := range objects {
		err := strict.Create(t.Context(), o.DeepCopy(), client.DryRunAll)
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		assert.NoError(t, err, "%s %s", o.GetKind(), o.GetName())
	}
}

func TestManifestsAreAccepted(t *testing.T) {
	c := apitest.Client(t, apitest.Config(t))
	apitest.Apply(t, c, apitest.Kustomize(t, "config", "default"), "Namespace")
	for _, dir := range []string{"crd", "rbac", "manager", "default", "samples"} {
		t.Run(dir, func(t *testing.T) {
			objects := apitest.Kustomize(t, "config", dir)
			require.NotEmpty(t, objects)
			dryRun(t, c, objects)
		})
	}
}

// A sample for each mode and provider.
func TestSamplesAreWhole(t *testing.T) {
	text, err := os.ReadFile("samples/kustomization.yaml")
	require.NoError(t, err)
	files, err := os.ReadDir("samples")
	require.NoError(t, err)
	for _, f := range files {
		if f.Name() != "kustomization.yaml" {
			assert.Contains(t, string(text), "- "+f.Name()+"\n")
		}
	}
}

// Every manifest of the guide is one that the API server takes.
func TestManifestsOfTheGuideAreAccepted(t *testing.T) {
	c := apitest.Client(t, apitest.Config(t))
	apitest.Apply(t, c, apitest.Kustomize(t, "config", "default"), "Namespace")
	guide, err := os.ReadFile(apitest.Path("..", "..", "docs", "operator.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	seen := 0
	for _, block := range blocks {
		if !strings.Contains(block[1], "apiVersion:") {
			continue // a part of a providers file
		}
		for _, o := range apitest.Parse(t, []byte(block[1])) {
			if o.GetNamespace() == "" {
				o.SetNamespace("egress-system")
			}
			dryRun(t, c, []*unstructured.Unstructured{o})
			seen++
		}
	}
	assert.Greater(t, seen, 3)
}
