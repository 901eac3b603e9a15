package lease

import (
	"math"
	"strconv"
	"strings"
)

// held is what the store knows of one lease. The store uses it again for another
// one afterwards, and so nothing outside of it keeps one: the holder has a [Lease].
type held struct {
	number   uint64
	slot     *slot
	lease    *Lease // nil while it is nobody's
	holder   string
	granted  instant
	deadline instant
	used     uint64 // the slot's, before this lease
	next     *held  // of the same slot, or in the register's free list
}

// register finds leases by their numbers. The upper half of a number is a place in
// it, the lower half counts the place's leases, so that no two have one number.
type register struct {
	prefix string // of lease IDs: nobody guesses one
	places []*held
	free   *held
}

// enter returns an entry with a number of its own for the lease.
func (r *register) enter(l *Lease) *held {
	h := r.free
	if h == nil {
		h = &held{number: uint64(len(r.places)) << 32}
		r.places = append(r.places, h)
	} else {
		r.free, h.next = h.next, nil
	}
	h.number++
	h.lease, l.number = l, h.number
	return h
}

// strike ends the entry. A place that has counted as far as it can is given up.
func (r *register) strike(h *held) {
	h.slot, h.lease = nil, nil
	if uint32(h.number) < math.MaxUint32 {
		r.free, h.next = h, r.free
	}
}

// find returns the lease of that number while it is held, or nil.
func (r *register) find(number uint64) *held {
	place := number >> 32
	if place >= uint64(len(r.places)) {
		return nil
	}
	if h := r.places[place]; h.number == number && h.lease != nil {
		return h
	}
	return nil
}

// id is the ID of the lease of that number. It does not tell the token.
func (r *register) id(number uint64) string {
	var buffer [48]byte
	return string(strconv.AppendUint(append(buffer[:0], r.prefix...), number, 36))
}

// number is that of the lease of that ID, or zero, which is no lease's.
func (r *register) number(id string) uint64 {
	text, ok := strings.CutPrefix(id, r.prefix)
	number, err := strconv.ParseUint(text, 36, 64)
	if !ok || err != nil || r.id(number) != id {
		return 0
	}
	return number
}

// addHeld puts a lease to the slot's.
func (s *slot) addHeld(h *held) {
	h.slot, h.next = s, s.held
	s.held = h
	s.holders++
}

// dropHeld takes it away.
func (s *slot) dropHeld(h *held) {
	link := &s.held
	for *link != h {
		link = &(*link).next
	}
	*link, h.next = h.next, nil
	s.holders--
}
