package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

// app is one run of the program.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	screen *screen
	// signals are Ctrl-C and its like.
	signals <-chan os.Signal

	// The rest but the flags is what tests replace.

	// types are the provider types that a file may name.
	types func(setup.Hooks) registry.Types
	// inProcess tells whether the instances of a provider end with the program.
	inProcess func(provider.Provider) bool
	newUID    func() string
	now       func() time.Time
	// poll is the time between two looks at an instance, and between attempts.
	poll time.Duration
	// settle is how long a proxy must give one same refusal to be believed.
	settle time.Duration
	// patience bounds the cleaning up after an interrupt.
	patience time.Duration

	// colour is whether standard output takes colours.
	colour bool
	// kvms are what the providers file says of its kvm providers, by their names.
	kvms map[string]kvm.Config

	flags globalFlags
	// ctx lives until the first interrupt, insistence until the second.
	ctx, insistence context.Context
	// started is set when the flags were in order, and held when an interrupt is
	// the usual end of the command.
	started, held bool
}

// globalFlags are those of every command.
type globalFlags struct {
	providers string
	provider  string
	tag       string
	output    string
	verbosity int
}

const (
	programName      = "egressctl"
	defaultProviders = "providers.yaml"
	defaultTag       = "egressctl"
)

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{
		stdin: stdin, stdout: stdout, screen: newScreen(stderr),
		types: setup.Types,
		inProcess: func(p provider.Provider) bool {
			_, is := p.(*local.Provider)
			return is
		},
		newUID: func() string { return strings.ToLower(rand.Text()) },
		now:    time.Now,
		colour: wantsColour(stdout), kvms: map[string]kvm.Config{},
		poll: 2 * time.Second, settle: time.Minute, patience: 2 * time.Minute,
	}
}

// run runs one command and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	ctx, stop := a.listen(ctx)
	defer stop()
	root := a.rootCommand()
	root.SetArgs(append([]string{}, args...))
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.screen)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.started {
		err = asUsage(err)
	}
	if a.interrupted() && !a.held {
		err = errors.Join(errInterrupted, err)
	}
	a.report(err)
	return exitCode(err)
}

const rootHelp = `egressctl makes forward-proxy machines on the hosts of a providers file.

Each instance carries a tag, and nothing that carries another tag is listed or
removed. Messages go to standard error, results to standard output.

Exit codes:
  0    done
  1    another failure: a check of doctor, a proxy that is not healthy
  2    wrong usage: a flag or an argument
  3    not found: an instance is gone that was there
  4    quota or capacity is used up
  5    permanent: the configuration, the request or a permission is wrong
  6    transient, a timeout, or a list that is not whole: try again
  130  interrupted`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: programName, Short: "Make forward-proxy machines on your own hosts", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkFlags() },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.flags.providers, "providers", cmp.Or(os.Getenv("EGRESS_PROVIDERS"), defaultProviders),
		"providers `file`; the environment's EGRESS_PROVIDERS is its default")
	flags.StringVar(&a.flags.provider, "provider", "", "`name` of the provider; may be left out if the file has one, and for doctor, images and sweep, which then take all")
	flags.StringVar(&a.flags.tag, "tag", defaultTag, "`tag` of the instances")
	flags.StringVarP(&a.flags.output, "output", "o", outputTable, "`format` of results: table or json")
	flags.CountVarP(&a.flags.verbosity, "verbose", "v", "log each operation and call; twice, with the bodies of libvirt's; five times, with a cloud's")
	root.AddCommand(
		a.upCommand(), a.lsCommand(), a.getCommand(), a.rmCommand(), a.probeCommand(), a.consoleCommand(),
		a.doctorCommand(), a.imagesCommand(), a.sweepCommand(), a.serveCommand(), a.versionCommand(),
	)
	a.completeFlags(root)
	return root
}

func (a *app) checkFlags() error {
	if !slices.Contains([]string{outputTable, outputJSON}, a.flags.output) {
		return usagef("--output: %q: must be table or json", a.flags.output)
	}
	if err := provider.ValidTag(a.flags.tag); err != nil {
		return usagef("--tag: %w", err)
	}
	a.screen.now = a.now
	a.started = true
	return nil
}

// session is an open providers file, and the provider that the flags choose.
type session struct {
	*registry.Registry
	p    provider.Provider
	name string
}

// load opens the providers file. The caller must Close it.
func (a *app) load() (*registry.Registry, error) {
	log := a.logger()
	file, err := registry.Load(a.flags.providers, a.types(setup.Hooks{
		KVM: func(cfg *kvm.Config) {
			cfg.Logger, cfg.Progress = log, a.screen.image
			a.kvms[cfg.Name] = *cfg
		},
		GCP: func(cfg *gcp.Config) { cfg.Logger = log },
	}))
	if errors.Is(err, os.ErrNotExist) {
		return nil, advise(permanent(err), "name a providers file by --providers or EGRESS_PROVIDERS; examples/providers.yaml is one to begin with")
	}
	if err != nil {
		return nil, advise(permanent(err), "correct the providers file")
	}
	return file, nil
}

// open opens the providers file and the provider that the flags choose. The
// caller must Close the session.
func (a *app) open() (*session, error) {
	file, err := a.load()
	if err != nil {
		return nil, err
	}
	s := &session{Registry: file, name: a.flags.provider}
	if s.p, err = s.choose(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

// choose returns the provider named s.name, or the only one.
func (s *session) choose() (provider.Provider, error) {
	names := s.Names()
	switch {
	case s.name == "" && len(names) == 1:
		s.name = names[0]
	case s.name == "":
		return nil, usagef("the providers file has %q: choose one by --provider", names)
	case !slices.Contains(names, s.name):
		return nil, unknownProvider(s.name, names)
	}
	p, err := s.Get(s.name)
	if err != nil {
		return nil, unusable(err)
	}
	return p, nil
}

// withSession runs f with an open session.
func (a *app) withSession(f func(*session) error) (err error) {
	s, err := a.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f(s)
}

// command is the command line that does args with the flags of this run.
func (a *app) command(args ...string) string { return a.commandFor(a.flags.tag, args...) }

// commandFor is the same with another tag.
func (a *app) commandFor(tag string, args ...string) string {
	words := []string{programName}
	for _, flag := range []struct{ name, value, unset string }{
		{"--providers", a.flags.providers, defaultProviders},
		{"--provider", a.flags.provider, ""},
		{"--tag", tag, defaultTag},
	} {
		if flag.value != flag.unset {
			words = append(words, flag.name, quoted(flag.value))
		}
	}
	for _, arg := range args {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

// quoted is a word for a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("/._-:@%+=", r)
	}
	if strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 && word != "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// elapsed is the time since began, for people.
func (a *app) elapsed(began time.Time) string {
	return fmt.Sprint(a.now().Sub(began).Round(100 * time.Millisecond))
}

// sleep waits, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
