package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/provider"
)

// managed is one step of a Proxy whose machine is the operator's.
func (p *pass) managed(ctx context.Context) (time.Duration, error) {
	prov, err := p.r.Providers.Get(p.px.Spec.Provider)
	if err != nil {
		return p.withoutProvider(ctx, err)
	}
	m := p.px.Status.Machine
	if m != nil && m.Ending != nil && !p.paused() {
		return p.replace(ctx, prov)
	}
	w, err := p.wanted(ctx)
	switch {
	case err != nil && (m == nil || !m.Accepted):
		return p.withoutCloudInit(err), nil
	case m == nil:
		return p.record(ctx, prov, w)
	case err != nil:
		p.keepWithout(err)
	case !sameVersion(m.SpecHash, w.hash):
		m.SpecHash = w.hash
	case m.SpecHash != w.hash && !p.paused():
		return p.end(v1alpha1.ReasonSpecChanged, "the spec or its Secret has changed"), nil
	}
	if !m.Accepted {
		return p.create(ctx, prov, w)
	}
	return p.observe(ctx, prov, w, err == nil)
}

// withoutProvider keeps everything as it is: the providers file may be wrong.
func (p *pass) withoutProvider(ctx context.Context, err error) (time.Duration, error) {
	err = p.unknownProvider(err)
	p.unreached(v1alpha1.ReasonProviderUnknown, err)
	if p.px.Status.Machine == nil {
		p.pending(v1alpha1.PhasePending, v1alpha1.ReasonProviderUnknown, err.Error())
		return p.r.Timing.ReadyInterval, nil
	}
	w, err := p.wanted(ctx)
	return p.keepServing(ctx, w, err == nil && p.px.Status.Machine.SpecHash == w.hash)
}

// keepServing has the proxy of the record probed and leased where the provider cannot
// tell more of it. After a restart nothing else brings it back.
func (p *pass) keepServing(ctx context.Context, w wanted, readable bool) (time.Duration, error) {
	st := &p.px.Status
	if !st.Machine.Served || st.Machine.Ending != nil {
		return p.r.Timing.ReadyInterval, nil
	}
	if readable && st.Address != "" && !p.r.Serving.Knows(p.id, p.generation()) {
		ep, err := p.recordedEndpoint(w)
		if err == nil {
			err = p.r.Serving.Put(ctx, ep)
		}
		if err != nil {
			return 0, fmt.Errorf("the proxy of the record: %w", err)
		}
	}
	p.judge()
	return p.r.Timing.ReadyInterval, nil
}

// withoutCloudInit waits for the Secret, whose event brings the Proxy back.
func (p *pass) withoutCloudInit(err error) time.Duration {
	p.px.Status.LastReason = err.Error()
	if p.pending(v1alpha1.PhasePending, v1alpha1.ReasonCloudInitError, err.Error()) {
		p.warn(v1alpha1.ReasonCloudInitError, "ReadSecret", err.Error())
	}
	return p.r.Timing.ReadyInterval
}

// keepWithout keeps a machine whose Secret is gone: it was made of what was there.
func (p *pass) keepWithout(err error) {
	if p.px.Status.LastReason != err.Error() {
		p.px.Status.LastReason = err.Error()
		p.warn(v1alpha1.ReasonCloudInitError, "ReadSecret", err.Error()+"; the machine stays")
	}
}

