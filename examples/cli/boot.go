package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/provider"
)

// boot is one instance on its way to a healthy proxy.
type boot struct {
	*upRun
	uid, name string
	began     time.Time
	said      string // last

	id       string
	accepted bool
	nothing  bool // the provider says that it left nothing, or nothing of ours
	dropped  bool // it was accepted, and is gone
	where    provider.Placement
	avoid    []provider.Placement
	full     error // why the last place had no room
	in       provider.Instance
	endpoint endpoint.Endpoint
	probe    *probe
	err      error // why it came to nothing
	left     error // why it could not be removed
}

// run makes the proxy. Of one that came to nothing it shows how the guest fared.
func (b *boot) run(ctx context.Context) error {
	err := b.phases(ctx)
	if err != nil && b.accepted && ctx.Err() == nil && !b.dropped {
		b.tellConsole(ctx)
	}
	return err
}

// explained is why an instance that had been accepted is gone, where the provider
// knows.
func (b *boot) explained(ctx context.Context, err error) error {
	if b.dropped = b.accepted && errors.Is(err, provider.ErrNotFound); !b.dropped {
		return err
	}
	cause, askErr := provider.Explain(ctx, b.p, b.id)
	switch {
	case provider.HasCode(cause, provider.CodeInFlight):
		return cause
	case cause != nil:
		return fmt.Errorf("%s was refused after it had been accepted: %w", b.name, cause)
	case askErr != nil && ctx.Err() == nil:
		b.say("cannot tell why it is gone: %v", askErr)
	}
	return err
}

// phases are the host's part and the guest's, which have the timeout each. They
// begin anew elsewhere where the instance was accepted, and dropped for want of room.
func (b *boot) phases(ctx context.Context) error {
	for {
		if err := within(ctx, b.flags.timeout, b.place); err != nil {
			return err
		}
		err := b.explained(ctx, within(ctx, b.flags.timeout, b.guest))
		if !b.mayMove(err) {
			return err
		}
		if err := b.move(ctx, err); err != nil {
			return err
		}
	}
}

// guest waits for the address, and for the proxy.
func (b *boot) guest(ctx context.Context) error {
	if err := b.wait(ctx); err != nil || b.prober == nil {
		return err
	}
	return b.prove(ctx)
}

// place makes the instance where the provider says that there is room, and
// somewhere else where it turns out that there was none.
func (b *boot) place(ctx context.Context) error {
	for {
		where, err := b.choose(ctx)
		switch {
		case b.full != nil && (err != nil || slices.Contains(b.avoid, where)):
			return b.full // which says more than that no other place is left
		case err != nil:
			return err
		}
		b.where = where
		machine := b.machine
		machine.Placement = where
		req, err := request(machine, b.uid, b.app.flags.tag)
		if err != nil {
			return err
		}
		b.say("creating%s, tag %s, uid %s", inZone(where), req.Tag, b.uid)
		err = b.create(ctx, req)
		if !b.mayMove(err) {
			return err
		}
		if err := b.move(ctx, err); err != nil {
			return err
		}
	}
}

// mayMove tells whether it was for want of room, which another place may have.
func (b *boot) mayMove(err error) bool {
	_, chooses := provider.As[provider.Placer](b.p)
	return chooses && errors.Is(err, provider.ErrQuotaExceeded) && b.machine.Placement.Zone == ""
}

// move removes what there is, and avoids its place from then on. What comes next is
// an instance of its own, with another UID.
func (b *boot) move(ctx context.Context, full error) error {
	b.say("no room%s: %v", inZone(b.where), full)
	if err := b.remove(ctx); err != nil {
		return errors.Join(full, err)
	}
	b.full, b.avoid = full, append(b.avoid, b.where)
	b.uid, b.id, b.accepted, b.nothing, b.dropped = b.newUID(), "", false, false, false
	b.name = provider.Name(b.uid)
	return nil
}

func inZone(p provider.Placement) string {
	if p.Zone == "" {
		return ""
	}
	return " on " + p.Zone
}

// choose asks the provider for a place until it answers. One that does not choose
// leaves it as the flags have it.
func (b *boot) choose(ctx context.Context) (provider.Placement, error) {
	for {
		where, err := provider.Place(ctx, b.p, provider.PlaceRequest{UID: b.uid, Placement: b.machine.Placement, Avoid: b.avoid})
		if err == nil || errors.Is(err, provider.ErrPermanent) || errors.Is(err, provider.ErrQuotaExceeded) {
			return where, err
		}
		if ctx.Err() == nil {
			b.say("no place chosen yet: %v", err)
		}
		if !sleep(ctx, b.poll) {
			return where, fmt.Errorf("no place was found for %s within %v: %w", b.name, b.flags.timeout, err)
		}
	}
}

func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f(ctx)
}

// say tells what is new.
func (b *boot) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if text == b.said {
		return
	}
	b.said = text
	b.screen.say("%s  %s (%s)", b.name, text, b.elapsed(b.began))
}

// create asks until the host has taken the instance.
func (b *boot) create(ctx context.Context, req provider.CreateRequest) error {
	for first := true; ; first = false {
		id, err := b.p.Create(ctx, req)
		if id != "" {
			b.id = id
		}
		switch {
		case err == nil:
			b.accepted = true
			b.say("accepted: %s", id)
			return nil
		case errors.Is(err, provider.ErrPermanent), errors.Is(err, provider.ErrQuotaExceeded):
			// Such a Create undoes what it made, but not what one before it made.
			b.nothing = first || provider.HasCode(err, provider.CodeCollision)
			return err
		}
		if ctx.Err() == nil {
			b.say("not accepted yet: %v", err)
		}
		if !sleep(ctx, b.poll) {
			return fmt.Errorf("%s was not accepted within %v: %w", b.name, b.flags.timeout, err)
		}
	}
}

