// Package kubernetes is a [provider.Provider] whose instances are Squid pods in a
// cluster.
//
// It serves development and CI, where a cluster is at hand and machines are not:
// what runs is a real Squid, but all pods of a node leave by the same address. It
// is also a provider to learn from, written with nothing of this library but its
// public packages.
//
//	c, err := client.New(restConfig, client.Options{})
//	p, err := kubernetes.New(kubernetes.Config{
//		Client:    c,
//		Namespace: "proxies",
//		Image:     "registry.example.com/squid:6",
//	})
//
// The client must read from the API server. The one of a manager reads from a cache,
// in which a pod that was just made is not there yet.
//
// # Placement
//
// Image is a container image with squid in its PATH, with [Config].Image as the
// default. Zone becomes a node selector on topology.kubernetes.io/zone; empty means
// any node. Region and MachineType mean nothing here.
//
// The ID of an instance is namespaces/NAMESPACE/pods/NAME. There is one namespace:
// an ID in another one is ErrPermanent with [provider.CodeUnconfigured].
//
// # What an instance is
//
// A pod and a Secret, both named provider.Name(UID). The pod comes first and goes
// last. It carries tag and UID, and the metadata as JSON, in the labels and
// annotations [LabelManaged], [LabelTag], [AnnotationUID] and [AnnotationMetadata]:
// whoever may read pods may read these. The Secret carries the marks too and is
// owned by the pod, so that it goes where somebody else deletes the pod. The pod
// waits for it.
//
// The Secret has these keys:
//
//	squid.conf    the configuration that this package renders; absent with user-data
//	user-data     the request's user-data, byte for byte; absent without
//	egress.users  the password file, where there are credentials
//
// User-data, where it is given, takes the place of squid.conf: it is no cloud-config,
// because no cloud-init runs in a container. It must listen on [Config].Port, and
// finds the password file under /etc/squid/egress.users. Only hashes of passwords
// are there. The Secret is immutable, of 1 MiB at most.
//
// The configuration is that of [cloudinit.Squid], with [Config].Clients,
// ConnectPorts and AllowDestinations: closed inwards, and without a trace for
// targets. Without credentials only the private networks, which are those of pods,
// may use the proxy. Squid asks for as much memory as it may open files, and nodes
// allow a million: [Config].FileDescriptors bounds them.
//
// The container has no privileges, no service account token, a read-only root and
// the runtime's seccomp profile, as the restricted Pod Security Standard wants it.
// Squid runs in the foreground as [Config].UserID, which the image must know by a
// name, and logs to the standard error. Private registries are a matter of the
// default service account's imagePullSecrets.
//
// # States
//
// The kubelet does not start a container again. So a Squid that ended is to be seen:
// Failed with an error, as after OOMKilled, and Stopped without one. Pending is
// Provisioning, with the reason of the scheduler or of the kubelet, such as
// ImagePullBackOff; so is a pod that is not ready, because Squid does not listen.
// A pod that runs on a node which does not answer is what its conditions say, and
// Unknown where they say Unknown. A pod that is being deleted is Stopping.
//
// # Permissions
//
// A Role in the namespace, which is the file role.yaml beside this one:
//
//	rules:
//	  - apiGroups: [""]
//	    resources: [pods]
//	    verbs: [create, get, list, delete]
//	  - apiGroups: [""]
//	    resources: [secrets]
//	    verbs: [create, get, delete]
//
// Whoever may create pods in a namespace may read each Secret in it: give the proxies
// a namespace of their own. [Provider.Diagnose] asks for these verbs, and has the API
// server try a creation, without more rights.
//
// # Errors
//
// The Code of a [provider.Error] is the API's own reason, such as "Forbidden" or
// "Invalid"; "HTTP 502" where somebody else answered in the API's place. Or one of
// ours:
//
//	NoAnswer        the API server has not answered within Config.CallTimeout
//	ConnectionLost  the API server cannot be reached
//	Busy            the name is being deleted, or another caller is at work on it
//	BadRecord       the marks of a pod of ours cannot be read
//	BadClient       the client does not know the core types
//
// 403 is ErrPermanent, except that of a used-up ResourceQuota, which is
// ErrQuotaExceeded. Only a 404 of the API server itself that names the pod is
// ErrNotFound. A pod that no node has room for is no error but Provisioning.
//
// User-data and passwords never reach an error or a log: a message of the API that
// repeats a piece of them is withheld. The client library has a log of its own,
// which shows Secrets from klog's level 8 on.
//
// # Logging
//
// V(0) is what an operator must see, V(1) one line "kubernetes call" for each call of
// the API. A logger in the context is preferred to [Config].Logger.
package kubernetes
