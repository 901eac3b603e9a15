package kvm_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/kvm"
)

func words(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// frame is one of libvirt's protocol.
func frame(procedure, kind, serial, status uint32, payload []byte) []byte {
	length := uint32(28 + len(payload)) //nolint:gosec // small.
	return append(words(length, 0x20008086, 1, procedure, kind, serial, status), payload...)
}

func answer(procedure, serial, status uint32, payload []byte) []byte {
	return frame(procedure, 1, serial, status, payload)
}

func TestFrames(t *testing.T) {
	calls := slices.Concat(frame(7, 0, 1, 0, []byte("abcd")), frame(273, 0, 2, 0, nil), frame(208, 0, 3, 0, nil), frame(23, 0, 4, 0, nil))
	text, list := answer(7, 1, 0, words(3, 0x61626300)), answer(273, 2, 0, words(0, 0))
	for _, c := range []struct {
		what    string
		frames  [][]byte
		through int // how many of them, after which the connection ends
		refused bool
	}{
		{"answers", [][]byte{list, text}, 2, false},
		{"a second answer", [][]byte{text, list, text}, 2, false},
		{"an answer to nobody's call", [][]byte{text, answer(273, 5, 0, words(0x7fffffff))}, 1, false},
		{"another program", [][]byte{append(words(28, 0x6b656570, 1, 1, 2, 0), words(0)...), list}, 0, false},
		{"an answer to another call", [][]byte{text, answer(23, 2, 0, make([]byte, 64))}, 1, true},
		{"an event in place of an answer", [][]byte{text, answer(319, 2, 0, words(1, 0x7fffffff))}, 1, true},
		{"a stream", [][]byte{answer(208, 3, 0, nil), frame(208, 3, 3, 0, nil), frame(208, 3, 3, 0, nil)}, 2, false},
		{"an error that ends a stream", [][]byte{answer(208, 3, 1, words(1, 2, 1, 0)), frame(208, 3, 3, 0, nil)}, 1, false},
		{"a list that is longer than the answer", [][]byte{text, answer(273, 2, 0, words(0x7fffffff, 0)), text}, 1, true},
		{"a text that is longer than the answer", [][]byte{list, answer(7, 1, 0, words(0x7fffffff, 0)), text}, 1, true},
		{"a text that is a word longer", [][]byte{list, answer(7, 1, 0, words(5, 0)), text}, 1, true},
		{"an answer without its list", [][]byte{answer(273, 2, 0, nil)}, 0, true},
		{"a length of 27", [][]byte{text, words(27), list}, 1, true},
		{"no length", [][]byte{text, words(0), list}, 1, true},
		{"a length of 4 GB", [][]byte{text, words(0xff000000), list}, 1, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			said, want := slices.Concat(c.frames...), append([]byte{}, slices.Concat(c.frames[:c.through]...)...)
			if c.what == "another program" {
				want = list
			}
			for _, piece := range []int{1, 5, 28, 1000} {
				through, err := kvm.ScanFrames(calls, slices.Collect(slices.Chunk(said, piece))...)
				assert.Equal(t, want, through)
				if c.refused {
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				} else {
					require.ErrorIs(t, err, io.EOF)
				}
			}
		})
	}
}

// xdrSample is a value of a type as it is sent. The length with that index says what it
// should not; -1 for none. It returns how many lengths there are.
func xdrSample(t reflect.Type, lie int) (b []byte, lengths int) {
	length := func(honest uint32) uint32 {
		lengths++
		if lengths-1 == lie {
			return 1 << 22
		}
		return honest
	}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.String:
			b = append(append(b, words(length(3))...), "abc\x00"...)
		case reflect.Slice:
			b = append(b, words(length(1))...)
			add(t.Elem())
		case reflect.Array:
			b = append(b, make([]byte, t.Len())...)
		case reflect.Int64, reflect.Uint64:
			b = append(b, words(0, 1)...)
		case reflect.Struct:
			for i := range t.NumField() {
				add(t.Field(i).Type)
			}
		case reflect.Interface: // of a parameter whose number says 7, a text
			copy(b[len(b)-4:], words(7))
			add(reflect.TypeFor[string]())
		default:
			b = append(b, words(1)...)
		}
	}
	add(t)
	return b, lengths
}

// saidBy is a daemon that makes a connection and answers one call more by a frame.
func saidBy(t *testing.T, conn net.Conn, say func(procedure, serial uint32) []byte) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		for {
			head := make([]byte, 28)
			if _, err := io.ReadFull(conn, head); err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head))-28)
			procedure, serial := binary.BigEndian.Uint32(head[12:]), binary.BigEndian.Uint32(head[20:])
			frame := say(procedure, serial)
			switch procedure {
			case 1:
				frame = answer(procedure, serial, 0, nil)
			case 66:
				frame = answer(procedure, serial, 0, words(0))
			}
			if _, err := conn.Write(frame); err != nil {
				return
			}
		}
	}()
}

