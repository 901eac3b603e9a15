package provider

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
