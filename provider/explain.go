package provider

import "context"

// Explainer is an optional interface of providers whose backend accepts an
// instance first and refuses it later, so that Get says ErrNotFound for what
// Create accepted.
type Explainer interface {
	// Explain returns why the instance that was asked for under this ID came to
	// nothing, as an error with a class and a code. It is nil where the backend
	// knows of no failure, or does not know any more. One that is still being made,
	// or has come since Get said ErrNotFound, is ErrTransient with [CodeInFlight].
	Explain(ctx context.Context, id string) (cause, err error)
}

// Explain asks the provider's [Explainer], or that of one that p decorates.
// Without one the cause is nil.
func Explain(ctx context.Context, p Provider, id string) (cause, err error) {
	explainer, ok := As[Explainer](p)
	if !ok {
		return nil, nil
	}
	return explainer.Explain(ctx, id)
}
