package kvm

import (
	"sync"
	"time"
)

// goroutines counts goroutines of which some may start while somebody waits,
// which a sync.WaitGroup does not allow. The zero value is ready.
type goroutines struct {
	mu    sync.Mutex
	count int
	// idle is closed when count falls to zero; nil while nobody waits.
	idle chan struct{}
}

// Go runs f.
func (g *goroutines) Go(f func()) {
	g.add(1)
	go func() {
		defer g.add(-1)
		f()
	}()
}

func (g *goroutines) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count += n
	if g.count == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait returns at a moment when none runs, or after the timeout.
func (g *goroutines) Wait(timeout time.Duration) {
	g.mu.Lock()
	if g.count == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
