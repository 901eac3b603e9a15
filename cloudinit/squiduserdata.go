package cloudinit

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"
)

//go:embed scripts/squid.sh
var squidScript string

const squidHead = `# Installs Squid unless it is here, and starts it with the configuration that
# cloud-init wrote. Safe to run again.
log_as=squid-setup
`

// squidSetupScript is the script that the user-data runs.
func squidSetupScript() string {
	return "#!/bin/sh\n" + squidHead + installScript + squidScript
}

// UserData renders the cloud-config: squid.conf, the password file, limits for
// systemd and logrotate, and a script that installs and starts Squid. It asks
// for no packages and no upgrade, so that an image with Squid in it needs no
// package mirror.
func (s Squid) UserData() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	var b strings.Builder
	b.WriteString("#cloud-config\n")
	if len(s.AuthorizedKeys) > 0 {
		fmt.Fprintf(&b, "ssh_authorized_keys: %s\n", quoteList(texts(s.AuthorizedKeys)))
	}
	b.WriteString("write_files:\n")
	for _, f := range s.guestFiles() {
		f.write(&b)
	}
	fmt.Fprintf(&b, "runcmd:\n  - %s\n", quoteList(texts([]string{"/bin/sh", setupPath})))
	return []byte(b.String()), nil
}

// guestFile is a file that cloud-init writes.
type guestFile struct {
	path    string
	mode    string
	content string
	encoded bool // as base64
}

// write renders an element of write_files.
func (f guestFile) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - path: %s\n    permissions: %s\n", quote(f.path), quote(f.mode))
	if f.encoded {
		fmt.Fprintf(b, "    encoding: b64\n    content: %s\n", quote(base64.StdEncoding.EncodeToString([]byte(f.content))))
		return
	}
	fmt.Fprintf(b, "    content:%s\n", block(f.content, "      "))
}

// guestFiles lists the files. The password file belongs to root until the
// setup script gives it to Squid's user, which may not exist before.
func (s Squid) guestFiles() []guestFile {
	files := []guestFile{
		{path: confPath, mode: "0644", content: s.conf()},
		{path: "/etc/systemd/system/squid.service.d/egress.conf", mode: "0644", content: s.serviceLimits()},
		{path: "/etc/systemd/system/logrotate.timer.d/egress.conf", mode: "0644", content: rotateOften},
		{path: "/etc/logrotate.d/squid", mode: "0644", content: s.logrotate()},
		{path: setupPath, mode: "0755", content: squidSetupScript()},
	}
	if len(s.Users) > 0 {
		files = append(files, guestFile{path: usersPath, mode: "0600", content: s.passwordFile(), encoded: true})
	}
	return files
}

// serviceLimits is a drop-in for Squid's unit.
func (s Squid) serviceLimits() string {
	return fmt.Sprintf(`# A failed Squid is started again, however often.
[Unit]
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=2
LimitNOFILE=%d
`, s.FileDescriptors)
}

// rotateOften is a drop-in for the timer of logrotate, which by default looks
// once a day: too late for a bound by size.
const rotateOften = `[Timer]
OnCalendar=
OnCalendar=*:0/10
RandomizedDelaySec=0
`

// logrotate bounds the logs of Squid, in place of the distribution's file.
func (s Squid) logrotate() string {
	return fmt.Sprintf(`/var/log/squid/*.log {
	size %d
	rotate 2
	missingok
	nocreate
	sharedscripts
	postrotate
		squid -k rotate
	endscript
}
`, s.LogBytes)
}
