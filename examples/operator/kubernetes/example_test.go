package kubernetes_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/provider"
)

func Example() {
	// A program takes client.New(config.GetConfigOrDie(), client.Options{}).
	c := fake.NewClientBuilder().WithStatusSubresource(&corev1.Pod{}).Build()
	p, err := kubernetes.New(kubernetes.Config{
		Client: c, Namespace: "proxies", Image: "registry.example.com/squid:6",
		Credentials: func(uid string) (string, string) { return "crawler", "secret of " + uid },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	id, err := p.Create(ctx, provider.CreateRequest{UID: "6f0c1d", Tag: "docs"})
	if err != nil {
		fmt.Println(err)
		return
	}
	in, err := p.Get(ctx, id)
	fmt.Println(in.State, err)

	// What the kubelet would do.
	pod := &corev1.Pod{}
	_ = c.Get(ctx, client.ObjectKey{Namespace: "proxies", Name: in.Name}, pod)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	_ = c.Status().Update(ctx, pod)

	in, err = p.Get(ctx, id)
	fmt.Println(in.State, in.Address(), err)
	proxy, err := p.Endpoint(in.UID, in)
	fmt.Println(proxy.URL, err)
	// Output:
	// Provisioning <nil>
	// Running 10.1.2.3 <nil>
	// http://***@10.1.2.3:3128 <nil>
}
