package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/kvm"
)

// hypervisor is the lab's, as its variables describe it.
type hypervisor struct {
	address, user, key, known, pool, bridge string
	// dir is the pool's folder.
	dir string
}

// theHypervisor tells where it is; what needs one is skipped without.
func theHypervisor() (hypervisor, error) {
	h := hypervisor{
		address: os.Getenv("KVM_TEST_HOST"), user: os.Getenv("KVM_TEST_USER"), key: os.Getenv("KVM_TEST_SSH_KEY"),
		known: os.Getenv("KVM_TEST_KNOWN_HOSTS"), pool: os.Getenv("KVM_TEST_POOL"), bridge: os.Getenv("KVM_TEST_BRIDGE"),
	}
	if h.address == "" || h.bridge == "" {
		return h, skipped("needs the lab: make bench as root brings it up")
	}
	if h.pool == "" {
		h.pool = "default"
	}
	text, err := output("virsh", "-c", "qemu:///system", "pool-dumpxml", h.pool)
	if err != nil {
		return h, skipped("needs the lab's hypervisor on this machine: " + err.Error())
	}
	_, text, _ = strings.Cut(text, "<path>")
	h.dir, _, _ = strings.Cut(text, "</path>")
	return h, nil
}

// ways to the hypervisor.
const (
	byLocal = "local"
	bySSH   = "ssh"
)

// provider is one on this hypervisor, whose calls the trace hears of.
func (h hypervisor) provider(address string, trace *kvm.Trace, images map[string]kvm.Image) *kvm.Provider {
	switch address {
	case bySSH:
		address = h.address
	case "":
		address = byLocal
	}
	cfg := kvm.Config{
		DomainType: os.Getenv("KVM_TEST_DOMAIN_TYPE"), CPUModel: os.Getenv("KVM_TEST_CPU_MODEL"),
		Hosts:        []kvm.Host{{Name: "lab", Address: address, Pool: h.pool, Bridge: h.bridge, KeepFreeMiB: -1}},
		MachineTypes: map[string]kvm.MachineType{"blank": {VCPUs: 1, MemoryMiB: 128}},
		Images:       images, Trace: trace,
	}
	if address != byLocal {
		cfg.Hosts[0].User, cfg.SSHKeyFile, cfg.InsecureIgnoreHostKey = h.user, h.key, true
	}
	p, err := kvm.New(cfg)
	must(err)
	return p
}

// output runs a program and returns what it prints.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func mustRun(name string, args ...string) {
	_, err := output(name, args...)
	must(err)
}

func virsh(args ...string) {
	mustRun("virsh", append([]string{"-q", "-c", "qemu:///system"}, args...)...)
}

// recorder hears of calls, for their times and their number.
type recorder struct {
	mu    sync.Mutex
	calls []call
}

type call struct {
	rpc        string
	start, end time.Time
}

func (r *recorder) trace() *kvm.Trace {
	return &kvm.Trace{Call: func(_ context.Context, info kvm.CallInfo) func(error) {
		start := time.Now()
		return func(error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.calls = append(r.calls, call{info.RPC, start, time.Now()})
		}
	}}
}

// take returns the calls so far and forgets them.
func (r *recorder) take() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// span is from the first start to the last end of the calls of that name.
func span(calls []call, rpc string) time.Duration {
	var first, last time.Time
	for _, c := range calls {
		if c.rpc != rpc {
			continue
		}
		if first.IsZero() || c.start.Before(first) {
			first = c.start
		}
		if c.end.After(last) {
			last = c.end
		}
	}
	return last.Sub(first)
}

// inSeries is the longest chain of calls of which each began after the one before
// had ended.
func inSeries(calls []call) (longest int) {
	chain := make([]int, len(calls)) // calls are in the order of their ends
	for i, c := range calls {
		chain[i] = 1
		for j := range i {
			if !calls[j].end.After(c.start) {
				chain[i] = max(chain[i], chain[j]+1)
			}
		}
		longest = max(longest, chain[i])
	}
	return longest
}

// diskFile makes a file that looks like a raw disk, of random content.
func diskFile(size int) string {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("egress-bench-%d-%d.img", os.Getpid(), size))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	mustRun("sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > %s && printf '\\125\\252' | dd of=%s bs=1 seek=510 conv=notrunc status=none", size, path, path))
	return path
}

// distant starts a TCP proxy to the hypervisor's sshd that delays each direction,
// in a process of its own.
func (h hypervisor) distant(delay time.Duration) (address string, stop func()) {
	cmd := exec.Command(os.Args[0], "-delay", delay.String(), "-to", h.address)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(err)
	in, err := cmd.StdinPipe() // whose end ends it
	must(err)
	must(cmd.Start())
	address, err = bufio.NewReader(out).ReadString('\n')
	must(err)
	return strings.TrimSpace(address), func() {
		must(in.Close())
		must(cmd.Wait())
	}
}

// serveDelay is that process.
func serveDelay(target string, delay time.Duration) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go carry(conn, target, delay)
	}
}

func carry(conn net.Conn, target string, delay time.Duration) {
	defer func() { _ = conn.Close() }()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	go delayed(conn, far, delay)
	delayed(far, conn, delay)
}

// delayed copies what comes after a delay, which costs no throughput.
func delayed(dst, src net.Conn, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	line := make(chan piece, 1<<14)
	go func() {
		defer close(line)
		for {
			buf := make([]byte, 32<<10)
			n, err := src.Read(buf)
			if n > 0 {
				line <- piece{time.Now().Add(delay), buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range line {
		time.Sleep(time.Until(p.due))
		if _, err := dst.Write(p.data); err != nil {
			return
		}
	}
}
