package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func uids(r record) (all []string) {
	for _, m := range r.all {
		all = append(all, m.uid)
	}
	return all
}

// A list names what it finds in any order, and a caller may go over the record while it
// changes.
func TestRecordIsInOrderOfAge(t *testing.T) {
	now := time.Now()
	r := newRecord()
	members := map[string]*member{}
	for uid, age := range map[string]time.Duration{"c": 1, "a": 3, "b": 2, "e": 0, "d": 0} {
		members[uid] = &member{uid: uid, created: now.Add(-age * time.Hour)}
		r.add(members[uid])
	}
	assert.Equal(t, []string{"a", "b", "c", "d", "e"}, uids(r))

	seen := 0
	for _, m := range r.all {
		seen++
		r.remove(m)
		r.add(&member{uid: "new-" + m.uid, created: now})
	}
	assert.Equal(t, 5, seen)
	assert.Equal(t, []string{"new-a", "new-b", "new-c", "new-d", "new-e"}, uids(r))
	assert.Len(t, r.byUID, 5)
}

// A member whose time of creation orders it elsewhere than where it stands, as after a
// clock was set, is removed all the same.
func TestRecordForgetsWhatIsOutOfOrder(t *testing.T) {
	now := time.Now()
	r := newRecord()
	first, second := &member{uid: "first", created: now}, &member{uid: "second", created: now.Add(time.Hour)}
	r.add(first)
	r.add(second)
	first.created = now.Add(2 * time.Hour)
	r.remove(first)
	r.remove(first)
	assert.Equal(t, []string{"second"}, uids(r))
	assert.Len(t, r.byUID, 1)
}
