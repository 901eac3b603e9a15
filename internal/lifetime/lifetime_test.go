package lifetime_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/lifetime"
)

var errOver = errors.New("it is closed")

func TestCloseEndsCallsAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lifetime.New(errOver)
		var left time.Duration
		began := time.Now()
		go func() {
			ctx, leave, err := l.Enter(context.Background())
			if !assert.NoError(t, err) {
				return
			}
			defer leave()
			<-ctx.Done()
			time.Sleep(time.Second) // tidies up
			left = time.Since(began)
		}()
		time.Sleep(time.Minute)
		require.NoError(t, l.Context().Err())
		l.Close()
		assert.Equal(t, time.Minute+time.Second, left)
		require.Error(t, l.Context().Err())
		_, _, err := l.Enter(context.Background())
		require.ErrorIs(t, err, errOver)
		l.Close()
	})
}

func TestACallKeepsItsOwnContext(t *testing.T) {
	l := lifetime.New(errOver)
	defer l.Close()
	own, cancel := context.WithCancel(context.Background())
	ctx, leave, err := l.Enter(own)
	require.NoError(t, err)
	defer leave()
	cancel()
	<-ctx.Done()
	assert.NoError(t, l.Context().Err())
}
