package manager

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fakeLock is an election whose API server answers as a test says.
type fakeLock struct {
	resourcelock.Interface
	takes time.Duration
	err   error
}

func (f *fakeLock) Identity() string { return "me" }

func (f *fakeLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	time.Sleep(f.takes)
	return f.err
}

func (f *fakeLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return f.Update(ctx, r)
}

func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &fakeLock{}
		at := &term{Interface: lock}
		mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
		assert.False(t, at.leads(), "nobody has elected it")
		assert.NoError(t, at.Create(t.Context(), mine))
		assert.True(t, at.leads())
		time.Sleep(renewDeadline - time.Second)
		assert.True(t, at.leads())
		time.Sleep(time.Second)
		assert.False(t, at.leads(), "another one may lead soon")

		assert.NoError(t, at.Update(t.Context(), mine))
		assert.True(t, at.leads())
		lock.err = errors.New("conflict")
		time.Sleep(renewDeadline / 2)
		assert.Error(t, at.Update(t.Context(), mine))
		time.Sleep(renewDeadline / 2)
		assert.False(t, at.leads(), "a renewal that failed is none")

		lock.err, lock.takes = nil, 4*time.Second
		assert.NoError(t, at.Update(t.Context(), mine))
		time.Sleep(renewDeadline - lock.takes)
		assert.False(t, at.leads(), "it counts from when it was asked for")

		lock.takes = 0
		assert.NoError(t, at.Update(t.Context(), mine))
		assert.NoError(t, at.Update(t.Context(), resourcelock.LeaderElectionRecord{}))
		assert.False(t, at.leads(), "it was given up")
	})
}
