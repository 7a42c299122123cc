# shellcheck shell=bash
# Sourced by a pipeline's step: an ssh agent of this step with the deploy key, and the hosts' keys. Both come from the pipeline's settings.
eval "$(ssh-agent -s)" > /dev/null
reach_hosts=$(mktemp)
trap 'ssh-agent -k > /dev/null; rm -f "$reach_hosts"' EXIT
ssh-add -q - <<< "${DEPLOY_KEY:?set the secret DEPLOY_KEY}"
printf '%s\n' "${KNOWN_HOSTS:?set the variable KNOWN_HOSTS}" > "$reach_hosts"
export ANSIBLE_SSH_COMMON_ARGS="-o UserKnownHostsFile=$reach_hosts"
