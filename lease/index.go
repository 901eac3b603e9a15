package lease

import (
	"encoding/binary"
	"slices"
)

// maxIndexed is how many attributes are indexed. A selector on more than those
// that came first looks at every free slot.
const maxIndexed = 16

// index groups the free slots by the attributes that selectors have asked for, so
// that a selector is matched once for each group and not for each slot. The
// store's lock guards it.
type index struct {
	keys   []string
	groups map[string]*group
	all    []*group
	name   []byte // scratch
}

// group holds the free slots whose indexed attributes are the same.
type group struct {
	name    string
	values  []attribute // of the indexed keys
	members int         // slots that have joined it, free or not
	free    freeList
	// split is set when finer groups have taken its place. Its free slots are theirs,
	// the others follow when they become free.
	split bool
}

// attribute is the value of one, where it is there.
type attribute struct {
	value string
	has   bool
}

// join puts a slot into its group.
func (x *index) join(s *slot) {
	s.group = x.groupOf("", x.keys, s.endpoint.Attributes)
	s.group.members++
}

// list puts a slot that has become free into the list of its group.
func (x *index) list(s *slot) {
	if s.group.split {
		x.join(s)
	}
	s.group.free.insert(s)
}

// leave takes it out. A group without members is forgotten.
func (x *index) leave(s *slot) {
	g := s.group
	if g.members--; g.members == 0 && !g.split {
		delete(x.groups, g.name)
		x.all = slices.DeleteFunc(x.all, func(other *group) bool { return other == g })
	}
}

// groupOf returns the group for those attributes: the values of the keys, which are
// the last of the indexed ones, behind a name that has those of the others.
func (x *index) groupOf(prefix string, keys []string, attributes map[string]string) *group {
	x.name = append(x.name[:0], prefix...)
	for _, key := range keys {
		if value, has := attributes[key]; has {
			x.name = append(binary.AppendUvarint(x.name, uint64(len(value))+1), value...)
		} else {
			x.name = append(x.name, 0)
		}
	}
	if g, ok := x.groups[string(x.name)]; ok {
		return g
	}
	g := &group{name: string(x.name)}
	for _, key := range x.keys {
		value, has := attributes[key]
		g.values = append(g.values, attribute{value, has})
	}
	if x.groups == nil {
		x.groups = map[string]*group{}
	}
	x.groups[g.name] = g
	x.all = append(x.all, g)
	return g
}

// learn makes the selector's attributes indexed, as far as there is room, and
// tells whether any was not: then the groups must be split.
func (x *index) learn(s Selector) (changed bool) {
	for i := range s {
		if len(x.keys) < maxIndexed && !slices.Contains(x.keys, s[i].Key) {
			x.keys = append(x.keys, s[i].Key)
			changed = true
		}
	}
	return changed
}

// covers tells whether matching a group is matching all of its slots.
func (x *index) covers(s Selector) bool {
	for i := range s {
		if !slices.Contains(x.keys, s[i].Key) {
			return false
		}
	}
	return true
}

// matches tells whether the group's slots satisfy the selector, which is covered.
func (x *index) matches(g *group, s Selector) bool {
	for i := range s {
		a := g.values[slices.Index(x.keys, s[i].Key)]
		if !s[i].holds(a.value, a.has) {
			return false
		}
	}
	return true
}

// first returns the least recently used free slot that satisfies the request.
func (x *index) first(req *Request, now instant) *slot {
	covered := x.covers(req.Selector)
	var best *slot
	for _, g := range x.all {
		if covered && !x.matches(g, req.Selector) {
			continue
		}
		if s := g.free.first(req, covered, now); s != nil && (best == nil || s.used < best.used) {
			best = s
		}
	}
	return best
}

// split makes groups finer after attributes have become indexed. A group's free slots
// stand in order, so each goes to the end of its new list. It is the only call whose
// cost grows with the store, so it looks at no slot that is not free.
func (x *index) split() {
	old := x.all
	x.groups, x.all = nil, nil
	for _, g := range old {
		g.split = true
		g.free.init()
		added := x.keys[len(g.values):]
		for s := g.free.root.next; s != &g.free.root; {
			next := s.next
			s.group = x.groupOf(g.name, added, s.endpoint.Attributes)
			s.group.members++
			s.group.free.push(s)
			s = next
		}
	}
}

// freeList holds free slots, least recently used first, as a ring around root.
type freeList struct{ root slot }

func (l *freeList) init() {
	if l.root.next == nil {
		l.root.next, l.root.prev = &l.root, &l.root
	}
}

// first returns the least recently used slot that satisfies the request. With
// matched, the selector is known to match.
func (l *freeList) first(req *Request, matched bool, now instant) *slot {
	l.init()
	for s := l.root.next; s != &l.root; s = s.next {
		if !s.face.blockedFor(req.Domain, now) && (matched || req.Selector.Matches(s.endpoint.Attributes)) {
			return s
		}
	}
	return nil
}

// insert puts the slot at its place by use. Most come back as the most recently
// used, so it looks from the end.
func (l *freeList) insert(s *slot) {
	l.init()
	after := l.root.prev
	for after != &l.root && after.used > s.used {
		after = after.prev
	}
	s.linkAfter(after)
}

// push puts the slot at the end.
func (l *freeList) push(s *slot) {
	l.init()
	s.linkAfter(l.root.prev)
}

func (s *slot) linkAfter(after *slot) {
	s.prev, s.next = after, after.next
	after.next.prev, after.next = s, s
}

// unlink takes the slot out of its list.
func (s *slot) unlink() {
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}
