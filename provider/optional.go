package provider

import "context"

// As returns the optional interface T of a provider, and whether it has it: its
// own, or else that of the provider it decorates. A decorator has the method
//
//	Unwrap() Provider
//
// so that what it does not know of stays reachable. The outermost one that has
// T counts.
func As[T any](p Provider) (T, bool) {
	for p != nil {
		if found, ok := p.(T); ok {
			return found, true
		}
		decorator, ok := p.(interface{ Unwrap() Provider })
		if !ok {
			break
		}
		p = decorator.Unwrap()
	}
	var none T
	return none, false
}

// Placer is an optional interface of providers that can choose a place.
type Placer interface {
	// Place completes the request's placement: it fills in what is empty with the
	// place that suits the UID best at present, and leaves what is given as it is.
	// It avoids the placements in Avoid, and is ErrQuotaExceeded where none is
	// left. It reserves nothing.
	Place(ctx context.Context, req PlaceRequest) (Placement, error)
}

// PlaceRequest asks for a place.
type PlaceRequest struct {
	// UID is that of the instance that is to be made.
	UID string
	// Placement is what the caller has decided already.
	Placement Placement
	// Avoid are placements that had no room lately.
	Avoid []Placement
}

// Place asks the provider's [Placer], or one of those that p decorates. Without
// one, the placement is what the request gives, which then must be concrete, or
// the only one that the provider has.
func Place(ctx context.Context, p Provider, req PlaceRequest) (Placement, error) {
	placer, ok := As[Placer](p)
	if !ok {
		return req.Placement, nil
	}
	return placer.Place(ctx, req)
}
