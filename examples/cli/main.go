// Command egressctl makes forward-proxy machines from a providers file, one
// command each, lists them and removes them:
//
//	egressctl --providers providers.yaml up
//	egressctl ls
//	egressctl rm --all
//
// The URL of a new proxy, with its password, is all that up writes to standard
// output, and only once a fetch through it has worked:
//
//	curl --proxy "$(egressctl up)" https://example.com/
//
// Passwords are derived from a key file and the instance's UID, so none is
// stored, and "ls --show-urls" can tell them again.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	a := newApp(stdin, stdout, stderr)
	a.signals = signals
	return a.run(ctx, args)
}
