package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what the build says of itself.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Tell which build this is", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v := versionOf(info)
			if a.flags.output == outputJSON {
				return a.writeJSON(v)
			}
			_, err := fmt.Fprintln(a.stdout, v)
			return err
		},
	}
}

func versionOf(info *debug.BuildInfo) version {
	if info == nil {
		return version{Version: "unknown"}
	}
	v := version{Version: cmp.Or(info.Main.Version, "(devel)"), Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String is the version for people.
func (v version) String() string {
	text := programName + " " + v.Version
	if v.Revision != "" {
		text += " revision " + v.Revision
	}
	if v.Modified {
		text += " (modified)"
	}
	return text + " " + v.Go
}
