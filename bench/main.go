// Command bench measures this library beside its peers, in one run, and ends with
// one line for each target:
//
//	ratio NAME VALUE target <= NUMBER ok|short
//
// Rounds of both sides alternate, and medians are compared. docs/benchmarks.md
// explains each name.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
)

// target is one promise: a ratio, or a plain figure, and its bound.
type target struct {
	name string
	op   string // "<=" or ">="
	want float64
	// measure returns the value and what it was made of.
	measure func() (value float64, detail string, err error)
}

// skipped is the error of a measurement whose peer is not installed.
type skipped string

func (s skipped) Error() string { return string(s) }

func main() {
	only := flag.String("run", "", "measure only the names that match this `regexp`")
	farm := flag.Bool("farm", false, "serve the proxies that the others probe; used by this program itself")
	profile := flag.String("cpuprofile", "", "write a CPU profile to a `file`")
	list := flag.Bool("list", false, "only name what would be measured")
	delay := flag.Duration("delay", 0, "delay what goes to another address; used by this program itself")
	toward := flag.String("to", "", "where that is")
	flag.Parse()
	switch {
	case *farm:
		serveFarm()
		return
	case *delay > 0:
		serveDelay(*toward, *delay)
		return
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		os.Exit(2)
	}
	all := slices.DeleteFunc(slices.Concat(leaseTargets, engineTargets, seedTargets, probeTargets, uploadTargets, machineTargets, redisTargets, growthTargets),
		func(t target) bool { return !pattern.MatchString(t.name) })
	if *list {
		for _, t := range all {
			fmt.Println(t.name)
		}
		return
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		must(err)
		must(pprof.StartCPUProfile(f))
		defer pprof.StopCPUProfile()
	}
	fmt.Printf("%s %s/%s, %d CPUs, %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor())
	fmt.Println(strings.Join(versions(), "\n"))
	var lines []string
	for _, t := range all {
		lines = append(lines, run(t))
	}
	fmt.Println()
	fmt.Println(strings.Join(lines, "\n"))
}

// tidy has the collector take what was measured before, so that nothing of it is counted
// with what comes.
func tidy() { debug.FreeOSMemory() }

// try measures. One that panics fails alone.
func (t target) try() (value float64, detail string, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%v", why)
		}
	}()
	return t.measure()
}

func run(t target) string {
	fmt.Printf("%s ...\n", t.name)
	tidy()
	value, detail, err := t.try()
	if err != nil {
		if _, ok := err.(skipped); ok {
			return fmt.Sprintf("skipped %s: %v", t.name, err)
		}
		return fmt.Sprintf("failed %s: %v", t.name, err)
	}
	fmt.Printf("  %s\n", detail)
	verdict := "short"
	if t.op == "<=" && value <= t.want || t.op == ">=" && value >= t.want {
		verdict = "ok"
	}
	return fmt.Sprintf("ratio %s %.3g target %s %g %s", t.name, value, t.op, t.want, verdict)
}

// processor names the CPU, where the system tells.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "processor not known"
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return "processor not known"
}

// versions are those of what is measured and of its peers, as far as they are there,
// and how busy the machine is.
func versions() (lines []string) {
	for _, command := range [][]string{
		{"git", "describe", "--always", "--dirty"}, {"uname", "-sr"}, {"uptime"}, {"libvirtd", "--version"},
		{"qemu-system-x86_64", "--version"}, {"virt-install", "--version"}, {"ssh", "-V"}, {"redis-server", "--version"},
		{"prometheus-blackbox-exporter", "--version"},
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); err == nil {
			lines = append(lines, command[0]+": "+line)
		}
	}
	info, ok := debug.ReadBuildInfo()
	for _, name := range []string{"github.com/digitalocean/go-libvirt", "github.com/jackc/puddle/v2", "github.com/kdomanski/iso9660", "github.com/redis/go-redis/v9"} {
		for _, m := range info.Deps {
			if ok && m.Path == name {
				lines = append(lines, name+": "+m.Version)
			}
		}
	}
	return lines
}
