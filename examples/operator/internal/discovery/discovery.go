// Package discovery serves the lease API, and has the Service find the pod that
// does.
//
// Leases in memory are the leader's: it alone serves, and its pod alone has the
// label that the Service selects. Leases on Redis are everyone's: each replica
// serves.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
)

// Server serves the API as long as the manager runs it.
type Server struct {
	// Listen is the address; CertFile and KeyFile, if set, have it speak TLS.
	Listen            string
	CertFile, KeyFile string
	Handler           http.Handler
	// Shared says that the leases are on a store which every replica uses.
	Shared bool
	// Pod is the one that this runs in; no pod is labelled if its name is empty.
	// PodLabels are those by which the other replicas are found.
	Pod       types.NamespacedName
	PodLabels map[string]string
	// Leads, if set, tells whether this process is sure to lead. While it is not, no
	// label is touched: they may be another leader's.
	Leads func() bool
	// Client is uncached.
	Client client.Client
	// Ready, if set, is told the address when it listens.
	Ready  func(net.Addr)
	Logger logr.Logger
}

// NeedLeaderElection has it run on the leader alone where the leases are its own.
func (s *Server) NeedLeaderElection() bool { return !s.Shared }

// farewell bounds what is done after the end.
const farewell = 5 * time.Second

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("the discovery API: %w", err)
	}
	server := &http.Server{Handler: s.Handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	done := make(chan error, 1)
	go func() {
		if s.CertFile != "" {
			done <- server.ServeTLS(listener, s.CertFile, s.KeyFile)
			return
		}
		done <- server.Serve(listener)
	}()
	if s.Ready != nil {
		s.Ready(listener.Addr())
	}
	labelling := make(chan struct{})
	claiming, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(labelling)
		s.claim(claiming)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
	}
	// Whoever leads next serves next: nobody shall find this one any more.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	stop()
	<-labelling
	if s.Pod.Name != "" {
		s.log(s.label(end, s.Pod, false), s.Pod)
	}
	if shut := server.Shutdown(end); shut != nil {
		_ = server.Close()
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// claim labels this pod, and takes the label from the others where only one may
// have it: a leader that died could not. It repeats that until it worked, and then
// every minute, since people edit labels.
func (s *Server) claim(ctx context.Context) {
	if s.Pod.Name == "" {
		return
	}
	for {
		wait := time.Minute
		if s.Leads != nil && !s.Leads() {
			wait = 2 * time.Second
		} else if err := s.claimOnce(ctx); err != nil {
			wait = 2 * time.Second
			if ctx.Err() == nil {
				s.log(err, s.Pod)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (s *Server) claimOnce(ctx context.Context) error {
	if !s.Shared {
		var pods corev1.PodList
		if err := s.Client.List(ctx, &pods, client.InNamespace(s.Pod.Namespace), client.MatchingLabels(s.PodLabels)); err != nil {
			return err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Name == s.Pod.Name || pod.Labels[v1alpha1.LabelServing] == "" {
				continue
			}
			if err := s.label(ctx, client.ObjectKeyFromObject(pod), false); err != nil {
				return err
			}
		}
	}
	return s.label(ctx, s.Pod, true)
}

// label sets or removes the label by a merge patch, which needs no reading.
func (s *Server) label(ctx context.Context, name types.NamespacedName, serving bool) error {
	value := "null"
	if serving {
		value = `"true"`
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = name.Namespace, name.Name
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelServing, value)
	return client.IgnoreNotFound(s.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (s *Server) log(err error, pod types.NamespacedName) {
	if err != nil {
		s.Logger.Error(err, "the Service may not find who serves", "pod", pod)
	}
}
