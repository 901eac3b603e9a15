#!/bin/sh
# Installs Squid unless it is here, and starts it with the configuration that
# cloud-init wrote. Safe to run again.
log_as=squid-setup

say() {
	echo "$log_as: $*"
}

fail() {
	say "$*"
	exit 1
}

has() {
	command -v "$1" >/dev/null 2>&1
}

# Mirrors and networks fail for a moment on a first boot: three attempts.
attempt() {
	"$@" && return 0
	sleep 5
	say "trying again: $*"
	"$@" && return 0
	sleep 15
	say "trying for the last time: $*"
	"$@"
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "$@"
}

# install PACKAGE: configuration files that are there already are kept.
install() {
	say "installing $1"
	if has apt-get; then
		attempt apt update || say "the package lists could not be renewed; going on with the old ones"
		attempt apt install --no-install-recommends "$1"
	elif has dnf; then
		attempt dnf install -y "$1"
	elif has yum; then
		attempt yum install -y "$1"
	elif has zypper; then
		attempt zypper --non-interactive install "$1"
	elif has apk; then
		attempt apk add --no-cache "$1"
	else
		fail "no package manager is known here (apt-get, dnf, yum, zypper, apk): install $1 in the image"
	fi || fail "$1 could not be installed: see above, or install it in the image"
}

# enable_now SERVICE WORD: WORD is start or restart. A static unit counts as
# enabled, and starting it is what counts.
enable_now() {
	if has systemctl; then
		systemctl is-enabled -q "$1" || systemctl enable "$1" || say "$1 was not enabled, and will not start after a reboot"
		systemctl "$2" "$1" || fail "$1 did not $2: see journalctl -u $1"
	elif has rc-service; then
		rc-update add "$1" default || say "$1 was not added to the default runlevel"
		rc-service "$1" "$2" || fail "$1 did not $2: see rc-service $1 status"
	else
		fail "neither systemd nor OpenRC is here: start $1 in the image"
	fi
}

conf=/etc/squid/squid.conf
users=/etc/squid/egress.users

# The user Squid runs as was fixed when it was built.
squid_user() {
	built=$(squid -v | sed -n "s/.*--with-default-user=\([A-Za-z0-9_-]*\).*/\1/p")
	for user in $built squid proxy; do
		if id "$user" >/dev/null 2>&1; then
			echo "$user"
			return
		fi
	done
	echo root
}

# Only Squid reads the password hashes.
give_users_file() {
	owner=$(squid_user)
	chown "$owner" "$users" && chmod 0400 "$users" || fail "$users could not be given to $owner"
	say "$users belongs to $owner"
}

# Distributions keep the helper that checks passwords in different places.
find_helper() {
	for helper in /usr/lib/squid /usr/lib64/squid /usr/libexec/squid /usr/lib/squid3; do
		if [ -x "$helper/basic_ncsa_auth" ]; then
			sed -i "s|^auth_param basic program [^ ]*|auth_param basic program $helper/basic_ncsa_auth|" "$conf"
			return
		fi
	done
	fail "basic_ncsa_auth is not here: install the package that has it"
}

if has squid; then
	say "squid is installed already"
else
	install squid
fi
if [ -f "$users" ]; then
	give_users_file
	find_helper
fi
parsed=$(squid -k parse -f "$conf" 2>&1) || {
	echo "$parsed"
	fail "squid does not accept $conf: see above"
}
# The drop-in is new to systemd. Enabling a unit reads it too.
if has systemctl && systemctl is-enabled -q squid; then
	systemctl daemon-reload
fi
enable_now squid restart
if has systemctl; then
	systemctl restart logrotate.timer || say "logs are rotated once a day only: there is no logrotate.timer"
fi
say "squid runs"
