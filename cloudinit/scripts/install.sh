
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
