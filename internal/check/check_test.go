package check_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/egressfleet/egress/internal/check"
)

func TestNoProblemIsNil(t *testing.T) {
	var p check.Problems
	p.Require(true, "user", "give one")
	p.Within("nested", nil)
	assert.NoError(t, p.Err())
}

func TestEveryProblemIsReportedWithItsPath(t *testing.T) {
	var inner check.Problems
	inner.Add("address", "nowhere", "must be host:port")
	inner.Missing("user", "give the account to log in as")

	var p check.Problems
	p.Add("size", -1, "must not be negative")
	p.Within("hosts[0]", inner.Err())
	p.Within("hosts[1]", errors.New("cannot be read"))

	assert.EqualError(t, p.Err(), `size: -1: must not be negative
hosts[0].address: "nowhere": must be host:port
hosts[0].user: give the account to log in as
hosts[1]: cannot be read`)
}
