package provider

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WaitOptions tune [WaitRunning] and [WaitGone]. The zero value is useful.
type WaitOptions struct {
	// Interval is the time between two calls; 2 s if zero.
	Interval time.Duration
	// OnPoll, if set, is called after each call with what it said: an error
	// that does not end the wait, or the instance. It runs in the waiting
	// goroutine and shall return soon.
	OnPoll func(Instance, error)
}

func (o WaitOptions) interval() time.Duration {
	if o.Interval <= 0 {
		return 2 * time.Second
	}
	return o.Interval
}

// WaitRunning polls Get until the instance is Running, which means that it has
// an address, and returns it.
//
// Transient errors are waited out. It ends with ErrNotFound if the instance is
// gone, with ErrPermanent and [CodeTerminal] if it is Stopped or Failed, with
// any other permanent error, and when ctx ends: then the error matches ctx's
// and tells the last that was seen. Give ctx a deadline, such as [BootTimeout].
func WaitRunning(ctx context.Context, p Provider, id string, opts WaitOptions) (Instance, error) {
	last := Instance{ID: id, State: StateUnknown}
	var lastErr error
	err := poll(ctx, opts, func() (bool, error) {
		in, err := p.Get(ctx, id)
		if ctx.Err() != nil {
			return false, nil
		}
		lastErr = err
		if err == nil {
			last = in
		}
		opts.report(in, err)
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrPermanent):
			return true, err
		case err != nil:
			return false, nil
		case in.State == StateStopped, in.State == StateFailed:
			return true, terminalError(in)
		}
		return in.State == StateRunning, nil
	})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return last, fmt.Errorf("instance %s is not running yet (%s): %w", id, describe(last, lastErr), err)
	}
	return last, err
}

// WaitGone repeats Delete and polls Get until it says ErrNotFound. Errors that
// may heal are waited out; a permanent one, and the end of ctx, end the wait.
func WaitGone(ctx context.Context, p Provider, id string, opts WaitOptions) error {
	var last Instance
	var lastErr error
	err := poll(ctx, opts, func() (bool, error) {
		if err := p.Delete(ctx, id); err != nil {
			lastErr = err
			opts.report(last, err)
			return errors.Is(err, ErrPermanent), permanent(err)
		}
		in, err := p.Get(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return true, nil
		}
		if err == nil {
			last = in
		}
		lastErr = err
		opts.report(in, err)
		return errors.Is(err, ErrPermanent), permanent(err)
	})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("instance %s is not gone yet (%s): %w", id, describe(last, lastErr), err)
	}
	return err
}

func (o WaitOptions) report(in Instance, err error) {
	if o.OnPoll != nil {
		o.OnPoll(in, err)
	}
}

// poll calls step at once and then after each interval, until it is done or
// ctx ends.
func poll(ctx context.Context, opts WaitOptions, step func() (done bool, err error)) error {
	ticker := time.NewTicker(opts.interval())
	defer ticker.Stop()
	for {
		done, err := step()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// permanent keeps an error only where waiting cannot help.
func permanent(err error) error {
	if errors.Is(err, ErrPermanent) {
		return err
	}
	return nil
}

func terminalError(in Instance) error {
	return &Error{
		Class: ErrPermanent, ID: in.ID, Code: CodeTerminal,
		Err: fmt.Errorf("the instance is %s: delete it and create another", describe(in, nil)),
	}
}

func describe(in Instance, err error) string {
	if err != nil {
		return fmt.Sprintf("last error: %v", err)
	}
	if in.Reason == "" {
		return string(in.State)
	}
	return fmt.Sprintf("%s, %s", in.State, in.Reason)
}