// record draws a UID and a place, and writes both down before anything is made.
func (p *pass) record(ctx context.Context, prov provider.Provider, w wanted) (time.Duration, error) {
	st := &p.px.Status
	inputs := w.inputs(p)
	switch {
	case st.FailedFor == inputs:
		return p.r.Timing.ReadyInterval, nil // until the spec, the Secret or the file changes
	case p.paused():
		p.pending(v1alpha1.PhasePending, v1alpha1.ReasonPaused, "nothing is made while it is paused")
		return p.r.Timing.MaxInterval, nil
	case p.waiting() > 0:
		p.pending(v1alpha1.PhasePending, st.BackOff.Reason, st.LastReason)
		return p.waiting(), nil
	}
	st.FailedFor = ""

	uid := fmt.Sprintf("%s-%d", p.px.UID, st.Incarnation+1)
	place, err := p.place(ctx, prov, uid)
	if err != nil {
		return p.refused(ctx, err, inputs)
	}
	st.Incarnation++
	st.ProviderID = ""
	st.Machine = &v1alpha1.Machine{
		UID: uid, Provider: p.px.Spec.Provider, Placement: place, Port: port(p.px.Spec.Port), SpecHash: w.hash, Since: p.stamp(),
	}
	p.pending(v1alpha1.PhaseProvisioning, v1alpha1.ReasonCreating, "the provider is being asked for a machine")
	return 0, nil
}

func port(p int32) int32 {
	if p == 0 {
		return defaultPort
	}
	return p
}

// place chooses a place for a new machine. Those that had no room lately are
// avoided, until there is no other one.
func (p *pass) place(ctx context.Context, prov provider.Provider, uid string) (v1alpha1.Placement, error) {
	req := provider.PlaceRequest{UID: uid, Placement: placement(p.wantedPlace())}
	if b := p.px.Status.BackOff; b != nil {
		for _, zone := range b.Avoid {
			avoid := req.Placement
			avoid.Zone = zone
			req.Avoid = append(req.Avoid, avoid)
		}
	}
	ctx, cancel := p.call(ctx)
	defer cancel()
	got, err := provider.Place(ctx, prov, req)
	return v1alpha1.Placement{Region: got.Region, Zone: got.Zone, MachineType: got.MachineType, Image: got.Image}, err
}

// create asks the provider for what the record says.
func (p *pass) create(ctx context.Context, prov provider.Provider, w wanted) (time.Duration, error) {
	st, m := &p.px.Status, p.px.Status.Machine
	switch {
	case p.paused():
		return p.r.Timing.MaxInterval, nil
	case p.waiting() > 0:
		return p.waiting(), nil
	}
	if ok, err := p.fresh(ctx); !ok {
		return staleWait, err
	}
	req, err := p.request(prov, w)
	if err != nil {
		return p.refused(ctx, &provider.Error{Class: provider.ErrPermanent, Code: provider.CodeInvalidRequest, Err: err}, w.inputs(p))
	}
	call, cancel := context.WithTimeout(ctx, p.r.Timing.CreateTimeout)
	defer cancel()
	id, err := prov.Create(call, req)
	if id != "" {
		st.ProviderID = id
	}
	if err != nil {
		return p.refused(ctx, err, w.inputs(p))
	}
	p.reached()
	m.Accepted, m.Since = true, p.stamp()
	p.pending(v1alpha1.PhaseProvisioning, v1alpha1.ReasonBooting, "the machine boots")
	p.tell(v1alpha1.ReasonCreated, "Create", "made "+id)
	return 0, nil
}

// inputs is a hash of all that decides whether a request is refused for good.
func (w wanted) inputs(p *pass) string {
	return digest(p.r.Key, []byte(w.hash+p.r.Providers.Hash()))[:32]
}

// refused follows a failure of Place or Create by its class. What Create left is
// undone where nothing more can come of it; else the next call resumes it.
func (p *pass) refused(ctx context.Context, err error, inputs string) (time.Duration, error) {
	st := &p.px.Status
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err() // the operator stops: the next start resumes
	case errors.Is(err, provider.ErrPermanent):
		p.reached()
		st.Phase, st.FailedFor, st.BackOff = v1alpha1.PhaseFailed, inputs, nil
		st.LastReason = clip(err.Error(), 1024)
		p.pending(v1alpha1.PhaseFailed, v1alpha1.ReasonRefused, err.Error())
		p.warn(v1alpha1.ReasonRefused, "Create", err.Error())
		p.abandonAttempt(err, v1alpha1.ReasonRefused)
	case errors.Is(err, provider.ErrQuotaExceeded):
		p.reached()
		p.noRoom(err)
	case provider.HasCode(err, codeFetchingImage):
		p.reached()
		p.pending(v1alpha1.PhaseProvisioning, codeFetchingImage, err.Error())
		return p.r.Timing.PollInterval, nil
	default:
		p.unreached(v1alpha1.ReasonProviderFails, err)
		p.backOff(v1alpha1.ReasonProviderFails, p.r.Timing.RetryInterval, err)
	}
	return 0, nil
}

