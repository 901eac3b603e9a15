package lease

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRegisterFindsWhatIsHeldAndNothingElse(t *testing.T) {
	r := register{prefix: "p-"}
	a, b := r.enter(&Lease{}), r.enter(&Lease{})
	assert.Same(t, a, r.find(a.number))
	assert.Same(t, b, r.find(r.number(r.id(b.number))))
	former := a.number
	r.strike(a)
	assert.Nil(t, r.find(former))
	again := r.enter(&Lease{})
	assert.Same(t, a, again, "the place is used again")
	assert.NotEqual(t, former, again.number, "under another number")
	assert.Nil(t, r.find(former))
	assert.Nil(t, r.find(7<<32|1), "no such place")

	for _, id := range []string{"", "p-", "q-1", "p-01", "p--1", "p-1 ", "p-zzzzzzzzzzzzzzzzzz", "P-1"} {
		assert.Zero(t, r.number(id), id)
	}
	assert.Nil(t, r.find(0))
}

func TestRegisterGivesUpAPlaceThatHasCountedToItsEnd(t *testing.T) {
	r := register{}
	h := r.enter(&Lease{})
	h.number += math.MaxUint32 - 1
	r.strike(h)
	next := r.enter(&Lease{})
	assert.NotSame(t, h, next)
	assert.EqualValues(t, 1<<32|1, next.number)
}
