package provider

import "context"

// Watcher is an optional interface of providers that hear of changes by
// themselves. What it tells is a hint, which may come late, twice or never:
// polling is the truth.
type Watcher interface {
	// Watch calls changed with the ID of each instance of the tag that may have
	// changed, and with an empty ID where any may have, as after a lost
	// connection. Calls come one after another and must not block. Watch
	// reconnects by itself and returns when ctx ends, with its error.
	Watch(ctx context.Context, tag string, changed func(id string)) error
}

// Watch asks the provider's [Watcher], or that of one that p decorates. Without
// one it calls nothing and waits for the end of ctx.
func Watch(ctx context.Context, p Provider, tag string, changed func(id string)) error {
	watcher, ok := As[Watcher](p)
	if !ok {
		<-ctx.Done()
		return ctx.Err()
	}
	return watcher.Watch(ctx, tag, changed)
}
