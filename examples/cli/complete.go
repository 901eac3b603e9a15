package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds the list that a completion asks for.
const completeTimeout = 3 * time.Second

// completeInstance completes the name of an instance of the tag. Where hosts do
// not answer it knows fewer, and says nothing.
func (a *app) completeInstance(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "rm" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	var names []string
	_ = a.withSession(func(s *session) error {
		list, err := s.p.ListByTag(ctx, a.flags.tag)
		for _, in := range list {
			if !slices.Contains(args, in.Name) {
				names = append(names, cobra.CompletionWithDesc(in.Name, word(in.State)+" in "+zoneOf(in.ID)))
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeProvider completes the name of a provider of the file.
func (a *app) completeProvider(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	file, err := a.load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := file.Names()
	_ = file.Close()
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeImage completes the key of an image.
func (a *app) completeImage(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(func(_, images []string) []string { return images })
}

// completeHost completes the name of a host.
func (a *app) completeHost(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(func(hosts, _ []string) []string { return hosts })
}

// completeNames completes names that the providers file has.
func (a *app) completeNames(which func(hosts, images []string) []string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if file, err := a.load(); err == nil {
		_ = file.Close()
		for name := range a.kvms {
			names = append(names, which(a.namesOf(name))...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// completeFlags sets the completions of flags, on all commands that have them.
func (a *app) completeFlags(cmd *cobra.Command) {
	for name, complete := range map[string]cobra.CompletionFunc{
		"provider": a.completeProvider, "zone": a.completeHost, "host": a.completeHost, "image": a.completeImage, "name": a.completeInstance,
		"output": cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp),
	} {
		if cmd.LocalNonPersistentFlags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for a flag that is not there
		}
	}
	for _, child := range cmd.Commands() {
		a.completeFlags(child)
	}
}