// callOver makes a call of libvirt, without arguments, on a connection whose other end
// says that; it returns the bytes that were allocated, and why the connection ended.
func callOver(t *testing.T, method string, say func(procedure, serial uint32) []byte) (allocated uint64, err, lost error) {
	t.Helper()
	ours, theirs := net.Pipe()
	saidBy(t, theirs, say)
	ended := make(chan error, 1)
	l, err := kvm.Introduce(ours, func(err error) { ended <- err })
	require.NoError(t, err)
	f := reflect.ValueOf(l).MethodByName(method)
	var args []reflect.Value
	for i := range f.Type().NumIn() {
		args = append(args, reflect.Zero(f.Type().In(i)))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	results := f.Call(args)
	runtime.ReadMemStats(&after)
	err, _ = results[len(results)-1].Interface().(error)
	_ = ours.Close()
	select {
	case lost = <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the connection was not told")
	}
	return after.TotalAlloc - before.TotalAlloc, err, lost
}

// hasLengths tells of types of which a part says how long it is.
func hasLengths(t reflect.Type) bool {
	_, lengths := xdrSample(t, -1)
	return lengths > 0
}

// Whatever length a daemon states of a list or a text, in an answer to any of the calls
// that are made: no memory is taken for it, and the connection ends.
func TestAnswersThatTellOfMoreThanTheyHold(t *testing.T) {
	for _, method := range kvm.APIMethods() {
		f, ok := reflect.TypeFor[*libvirt.Libvirt]().MethodByName(method)
		require.True(t, ok, method)
		var results []reflect.StructField
		for i := range f.Type.NumOut() - 1 {
			results = append(results, reflect.StructField{Name: "F" + string(rune('A'+i)), Type: f.Type.Out(i)})
		}
		if len(results) == 0 || results[0].Type.Kind() == reflect.Chan {
			continue
		}
		whole := reflect.StructOf(results)
		if !hasLengths(whole) {
			continue
		}
		t.Run(method, func(t *testing.T) {
			honest, lengths := xdrSample(whole, -1)
			_, err, _ := callOver(t, method, func(procedure, serial uint32) []byte {
				if procedure != 1 && procedure != 66 {
					assert.Contains(t, kvm.ReplyLayouts, procedure)
				}
				return answer(procedure, serial, 0, honest)
			})
			require.NoError(t, err)
			for lie := range lengths {
				payload, _ := xdrSample(whole, lie)
				requireRefused(t, method, 0, payload)
			}
			payload, _ := xdrSample(kvm.ErrorLayout, 0)
			requireRefused(t, method, 1, payload)
		})
	}
	t.Run("AuthList", func(t *testing.T) {
		through, err := kvm.ScanFrames(frame(66, 0, 1, 0, nil), answer(66, 1, 0, words(1<<22, 0)))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Empty(t, through)
	})
}

func requireRefused(t *testing.T, method string, status uint32, payload []byte) {
	t.Helper()
	allocated, err, lost := callOver(t, method, func(procedure, serial uint32) []byte {
		return answer(procedure, serial, status, payload)
	})
	require.Error(t, err)
	require.ErrorIs(t, lost, io.ErrUnexpectedEOF)
	require.ErrorContains(t, lost, "which tell of more")
	require.Less(t, allocated, uint64(2<<20), "for %d bytes", len(payload))
}

// The same holds for events, whether anybody waits for them or not.
func TestEventsThatTellOfMoreThanTheyHold(t *testing.T) {
	event := func(procedure uint32, payload []byte) []byte { return frame(procedure, 2, 0, 0, payload) }
	honest, lengths := xdrSample(kvm.EventLayout, -1)
	through, err := kvm.ScanFrames(nil, event(318, honest))
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, event(318, honest), through)
	for lie := range lengths {
		payload, _ := xdrSample(kvm.EventLayout, lie)
		through, err := kvm.ScanFrames(nil, event(318, payload))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Empty(t, through)
	}
	for procedure := uint32(319); procedure < 460; procedure++ {
		through, _ := kvm.ScanFrames(nil, event(procedure, words(1, 1<<22)))
		assert.Empty(t, through)
	}

	ours, theirs := net.Pipe()
	saidBy(t, theirs, func(procedure, serial uint32) []byte {
		if procedure == 316 {
			return answer(procedure, serial, 0, words(1))
		}
		return slices.Concat(event(333, words(1, 1<<22)), event(318, honest), answer(procedure, serial, 0, words(0, 1)))
	})
	l, err := kvm.Introduce(ours, func(error) {})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := l.LifecycleEvents(ctx)
	require.NoError(t, err)
	_, err = l.ConnectGetLibVersion()
	require.NoError(t, err)
	assert.Equal(t, "abc", (<-events).Dom.Name)
	_ = ours.Close()
	cancel()
}
