package fleet

import (
	"cmp"
	"slices"
)

// record is what a fleet knows of its instances. The fleet's lock guards it.
type record struct {
	byUID map[string]*member
	// all has them in their order of age, the oldest first. It is replaced when one comes
	// or goes, never changed: who goes over it may add and remove.
	all []*member
}

func newRecord() record { return record{byUID: map[string]*member{}} }

// byAge is the order of record.all.
func byAge(a, b *member) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
}

func (r *record) len() int { return len(r.all) }

func (r *record) add(m *member) {
	r.byUID[m.uid] = m
	at, _ := slices.BinarySearchFunc(r.all, m, byAge)
	r.all = slices.Insert(slices.Clip(r.all), at, m)
}

func (r *record) remove(m *member) {
	if r.byUID[m.uid] != m {
		return
	}
	delete(r.byUID, m.uid)
	at := slices.Index(r.all, m) // clocks may have been set: the order of two can change
	r.all = slices.Concat(r.all[:at], r.all[at+1:])
}
