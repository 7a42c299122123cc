#!/usr/bin/env bash
# The rehearsal: one host, a hub, the real deployment, on this machine and without a GPU.
#   rehearsal.sh up     bring it up, deploy, show that it answers
#   rehearsal.sh down   remove all of it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
inventory=inventories/rehearsal

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS" >&2; }

up() {
  tests/rig/prepare.sh check
  step "Preparing what the host is made of"
  settings=$(tests/rig/prepare.sh env)
  eval "$settings"
  step "Booting one host with systemd, and a hub"
  ANSIBLE_DISPLAY_OK_HOSTS=false ansible-playbook -i "$inventory" tests/rig/playbooks/up.yml
  step "ansible-playbook deploy_kimi.yml -i $inventory"
  ansible-playbook deploy_kimi.yml -i "$inventory"
  step "Asking it"
  ansible-playbook -i "$inventory" tests/rig/playbooks/ask.yml
}

down() {
  settings=$(tests/rig/prepare.sh engine)
  if [ -z "$settings" ]; then
    echo "There is no container engine here, so there is nothing to remove."
    return
  fi
  eval "$settings"
  ANSIBLE_DISPLAY_OK_HOSTS=false ansible-playbook -i "$inventory" tests/rig/playbooks/down.yml
}

case ${1:-} in
  up) up ;;
  down) down ;;
  *) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
