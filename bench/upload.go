package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"golang.org/x/crypto/ssh"

	"github.com/egressfleet/egress/kvm"
)

// uploadRounds is how often each side sends an image.
const uploadRounds = 5

var uploadTargets = []target{
	{"kvm-upload-local", ">=", 1.3, measureUpload(1<<30, "", virshUpload)},
	{"kvm-upload-ssh", ">=", 1.3, measureUpload(512<<20, bySSH, sshCat)},
	{"kvm-upload-50ms", ">=", 3, measureDistantUpload},
	{"kvm-upload-mib", "<=", 64, measureUploadMemory},
	{"kvm-rpc-beside-upload", "<=", 5, measureBesideUpload},
}

// peerUpload sends a file in another way, and returns how long that took.
type peerUpload func(h hypervisor, address, file string) time.Duration

func measureUpload(size int, address string, peer peerUpload) func() (float64, string, error) {
	return func() (float64, string, error) {
		h, err := theHypervisor()
		if err != nil {
			return 0, "", err
		}
		return h.compareUploads(size, address, peer)
	}
}

func (h hypervisor) compareUploads(size int, address string, peer peerUpload) (float64, string, error) {
	file := diskFile(size)
	defer func() { _ = os.Remove(file) }()
	u, checked := h.newUploader(address, kvm.Image{URL: file}), h.newUploader(address, kvm.Image{URL: file, SHA256: fileDigest(file)})
	defer u.close()
	defer checked.close()
	var ours, theirs, withDigest []float64
	speed := func(d time.Duration) float64 { return float64(size) / d.Seconds() / 1e6 }
	for range uploadRounds {
		ours = append(ours, speed(u.upload()))
		theirs = append(theirs, speed(peer(h, address, file)))
		withDigest = append(withDigest, speed(checked.upload()))
	}
	return median(ours) / median(theirs), fmt.Sprintf("ours %s MB/s, theirs %s MB/s, ours with a digest to check %s MB/s",
		spread(ours), spread(theirs), spread(withDigest)), nil
}

// uploader sends a file by a provider.
type uploader struct {
	h   hypervisor
	p   *kvm.Provider
	rec recorder
}

func (h hypervisor) newUploader(address string, image kvm.Image) *uploader {
	u := &uploader{h: h}
	u.p = h.provider(address, u.rec.trace(), map[string]kvm.Image{"bench": image})
	return u
}

// upload sends the image once and returns how long its content was under way.
func (u *uploader) upload() time.Duration {
	u.rec.take()
	image, err := u.p.PullImage(context.Background(), kvm.PullRequest{})
	must(err)
	took := span(u.rec.take(), "virStorageVolUpload")
	virsh("vol-delete", "--pool", u.h.pool, image.Volume+".ok")
	virsh("vol-delete", "--pool", u.h.pool, image.Volume)
	return took
}

func fileDigest(path string) string {
	f, err := os.Open(path)
	must(err)
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	must(err)
	return hex.EncodeToString(sum.Sum(nil))
}

func (u *uploader) close() { must(u.p.Close()) }

const peerVolume = "egress-bench-peer"

// withVolume makes a volume for a peer, and removes it.
func (h hypervisor) withVolume(file string, f func()) time.Duration {
	info, err := os.Stat(file)
	must(err)
	virsh("vol-create-as", h.pool, peerVolume, strconv.FormatInt(info.Size(), 10)+"b", "--allocation", "0", "--format", "raw")
	defer virsh("vol-delete", "--pool", h.pool, peerVolume)
	start := time.Now()
	f()
	return time.Since(start)
}

func virshUpload(h hypervisor, _, file string) time.Duration {
	return h.withVolume(file, func() { virsh("vol-upload", "--pool", h.pool, peerVolume, file) })
}

// sshCat is the time of cat less that of a login.
func sshCat(h hypervisor, _, file string) time.Duration {
	host, port, _ := strings.Cut(h.address, ":")
	run := func(command, input string) time.Duration {
		// The cipher is the one that the library agrees on with sshd.
		cmd := exec.Command("ssh", "-q", "-p", port, "-i", h.key, "-o", "UserKnownHostsFile="+h.known, "-c", "aes128-gcm@openssh.com", h.user+"@"+host, command)
		in, err := os.Open(input)
		must(err)
		defer func() { _ = in.Close() }()
		cmd.Stdin = in
		start := time.Now()
		must(cmd.Run())
		return time.Since(start)
	}
	target := filepath.Join(h.dir, peerVolume)
	defer func() { _ = os.Remove(target) }()
	return run("cat > "+target, file) - run("true", os.DevNull)
}