// codeFetchingImage is kvm's word for an image that is on its way to the host.
const codeFetchingImage = "FetchingImage"

// noRoom waits out a quota or a lack of capacity, or goes elsewhere where the place
// is the provider's to choose.
func (p *pass) noRoom(err error) {
	st := &p.px.Status
	p.backOff(v1alpha1.ReasonQuotaExceeded, p.r.Timing.QuotaInterval, err)
	if p.pending(v1alpha1.PhasePending, v1alpha1.ReasonQuotaExceeded, err.Error()) {
		p.warn(v1alpha1.ReasonQuotaExceeded, "Create", err.Error())
	}
	m := st.Machine
	if m == nil { // no place has room
		st.BackOff.Avoid = nil
		return
	}
	if p.wantedPlace().Zone == "" && m.Placement.Zone != "" && len(st.BackOff.Avoid) < maxAvoid {
		st.BackOff.Avoid = append(st.BackOff.Avoid, m.Placement.Zone)
		st.BackOff.NextTry = p.stamp()
	}
	p.abandonAttempt(err, v1alpha1.ReasonQuotaExceeded)
}

const maxAvoid = 8

// abandonAttempt ends a record from which nothing can come. A name that somebody
// else holds is not deleted; otherwise whatever was made under the record is.
func (p *pass) abandonAttempt(err error, reason string) {
	m := p.px.Status.Machine
	switch {
	case m == nil:
	case provider.HasCode(err, provider.CodeCollision) || p.px.Status.ProviderID == "":
		p.forget()
	default:
		m.Ending = &v1alpha1.Ending{Reason: reason, Message: clip(err.Error(), 512), Since: p.stamp()}
	}
}

// observe looks at the machine, and serves it while it runs.
func (p *pass) observe(ctx context.Context, prov provider.Provider, w wanted, readable bool) (time.Duration, error) {
	call, cancel := p.call(ctx)
	in, err := prov.Get(call, p.px.Status.ProviderID)
	cancel()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	switch {
	case errors.Is(err, provider.ErrNotFound):
		p.reached()
		return p.vanished(ctx, prov, w, readable)
	case err != nil:
		// The proxy may well work: it stays as it is, and is probed.
		p.unreached(v1alpha1.ReasonProviderFails, err)
		return p.keepServing(ctx, w, readable)
	}
	p.reached()
	switch in.State {
	case provider.StateRunning:
		return p.serve(ctx, prov, in, w, readable)
	case provider.StateStopped, provider.StateFailed:
		return p.terminated(in), nil
	}
	return p.boot(ctx, prov, in, w, readable)
}

// terminated ends a machine that does not run any more. One that never served is
// followed by the next after a while: it may end in the same way.
func (p *pass) terminated(in provider.Instance) time.Duration {
	if p.paused() {
		p.pending(v1alpha1.PhasePending, v1alpha1.ReasonTerminated, reasonOf(in))
		return p.r.Timing.ReadyInterval
	}
	if !p.px.Status.Machine.Served {
		p.backOff(v1alpha1.ReasonTerminated, p.r.Timing.RetryInterval, errors.New(reasonOf(in)))
	}
	return p.end(v1alpha1.ReasonTerminated, reasonOf(in))
}

