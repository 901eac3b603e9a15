package cloudinit

import (
	"errors"
	"fmt"
)

// problems collects what is wrong with a configuration, so that one Validate
// tells all of it.
type problems struct {
	errs []error
}

// add notes that the value of field is wrong, and what to do about it. The
// value is printed: never pass a secret.
func (p *problems) add(field string, value any, remedy string) {
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	p.errs = append(p.errs, fmt.Errorf("%s: %v: %s", field, value, remedy))
}

// err joins the problems, nil when there are none.
func (p *problems) err() error {
	return errors.Join(p.errs...)
}
