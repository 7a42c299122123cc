#!/usr/bin/env bash
# Make what test hosts need: a container engine, the host image, the engine's wheels, tiny models behind a hub.
#
#   prepare.sh check    can hosts run here? exit 0, or one sentence on stdout and exit 3
#   prepare.sh all      make everything; a second run finds it all and makes nothing
#   prepare.sh run COMMAND...   the same, then COMMAND with the RIG_* variables that the rig's playbooks read
#   prepare.sh env      print these variables as shell assignments
#   prepare.sh engine   make nothing: print those that name the engine, nothing when there is none
#
# RIG_ENGINE  podman | docker          (default: what works here, podman first)
# RIG_BASE    auto | registry | bootstrap: where the base image comes from (default auto: registry, then bootstrap)
# RIG_SUITE   Debian release of the hosts (default bookworm)
# LLMOPS_CACHE  where all of it is kept (default ~/.cache/llmops-vllm)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${LLMOPS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmops-vllm}
suite=${RIG_SUITE:-bookworm}
runtimes=$cache/runtimes # hosts that share it need not install the engine again
python=$root/.cache/uv-venv/bin/python # made by tests/tools/bootstrap.sh; it has pip
[ -x "$python" ] || python=python3
packages=(podman runc netavark aardvark-dns iptables)

say() { printf '    %s\n' "$*" >&2; }
hash_of() { cat "$@" | sha256sum | cut -c1-12; }

# Where the machine has no unified hierarchy at /sys/fs/cgroup, the hosts get the one beside the others: the systemds of
# two hosts would otherwise share the machine's name=systemd hierarchy, and end each other's units.
cgroup_mount=
configure_podman() {
  [ ! -e /sys/fs/cgroup/cgroup.controllers ] || return 0
  export CONTAINERS_CONF=$here/containers.conf
  if [ -d /sys/fs/cgroup/unified ]; then cgroup_mount=/sys/fs/cgroup/unified; fi
}

usable() {
  case $1 in
    podman) [ "$(id -u)" = 0 ] && command -v podman >/dev/null && podman info >/dev/null 2>&1 ;;
    docker) command -v docker >/dev/null && docker info >/dev/null 2>&1 ;;
    *) return 1 ;;
  esac
}

installable() {
  [ "$(id -u)" = 0 ] && [ -r /etc/os-release ] && command -v apt-get >/dev/null &&
    grep -qE '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release
}

apt_install() {
  say "installing $* with apt-get"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$@" >/dev/null
}

find_engine() {
  local candidate
  configure_podman
  for candidate in ${RIG_ENGINE:-podman docker}; do
    if usable "$candidate"; then
      engine=$candidate
      return 0
    fi
  done
  return 1
}

check() {
  find_engine || { [ "${RIG_ENGINE:-podman}" = podman ] && installable; } || {
    echo "No test host can run here: it takes rootful podman or a docker daemon that this user may use;" \
      "run as root on Debian or Ubuntu (podman is then installed), or set RIG_ENGINE to an engine that works."
    exit 3
  }
}

make_engine() {
  find_engine && return
  check
  apt_install "${packages[@]}"
  find_engine || { echo "prepare.sh: podman was installed but 'podman info' fails; see its message above." >&2; podman info; exit 1; }
}

bootstrap_base() {
  command -v mmdebstrap >/dev/null || apt_install mmdebstrap
  say "bootstrapping $1 from Debian packages"
  TMPDIR=${TMPDIR:-/var/tmp} mmdebstrap --quiet --variant=minbase --include=ca-certificates --dpkgopt=force-unsafe-io \
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' "$suite" - | "$engine" import - "$1" >/dev/null
}

make_base() {
  local tag=docker.io/library/debian:$suite
  "$engine" image inspect "$tag" >/dev/null 2>&1 && return
  case ${RIG_BASE:-auto} in
    registry) "$engine" pull --quiet "$tag" >/dev/null ;;
    bootstrap) bootstrap_base "$tag" ;;
    auto) timeout 120 "$engine" pull --quiet "$tag" >/dev/null 2>&1 || bootstrap_base "$tag" ;;
    *) echo "prepare.sh: RIG_BASE is '$RIG_BASE'; it can be auto, registry or bootstrap." >&2; exit 2 ;;
  esac
}

make_image() {
  image=localhost/llmops-host:$suite-$(hash_of "$here"/image/*)
  "$engine" image inspect "$image" >/dev/null 2>&1 && return
  make_base
  say "building the host image $image"
  "$engine" build --network=host --build-arg "SUITE=$suite" --tag "$image" --file "$here/image/Containerfile" "$here/image" \
    > "$cache/image.log" 2>&1 || { tail -30 "$cache/image.log" >&2; exit 1; }
}

make_wheels() {
  local locks=("$root/roles/vllm_runtime/files/vllm-0.32.0-cpu.lock" "$root/roles/vllm_runtime/files/uv.lock"
    "$root/roles/gitops_pull/files/ansible.lock")
  wheels=$cache/wheels/$(hash_of "${locks[@]}")
  [ -e "$wheels/.complete" ] && return
  say "downloading the engine's wheels (about 530 MB) to $wheels"
  "$python" "$here/wheelhouse.py" "$wheels" "${locks[@]}" 2> "$cache/wheels.log" ||
    { tail -20 "$cache/wheels.log" >&2; exit 1; }
  touch "$wheels/.complete"
}

make_hub() {
  hub=$cache/hub/$(hash_of "$here/tiny_models.py" "$here/hub.py")
  [ -e "$hub/nginx.conf" ] && return
  say "writing the tiny models and their hub to $hub"
  rm -rf "$hub.models"
  "$python" "$here/tiny_models.py" "$hub.models"
  "$python" "$here/hub.py" "$hub.models" "$hub"
  rm -rf "$hub.models"
}

make_all() {
  mkdir -p "$cache" "$runtimes"
  make_engine
  make_image
  make_wheels
  make_hub
}

print_engine() {
  printf 'export RIG_ENGINE=%q RIG_CGROUP_MOUNT=%q\n' "$engine" "$cgroup_mount"
  if [ -n "${CONTAINERS_CONF:-}" ]; then printf 'export CONTAINERS_CONF=%q\n' "$CONTAINERS_CONF"; fi
}

case ${1:-} in
  check) check ;;
  all) make_all ;;
  run)
    shift
    make_all
    export RIG_ENGINE=$engine RIG_CGROUP_MOUNT=$cgroup_mount RIG_IMAGE=$image RIG_WHEELS=$wheels RIG_HUB=$hub RIG_RUNTIMES=$runtimes
    exec "$@"
    ;;
  engine)
    if find_engine; then print_engine; fi
    ;;
  env)
    make_all
    print_engine
    printf 'export RIG_IMAGE=%q RIG_WHEELS=%q RIG_HUB=%q RIG_RUNTIMES=%q\n' "$image" "$wheels" "$hub" "$runtimes"
    ;;
  *) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
