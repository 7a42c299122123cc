#!/bin/sh
# guard ROOT INSTANCE [RUN_PATH UNIT_PATH]: runs before vllm@INSTANCE.service. When a rollout was interrupted by the end of a
# boot, it puts the proven release back; when there is none, it fails, and what has not proved itself does not start.
set -eu
umask 027
instance=$2
home=$1/instances/$instance
run_path=${3:-/run/llmops-vllm}
unit_path=${4:-/etc/systemd/system}

[ -e "$home/intent.json" ] || exit 0
[ ! -e "$run_path/$instance.rollout" ] || exit 0 # a rollout of this boot is at it

note() { # FILE OUTCOME RELEASE: one line of the host's record of what was done to it
  printf '{"action": "recover", "holder": "the host itself", "instance": "%s", "outcome": "%s", "release": "%s", "time": "%s"}\n' \
    "$instance" "$2" "$3" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >> "$1"
}
install_file() { # FROM TO: durable before it is there, and only when it differs
  cmp -s "$1" "$2" && return 0
  mkdir -p "${2%/*}"
  cp "$1" "$2.new"
  chmod 0644 "$2.new"
  sync "$2.new"
  mv -f "$2.new" "$2"
  reload=1
}

proven=$(readlink "$home/proven" || true)
if [ -z "$proven" ] || [ ! -d "$proven/" ]; then
  echo "A rollout of $instance was interrupted, and no release of it is proven: nothing is started. Deploy it again." >&2
  note "$1/audit.jsonl" "nothing proven to start" ""
  exit 1
fi
reload=
if [ "$(readlink "$home/current" || true)" != "$proven" ]; then
  rm -f "$home/.current.new"
  ln -s "$proven" "$home/.current.new"
  mv -fT "$home/.current.new" "$home/current"
fi
for unit in "$proven"/*@.service; do
  install_file "$unit" "$unit_path/${unit##*/}"
done
install_file "$proven/instance.conf" "$unit_path/vllm@$instance.service.d/release.conf"
sync "$home" "$unit_path"
[ -z "$reload" ] || systemctl daemon-reload
rm -f "$home/intent.json"
sync "$home"
echo "A rollout of $instance was interrupted: the proven release ${proven##*/} is the current one."
note "$1/audit.jsonl" "proven release put back" "${proven##*/}"