func reasonOf(in provider.Instance) string {
	if in.Reason == "" {
		return "the provider says that it is " + string(in.State)
	}
	return fmt.Sprintf("the provider says that it is %s: %s", in.State, in.Reason)
}

// vanished makes another machine for one that is not there, unless the provider knows
// a reason why there can be none.
func (p *pass) vanished(ctx context.Context, prov provider.Provider, w wanted, readable bool) (time.Duration, error) {
	st := &p.px.Status
	cause := p.whyAbsent(ctx, prov)
	if provider.HasCode(cause, provider.CodeInFlight) {
		return p.boot(ctx, prov, provider.Instance{State: provider.StateProvisioning, Reason: cause.Error()}, w, readable)
	}
	id, served := st.ProviderID, st.Machine.Served
	switch {
	case errors.Is(cause, provider.ErrQuotaExceeded):
		p.noRoom(cause)
		return p.dropEndpoint(ctx)
	case errors.Is(cause, provider.ErrPermanent) && !served && readable:
		return p.refused(ctx, cause, w.inputs(p))
	}
	note := id + " is gone, and nobody here deleted it"
	if cause != nil {
		note = id + " was accepted and then refused: " + cause.Error()
	}
	st.LastReason = clip(note, 1024)
	p.warn(v1alpha1.ReasonVanished, "Observe", note)
	p.pending(v1alpha1.PhasePending, v1alpha1.ReasonVanished, note)
	if !served {
		p.backOff(v1alpha1.ReasonVanished, p.r.Timing.RetryInterval, errors.New(note))
	}
	p.forget()
	return p.dropEndpoint(ctx)
}

// whyAbsent is what the provider knows of a machine that is not found. One that it was
// just asked for and cannot tell of may still come.
func (p *pass) whyAbsent(ctx context.Context, prov provider.Provider) error {
	m := p.px.Status.Machine
	call, cancel := p.call(ctx)
	defer cancel()
	cause, err := provider.Explain(call, prov, p.px.Status.ProviderID)
	if err != nil && !m.Served && p.now().Sub(m.Since.Time) < p.r.Timing.CreateTimeout {
		return &provider.Error{Class: provider.ErrTransient, Code: provider.CodeInFlight, Err: fmt.Errorf("nobody can tell what became of it: %w", err)}
	}
	return cause
}

// dropEndpoint takes the endpoint out of probing and leasing.
func (p *pass) dropEndpoint(ctx context.Context) (time.Duration, error) {
	return 0, p.r.Serving.Remove(ctx, p.id)
}

// boot waits for a machine that does not run, or of which the provider cannot tell
// it. Its time counts from when that began.
func (p *pass) boot(ctx context.Context, prov provider.Provider, in provider.Instance, w wanted, readable bool) (time.Duration, error) {
	m := p.px.Status.Machine
	if m.Served {
		// Whatever the provider says, it was fetched through, and may well be again.
		wait, err := p.keepServing(ctx, w, readable)
		if err != nil || p.verdict().Health == endpoint.Healthy {
			return wait, err
		}
		p.condition(v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonBooting, reasonOf(in))
	} else {
		p.pending(v1alpha1.PhaseProvisioning, v1alpha1.ReasonBooting, reasonOf(in))
	}
	since := m.Since.Time
	if was := p.since(v1alpha1.ConditionProvisioned, metav1.ConditionFalse); was.After(since) {
		since = was
	}
	if p.now().Sub(since) >= p.r.Timing.BootTimeout && !p.paused() {
		err := fmt.Errorf("after %v %s%s", p.r.Timing.BootTimeout, reasonOf(in), p.lastWords(ctx, prov))
		p.backOff(v1alpha1.ReasonBootTimeout, p.r.Timing.RetryInterval, err)
		return p.end(v1alpha1.ReasonBootTimeout, err.Error()), nil
	}
	return p.r.Timing.PollInterval, nil
}