const roundTrip = 50 * time.Millisecond

func measureDistantUpload() (float64, string, error) {
	h, err := theHypervisor()
	if err != nil {
		return 0, "", err
	}
	address, stop := h.distant(roundTrip / 2)
	defer stop()
	return h.compareUploads(256<<20, address, goLibvirtUpload)
}

// goLibvirtUpload is the upload of go-libvirt as it comes, over one SSH channel.
func goLibvirtUpload(h hypervisor, address, file string) time.Duration {
	key, err := os.ReadFile(h.key)
	must(err)
	signer, err := ssh.ParsePrivateKey(key)
	must(err)
	client, err := ssh.Dial("tcp", address, &ssh.ClientConfig{
		User: h.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), //nolint:gosec // the lab's own.
	})
	must(err)
	defer func() { _ = client.Close() }()
	conn, err := client.Dial("unix", "/var/run/libvirt/libvirt-sock")
	must(err)
	l := libvirt.NewWithDialer(dialers.NewAlreadyConnected(conn))
	must(l.ConnectToURI(libvirt.QEMUSystem))
	pool, err := l.StoragePoolLookupByName(h.pool)
	must(err)
	in, err := os.Open(file)
	must(err)
	defer func() { _ = in.Close() }()
	var took time.Duration
	h.withVolume(file, func() {
		vol, err := l.StorageVolLookupByName(pool, peerVolume)
		must(err)
		start := time.Now()
		must(l.StorageVolUpload(vol, in, 0, 0, 0))
		took = time.Since(start)
	})
	return took
}

// measureUploadMemory is the growth of the process's memory at its highest.
func measureUploadMemory() (float64, string, error) {
	h, err := theHypervisor()
	if err != nil {
		return 0, "", err
	}
	file := diskFile(1 << 30)
	defer func() { _ = os.Remove(file) }()
	address, stop := h.distant(roundTrip / 2)
	defer stop()
	var most float64
	var detail []string
	for _, way := range []struct{ name, address string }{{"local", ""}, {"ssh", bySSH}, {"ssh at 50 ms", address}} {
		u := h.newUploader(way.address, kvm.Image{URL: file, SHA256: fileDigest(file)})
		debug.FreeOSMemory()
		must(os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200)) // forgets the highest
		before := statusMiB("VmRSS:")
		u.upload()
		grown := statusMiB("VmHWM:") - before
		u.close()
		most = max(most, grown)
		detail = append(detail, fmt.Sprintf("%s %.1f MiB", way.name, grown))
	}
	return most, "1 GiB: " + strings.Join(detail, ", "), nil
}

// statusMiB reads a line of /proc/self/status.
func statusMiB(field string) float64 {
	text, err := os.ReadFile("/proc/self/status")
	must(err)
	_, rest, _ := strings.Cut(string(text), field)
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	must(err)
	return kib / 1024
}

// measureBesideUpload is the median time of a call while an image is sent over
// the same SSH connection, to that without.
func measureBesideUpload() (float64, string, error) {
	h, err := theHypervisor()
	if err != nil {
		return 0, "", err
	}
	file := diskFile(512 << 20)
	defer func() { _ = os.Remove(file) }()
	u := h.newUploader(bySSH, kvm.Image{URL: file})
	defer u.close()
	idle := u.calls(func() bool { return true }, 300)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := u.p.PullImage(context.Background(), kvm.PullRequest{})
		must(err)
	}()
	time.Sleep(200 * time.Millisecond)
	beside := u.calls(func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}, 1<<20)
	<-done
	images, err := u.p.ListImages(context.Background())
	must(err)
	for _, image := range images {
		if image.Key == "bench" {
			virsh("vol-delete", "--pool", h.pool, image.Volume+".ok")
			virsh("vol-delete", "--pool", h.pool, image.Volume)
		}
	}
	return median(beside) / median(idle), fmt.Sprintf("idle %s µs, beside %s µs, %d calls", spread(idle), spread(beside), len(beside)), nil
}

// calls makes calls while more says so, at most so many, and returns their times
// in microseconds.
func (u *uploader) calls(more func() bool, most int) (us []float64) {
	for i := 0; i < most && more(); i++ {
		_, err := u.p.ListByTag(context.Background(), "egress-bench")
		must(err)
	}
	for _, c := range u.rec.take() {
		if c.rpc == "virConnectListAllDomains" {
			us = append(us, float64(c.end.Sub(c.start).Microseconds()))
		}
	}
	return us
}
