# lab/common.sh - what the lab's commands share; sourced by them.
# shellcheck shell=bash disable=SC2034
set -euo pipefail
umask 022

lab_src=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
lab_dir=$(realpath -m "${EGRESS_LAB_DIR:-/var/tmp/egress-lab}")
lab_cache_root=$(realpath -m "${EGRESS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/egress}")

lab_address=10.77.0.1
lab_http=http://$lab_address:8077

say() { echo "lab: $*" >&2; }

die() {
  say "$*"
  exit 1
}

# lab_cache prints the folder for the guest image, by what the image is made of.
lab_cache() {
  local key
  key=$(cd "$lab_src" && find image guest -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
  echo "$lab_cache_root/lab-$key"
}

# lab_is_up tells whether the lab runs. Its first process holds a lock for as
# long as it lives, so neither a crash nor a reboot leaves a wrong answer.
lab_is_up() {
  [ -e "$lab_dir/alive" ] || return 1
  ! flock --nonblock --shared "$lab_dir/alive" true
}

# lab_pid prints the number that the lab's first process has out here.
lab_pid() {
  cat "$lab_dir/pid"
}