// lastWords is the end of the machine's console, for a reason.
func (p *pass) lastWords(ctx context.Context, prov provider.Provider) string {
	ctx, cancel := p.call(ctx)
	defer cancel()
	line := provider.LastConsoleLine(ctx, prov, p.px.Status.ProviderID)
	if line == "" {
		return ""
	}
	return fmt.Sprintf("; its console ends with %q", line)
}

// serve has a machine that runs probed and leased.
func (p *pass) serve(ctx context.Context, prov provider.Provider, in provider.Instance, w wanted, readable bool) (time.Duration, error) {
	p.condition(v1alpha1.ConditionProvisioned, metav1.ConditionTrue, v1alpha1.ReasonRunning, "")
	if readable { // else the credentials are not known, and what is served stays
		if err := p.offer(ctx, prov, in, w); err != nil {
			return 0, err
		}
	}
	p.judge()
	return p.outlived(ctx)
}

// offer puts the machine's endpoint where it is probed and leased. Where the provider
// cannot tell it, what is served stays, and fails its probes if it is no more.
func (p *pass) offer(ctx context.Context, prov provider.Provider, in provider.Instance, w wanted) error {
	ep, err := p.endpoint(prov, in, w)
	if err != nil {
		p.px.Status.LastReason = clip(err.Error(), 1024)
		return nil
	}
	p.px.Status.Address = ep.URL.Host()
	if err := p.r.Serving.Put(ctx, ep); err != nil {
		return fmt.Errorf("the lease store: %w", err)
	}
	return nil
}

func (p *pass) verdict() endpoint.Verdict {
	return p.r.Serving.Verdict(p.id, p.generation())
}

// generation tells the endpoints of a Proxy apart: its machines, or the URLs of one that
// somebody else runs. An edit of its attributes makes no other one of it.
func (p *pass) generation() uint64 {
	if p.px.Spec.Mode == v1alpha1.External {
		return p.url
	}
	return uint64(p.px.Status.Incarnation)
}

// judge brings the latest verdict into the status. Unknown says nothing new: a
// restart of the operator makes nobody unready.
func (p *pass) judge() {
	st, v := &p.px.Status, p.verdict()
	switch v.Health {
	case endpoint.Healthy:
		st.Phase, st.BackOff = v1alpha1.PhaseReady, nil
		if st.Machine != nil {
			st.Machine.Served = true
		}
		if v.EgressIP.IsValid() {
			st.EgressIP = v.EgressIP.String()
		}
		if p.ready(metav1.ConditionTrue, v1alpha1.ReasonHealthy, "a page was fetched through it") {
			p.tell(v1alpha1.ReasonHealthy, "Probe", "a page was fetched through "+st.Address)
		}
	case endpoint.Unhealthy:
		st.Phase = v1alpha1.PhaseUnhealthy
		st.LastReason = clip(v.Reason, 1024)
		if p.ready(metav1.ConditionFalse, v1alpha1.ReasonUnhealthy, v.Reason) {
			p.warn(v1alpha1.ReasonUnhealthy, "Probe", v.Reason)
		}
	default:
		if ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); ready == nil || !p.judged(ready.Reason) {
			st.Phase = v1alpha1.PhaseRunning
			p.ready(metav1.ConditionUnknown, v1alpha1.ReasonUnprobed, "it was not probed yet, or not often enough")
		}
	}
}

// judged tells whether the present machine has had a verdict already.
func (p *pass) judged(reason string) bool {
	served := p.px.Status.Machine == nil || p.px.Status.Machine.Served
	return served && slices.Contains([]string{v1alpha1.ReasonHealthy, v1alpha1.ReasonUnhealthy}, reason)
}

