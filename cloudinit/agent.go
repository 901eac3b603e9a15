package cloudinit

import (
	_ "embed"
	"slices"
)

// installScript defines, for the scripts below, how to install a package with
// whatever package manager the guest has.
//
//go:embed scripts/install.sh
var installScript string

//go:embed scripts/agent.sh
var agentScript string

// agentFilename is what the script is called in the guest.
const agentFilename = "install-guest-agent"

// GuestAgentScript is a shell script that installs, enables and starts the
// QEMU guest agent. It does nothing where the agent runs already, and may run
// again. It knows apt-get, dnf, yum, zypper and apk, systemd and OpenRC; with
// no package manager it exits 1 and says to put the agent into the image. It
// logs to standard output, which cloud-init keeps in
// /var/log/cloud-init-output.log.
func GuestAgentScript() []byte {
	return []byte("#!/bin/sh\n" + agentHead + installScript + agentScript)
}

const agentHead = `# Installs and starts the QEMU guest agent, through which the hypervisor learns
# the addresses of this machine. Safe to run again.
log_as=guest-agent
`

// WithGuestAgent returns vendor-data that installs the guest agent and does
// what vendorData says. vendorData may be anything that cloud-init takes, and
// empty. cloud-init runs the script after the packages and before the runcmd
// of the user-data.
//
// The agent is a script and not a packages list, because lists in vendor-data
// are dropped when user-data has a list of the same name. User-data can still
// switch it off, together with all vendor-data, by "vendor_data: {enabled:
// false}".
func WithGuestAgent(vendorData []byte) ([]byte, error) {
	if len(vendorData) == 0 {
		return GuestAgentScript(), nil
	}
	return Multipart(
		Part{ContentType: ContentTypeScript, Filename: agentFilename, Content: GuestAgentScript()},
		Part{Content: slices.Clone(vendorData)},
	)
}
