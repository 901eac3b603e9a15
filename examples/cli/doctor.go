package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressfleet/egress/provider"
)

const doctorHelp = `Examine what the providers stand on: of a KVM host the way to libvirt, libvirt
itself, the hypervisor, memory, pool, network, clock and images; of a project of
Google Cloud credentials, API, quotas, network, image, policy and zones.

All providers of the file are examined, or the one of --provider, and nothing is
changed. Below a failure stands what mends it. The exit code is 1 if there is a
failure; warnings are none.`

func (a *app) doctorCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Examine the hosts", Long: doctorHelp, Args: cobra.NoArgs,
		Example: `  egressctl doctor
  egressctl doctor --provider rack-1 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout must be positive")
			}
			return a.withAll(func(all []member) error { return a.doctor(cmd.Context(), all, timeout) })
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return cmd
}

// finding is one of the result for machines.
type finding struct {
	Provider string `json:"provider"`
	provider.Finding
}

func (a *app) doctor(ctx context.Context, all []member, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found := make([][]provider.Finding, len(all))
	errs := make([]error, len(all))
	each(len(all), func(i int) { found[i], errs[i] = all[i].diagnose(ctx) })
	findings := []finding{}
	failures := 0
	for i, m := range all {
		for _, f := range found[i] {
			findings = append(findings, finding{m.name, f})
			if f.Status == provider.FindingFailure {
				failures++
			}
		}
	}
	err := errors.Join(append(errs, a.writeFindings(findings))...)
	if failures > 0 {
		err = errors.Join(err, advise(fmt.Errorf("%d of %d checks failed", failures, len(findings)), "do what stands below each, and run it again"))
	}
	return err
}

// diagnose examines one provider. One that cannot be made is a finding.
func (m member) diagnose(ctx context.Context) ([]provider.Finding, error) {
	if m.err != nil {
		return []provider.Finding{{
			Scope: "-", Check: "configuration", Status: provider.FindingFailure, Evidence: m.err.Error(),
			Remedy: "correct the provider's entry in the providers file",
		}}, nil
	}
	if _, ok := provider.As[provider.Doctor](m.p); !ok {
		return []provider.Finding{{
			Scope: "-", Check: "-", Status: provider.FindingSkipped, Evidence: "this type of provider has nothing to examine",
		}}, nil
	}
	found, err := provider.Diagnose(ctx, m.p)
	if err != nil {
		err = fmt.Errorf("%s: the examination was cut short: %w", m.name, err)
	}
	return found, err
}

func (a *app) writeFindings(all []finding) error {
	if a.flags.output == outputJSON {
		return a.writeJSON(map[string]any{"findings": all})
	}
	t := table{header: []string{"PROVIDER", "SCOPE", "CHECK", "STATUS", "EVIDENCE"}}
	for _, f := range all {
		t.add(f.Provider, f.Scope, f.Check, string(f.Status), f.Evidence)
		t.below("next: %s", f.Remedy)
	}
	return a.printTable(t)
}