// outlived ends a machine whose proxy does not answer for too long, and returns
// when to look again.
func (p *pass) outlived(ctx context.Context) (time.Duration, error) {
	m, t, v := p.px.Status.Machine, p.r.Timing, p.verdict()
	if v.Health == endpoint.Healthy || p.paused() {
		return t.ReadyInterval, nil
	}
	if !m.Served {
		if p.now().Sub(p.since(v1alpha1.ConditionProvisioned, metav1.ConditionTrue)) < t.BootTimeout {
			return t.PollInterval, nil
		}
		err := fmt.Errorf("after %v it runs, but its proxy was never fetched through: %s", t.BootTimeout, v.Reason)
		p.backOff(v1alpha1.ReasonBootTimeout, t.RetryInterval, err)
		return p.end(v1alpha1.ReasonBootTimeout, err.Error()), nil
	}
	since := p.since(v1alpha1.ConditionReady, metav1.ConditionFalse)
	if v.Health != endpoint.Unhealthy || since.IsZero() || p.now().Sub(since) < t.UnhealthyTimeout {
		return t.PollInterval, nil
	}
	return p.mayReplace(ctx, v.Reason)
}

// mayReplace ends an unhealthy machine where the budget allows it: a fifth of those
// of its provider at a time, and one while more than half of them are unhealthy. So
// a host that reboots heals, and a blip destroys nothing.
func (p *pass) mayReplace(ctx context.Context, reason string) (time.Duration, error) {
	p.r.granted.Lock()
	defer p.r.granted.Unlock()
	allowed, err := p.withinBudget(ctx)
	if err != nil || !allowed {
		return p.r.Timing.PollInterval, err
	}
	p.r.granted.add(p.px, p.now())
	return p.end(v1alpha1.ReasonUnhealthyTimeout, reason), nil
}

func (p *pass) withinBudget(ctx context.Context) (bool, error) {
	var list v1alpha1.ProxyList
	if err := p.r.Client.List(ctx, &list); err != nil {
		return false, err
	}
	total, unwell, replacing := 0, 0, 0
	for i := range list.Items {
		other := &list.Items[i]
		under := other.UID != p.px.UID && p.r.granted.under(other, p.now())
		if other.Spec.Provider != p.px.Spec.Provider || other.Status.Machine == nil && !under {
			continue
		}
		total++
		if other.Status.Phase != v1alpha1.PhaseReady {
			unwell++
		}
		if under || other.Status.Machine.Ending != nil || !other.Status.Machine.Served {
			replacing++
		}
	}
	budget := (total + 4) / 5
	if 2*unwell > total {
		budget = 1
	}
	return replacing < budget || total <= 1, nil
}

// end notes that the machine is to be replaced. It is written down before anything
// is deleted.
func (p *pass) end(reason, message string) time.Duration {
	m := p.px.Status.Machine
	m.Ending = &v1alpha1.Ending{Reason: reason, Message: clip(message, 512), Since: p.stamp()}
	p.px.Status.LastReason = clip(message, 1024)
	p.warnOrTell(reason, "Replace", fmt.Sprintf("%s is to be replaced: %s", p.px.Status.ProviderID, message))
	return 0
}

func (p *pass) warnOrTell(reason, action, note string) {
	if reason == v1alpha1.ReasonSpecChanged {
		p.tell(reason, action, note)
		return
	}
	p.warn(reason, action, note)
}

// replace retires the machine, and forgets it once it is gone.
func (p *pass) replace(ctx context.Context, prov provider.Provider) (time.Duration, error) {
	e := p.px.Status.Machine.Ending
	phase := v1alpha1.PhaseProvisioning
	if p.px.Status.FailedFor != "" {
		phase = v1alpha1.PhaseFailed
	}
	if e.Reason != v1alpha1.ReasonRefused && e.Reason != v1alpha1.ReasonQuotaExceeded {
		p.pending(phase, v1alpha1.ReasonReplacing, e.Reason+": "+e.Message)
	}
	gone, wait, err := p.retire(ctx, prov, e.Since.Time)
	if gone {
		p.forget()
	}
	return wait, err
}
