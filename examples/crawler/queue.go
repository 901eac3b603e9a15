package main

import "sync"

// job is one URL to fetch.
type job struct {
	url     string
	domain  string
	invalid bool // it is no URL: to be reported, not fetched
}

// queue hands out jobs so that no domain has more than its share at a time, and
// the domains take turns. It is safe for concurrent use.
type queue struct {
	perDomain int

	mu      sync.Mutex
	changed *sync.Cond
	domains map[string]*domain
	turn    []*domain // those with waiting jobs, in order of their turn
	total   int
	closed  bool
}

// domain is the queue of one domain.
type domain struct {
	waiting []job
	active  int
}

// limit is how many jobs may wait: a file of any length is read as it is needed.
const limit = 10_000

func newQueue(perDomain int) *queue {
	q := &queue{perDomain: perDomain, domains: map[string]*domain{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// put adds a job, and waits while too many are waiting.
func (q *queue) put(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.total >= limit && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return
	}
	d := q.domains[j.domain]
	if d == nil {
		d = &domain{}
		q.domains[j.domain] = d
	}
	if len(d.waiting) == 0 {
		q.turn = append(q.turn, d)
	}
	d.waiting = append(d.waiting, j)
	q.total++
	q.changed.Broadcast()
}

// get waits for a job that may begin. ok is false when there will be none.
func (q *queue) get() (j job, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for i, d := range q.turn {
			if d.active < q.perDomain {
				return q.takeLocked(i, d), true
			}
		}
		if q.closed && q.total == 0 {
			return job{}, false
		}
		q.changed.Wait()
	}
}

func (q *queue) takeLocked(i int, d *domain) job {
	j := d.waiting[0]
	d.waiting = d.waiting[1:]
	d.active++
	q.total--
	q.turn = append(q.turn[:i], q.turn[i+1:]...)
	if len(d.waiting) > 0 {
		q.turn = append(q.turn, d)
	}
	q.changed.Broadcast()
	return j
}

// done says that a job has ended.
func (q *queue) done(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.domains[j.domain].active--
	q.changed.Broadcast()
}

// waiting is how many jobs have not begun.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}

// close says that no more jobs come.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// drop throws away what is waiting, and takes no more.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.total, q.turn = true, 0, nil
	for _, d := range q.domains {
		d.waiting = nil
	}
	q.changed.Broadcast()
}
