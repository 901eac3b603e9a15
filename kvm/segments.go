package kvm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// An SSH channel has a window of 2 MiB, so that one of them carries at most 2 MiB
// in a round trip, however fast the line. A distant host therefore gets an image
// in segments, over several channels at the same time.
const (
	channelWindow = 2 << 20
	// segmentSize is a compromise: each costs two round trips for its call and its
	// end, and each channel holds one in memory.
	segmentSize = 8 << 20
	maxLanes    = 6
	// laneRoundTrip is the round trip from which on one channel does not fill a
	// line of some hundred megabytes a second.
	laneRoundTrip = 6 * time.Millisecond
	segmentPause  = 3 * time.Millisecond
)

// lanesFor is over how many channels to send.
func lanesFor(roundTrip time.Duration) int {
	return min(1+int(roundTrip/laneRoundTrip), maxLanes)
}

// segmentsPay tells whether segments over so many lanes are faster than one
// channel, where libvirtd reads its whole pool anew after each of them, which
// takes that long.
func segmentsPay(roundTrip, refresh time.Duration, lanes int) bool {
	const windows = segmentSize / channelWindow
	one := windows * roundTrip
	many := (windows + 2) * roundTrip / time.Duration(lanes)
	return one > many+refresh
}

// uploadImage sends the source into the volume, in the way that suits the
// distance, and returns how many bytes it sent. Length is -1 where it is not
// known. refresh has libvirtd read the pool anew. sent, if not nil, is called as
// packets were sent, by one goroutine at a time. An image goes its own way to the
// host, so that what it fills is nobody else's.
func (h *hostConn) uploadImage(ctx context.Context, vol libvirt.StorageVol, source io.Reader, length int64, refresh func() error, sent func()) (int64, error) {
	way := h.transport.apart()
	defer h.running.Go(way.close)
	s, err := h.openOwn(ctx, purposeUpload, way)
	if err != nil {
		return 0, err
	}
	defer s.drop("", nil)
	lanes, err := h.lanesTo(ctx, s, length, refresh)
	switch {
	case err != nil:
		return 0, err
	case lanes == 1:
		return h.uploadStream(ctx, s, vol, source, uint64(max(length, 0)), sent) //nolint:gosec // not negative.
	}
	return newSegmented(h, way, vol, lanes, sent).run(ctx, s, source)
}

// lanesTo measures the host and chooses how to send.
func (h *hostConn) lanesTo(ctx context.Context, s *session, length int64, refresh func() error) (int, error) {
	distance, err := h.distance(ctx, s)
	if err != nil {
		return 0, err
	}
	lanes := h.lanes(distance)
	if lanes == 1 || (length >= 0 && length <= segmentSize) {
		return 1, nil
	}
	start := time.Now()
	if err := refresh(); err != nil {
		return 0, err
	}
	if distance > 0 && !segmentsPay(distance, time.Since(start)-distance, lanes) {
		return 1, nil
	}
	return lanes, nil
}

// segment is a part of a volume.
type segment struct {
	offset uint64
	data   []byte
}

// segmented is an upload over several connections. Its source is read in one
// goroutine, in order.
type segmented struct {
	h     *hostConn
	way   transport
	vol   libvirt.StorageVol
	lanes int
	empty chan []byte
	full  chan segment

	mu   sync.Mutex // held while sent is called
	sent func()
}

func newSegmented(h *hostConn, way transport, vol libvirt.StorageVol, lanes int, sent func()) *segmented {
	u := &segmented{h: h, way: way, vol: vol, lanes: lanes, sent: sent, empty: make(chan []byte, lanes), full: make(chan segment)}
	for range lanes {
		u.empty <- nil // made when it is wanted
	}
	return u
}

// run sends all of the source. A failure of one lane ends the others; the
// source may still be read for a moment.
func (u *segmented) run(ctx context.Context, first *session, source io.Reader) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := make(chan int64, 1)
	u.h.running.Go(func() {
		n, err := u.cut(ctx, source)
		if err != nil {
			cancel(err)
		}
		total <- n
		close(u.full)
	})
	var lanes sync.WaitGroup
	for i := range u.lanes {
		lanes.Go(func() {
			s := first
			if i > 0 {
				s = nil
			}
			if err := u.lane(ctx, s); err != nil {
				cancel(err)
			}
		})
	}
	lanes.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return <-total, nil
}

// cut reads the source into segments, and returns its length.
func (u *segmented) cut(ctx context.Context, source io.Reader) (total int64, err error) {
	for err == nil {
		var buf []byte
		select {
		case buf = <-u.empty:
		case <-ctx.Done():
			return total, ctx.Err()
		}
		if buf == nil {
			buf = make([]byte, segmentSize)
		}
		var n int
		n, err = fill(source, buf[:segmentSize])
		if n == 0 {
			break
		}
		select {
		case u.full <- segment{uint64(total), buf[:n]}: //nolint:gosec // a count.
		case <-ctx.Done():
			return total, ctx.Err()
		}
		total += int64(n)
	}
	if errors.Is(err, io.EOF) {
		return total, nil
	}
	return total, err
}

// lane sends segments over one connection, its own where none is given.
func (u *segmented) lane(ctx context.Context, s *session) error {
	if s == nil {
		var err error
		if s, err = u.h.openOwn(ctx, purposeUpload, u.way); err != nil {
			return err
		}
		defer s.drop("", nil)
	}
	for {
		select {
		case part, ok := <-u.full:
			if !ok {
				return nil
			}
			if err := u.send(ctx, s, part); err != nil {
				return err
			}
			u.empty <- part.data
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send uploads one segment. Calls that start in the same instant are refused as
// busy, and need not wait long.
func (u *segmented) send(ctx context.Context, s *session, part segment) error {
	return whileBusyFor(ctx, segmentPause, func() error {
		r := &chunked{bytes.NewReader(part.data)}
		return u.h.send(ctx, s, u.vol, r, part.offset, uint64(len(part.data)), u.tell)
	})
}

func (u *segmented) tell() {
	if u.sent == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent()
}

// chunked reads no more than a packet at a time.
type chunked struct{ r *bytes.Reader }

func (c *chunked) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), packetSize)]) }