// waitRunning waits for an address, and as long as it is still being made for one
// that is not there.
func (b *boot) waitRunning(ctx context.Context) (provider.Instance, error) {
	for {
		in, err := provider.WaitRunning(ctx, b.p, b.id, provider.WaitOptions{Interval: b.poll, OnPoll: b.tell})
		if !errors.Is(err, provider.ErrNotFound) {
			return in, err
		}
		if cause, _ := provider.Explain(ctx, b.p, b.id); !provider.HasCode(cause, provider.CodeInFlight) || !sleep(ctx, b.poll) {
			return in, err
		}
	}
}

// wait polls until the instance has an address.
func (b *boot) wait(ctx context.Context) (err error) {
	b.in, err = b.waitRunning(ctx)
	if provider.HasCode(err, provider.CodeTerminal) {
		return advise(err, "see its console: with --keep the instance stays, and then: %s; on a libvirt host it is /var/log/libvirt/qemu/%s-console.log",
			b.command("console", b.name), b.name)
	}
	if err != nil && ctx.Err() != nil {
		return advise(err, "give it longer by --timeout, or find out what it waits for, by --keep and then: %s; "+
			"where a guest agent tells the address, it must get installed, and for that the guest needs a way out", b.command("console", b.name))
	}
	if err != nil {
		return err
	}
	b.endpoint, err = setup.EndpointOf(b.p, b.machine)(b.uid, b.in)
	return err
}

// tell says what a poll found.
func (b *boot) tell(in provider.Instance, err error) {
	switch {
	case err != nil:
		b.say("cannot tell its state: %v", err)
	case in.State == provider.StateRunning:
		b.say("running at %s", in.Address())
	case in.Reason != "":
		b.say("%s: %s", word(in.State), in.Reason)
	default:
		b.say("%s", word(in.State))
	}
}

// prove fetches through the proxy until it works. While nothing answers, it is
// being installed; an answer that stays the same is believed after a while.
func (b *boot) prove(ctx context.Context) error {
	b.say("probing %s through %s", b.flags.probe.url, b.endpoint.URL)
	var answer string
	var since time.Time
	for {
		r := b.prober.Probe(ctx, b.endpoint)
		if r.Err == nil {
			b.probe = &probe{URL: b.flags.probe.url, Status: r.Status, Milliseconds: r.Timings.Total.Milliseconds(), EgressIP: r.EgressIP}
			b.say("healthy: %d from %s in %v", r.Status, b.flags.probe.url, r.Timings.Total.Round(time.Millisecond))
			return nil
		}
		if ctx.Err() == nil {
			b.say("not healthy yet: %v", r.Err)
		}
		if !isAnswer(r.Err) || r.Err.Error() != answer {
			answer, since = r.Err.Error(), b.now()
		}
		if isAnswer(r.Err) && b.now().Sub(since) >= b.settle {
			return advise(permanent(fmt.Errorf("%s gives the same answer for %v: %w", b.name, b.settle, r.Err)), "%s", afterProbe(r.Err))
		}
		if err := b.alive(ctx); err != nil {
			return err
		}
		if !sleep(ctx, b.poll) {
			return b.unproven(ctx, r.Err)
		}
	}
}

// isAnswer tells whether a probe failed by what somebody answered.
func isAnswer(err error) bool {
	var failed *endpoint.Error
	return errors.As(err, &failed) && failed.Stage >= endpoint.StageConnect && !failed.Timeout() &&
		(failed.Stage != endpoint.StageConnect || failed.Status != 0)
}

// unproven is the error of a probe that never worked.
func (b *boot) unproven(ctx context.Context, last error) error {
	err := fmt.Errorf("%s was not healthy %v after the host took it: %w", b.name, b.flags.timeout, last)
	return advise(marked{err, ctx.Err()}, "%s", afterProbe(last))
}

// alive tells when the instance has ended meanwhile.
func (b *boot) alive(ctx context.Context) error {
	in, err := b.p.Get(ctx, b.id)
	switch {
	case ctx.Err() != nil, err != nil && !errors.Is(err, provider.ErrNotFound):
		return nil
	case err != nil:
		return err
	case in.State == provider.StateStopped, in.State == provider.StateFailed:
		return permanent(fmt.Errorf("%s is %s while its proxy was waited for: %s", b.id, word(in.State), in.Reason))
	}
	return nil
}

// doubt is the share of the patience for what was perhaps never made, on a host
// that did not take it.
const doubt = 8

// remove deletes the instance, and tells why it is left where it must be.
func (b *boot) remove(ctx context.Context) error {
	if b.id == "" || b.nothing {
		return nil
	}
	if !b.accepted {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.patience/doubt)
		defer cancel()
	}
	err := provider.WaitGone(ctx, b.p, b.id, provider.WaitOptions{Interval: b.poll, OnPoll: func(_ provider.Instance, err error) {
		if err != nil && ctx.Err() == nil && !errors.Is(err, provider.ErrPermanent) {
			b.say("not removed yet: %v", err)
		}
	}})
	if err == nil {
		b.say("removed")
	}
	return err
}
