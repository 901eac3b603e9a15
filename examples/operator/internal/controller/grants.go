package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
)

// grants are the replacements that were allowed lately. The cache does not show them
// at once, and without them all that are asked for together would be allowed.
type grants struct {
	sync.Mutex
	of map[types.UID]grant // by the Proxy
}

type grant struct {
	machine string
	at      time.Time
}

// grantMemory is longer than the cache is ever behind.
const grantMemory = 30 * time.Second

func (g *grants) add(px *v1alpha1.Proxy, now time.Time) {
	if g.of == nil {
		g.of = map[types.UID]grant{}
	}
	for uid, old := range g.of {
		if now.Sub(old.at) > grantMemory {
			delete(g.of, uid)
		}
	}
	g.of[px.UID] = grant{px.Status.Machine.UID, now}
}

// under tells whether the Proxy's machine is being replaced, whatever the cache shows.
func (g *grants) under(px *v1alpha1.Proxy, now time.Time) bool {
	allowed, ok := g.of[px.UID]
	m := px.Status.Machine
	return ok && now.Sub(allowed.at) <= grantMemory && (m == nil || m.UID == allowed.machine)
}
