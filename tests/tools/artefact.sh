#!/usr/bin/env bash
# Build the collection, install the artefact into an empty folder and read a module's documentation from there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v ansible-galaxy >/dev/null || PATH=$PWD/.venv/bin:$PATH

scratch=$(mktemp --directory)
trap 'rm -rf "$scratch"' EXIT
ansible-galaxy collection build --output-path "$scratch" .
artefacts=("$scratch"/*.tar.gz)
mkdir "$scratch/collections"
export ANSIBLE_COLLECTIONS_PATH=$scratch/collections
ansible-galaxy collection install --offline --collections-path "$scratch/collections" "${artefacts[0]}"

installed=$scratch/collections/ansible_collections/llmops/vllm
for part in tests inventories .venv .cache .ci collections Makefile; do
  [[ ! -e $installed/$part ]] || {
    echo "artefact.sh: $part is in the artefact; add it to build_ignore of galaxy.yml." >&2
    exit 1
  }
done

modules=$(find plugins/modules -maxdepth 1 -name '*.py' ! -name '_*' -exec basename --suffix=.py {} + | sort)
[[ -n $modules ]] || {
  echo "artefact.sh: plugins/modules holds no module." >&2
  exit 1
}
# From a folder without ansible.cfg, so that nothing but the installed collection can answer.
for module in $modules; do
  (cd "$scratch" && ansible-doc --type module "llmops.vllm.$module") | head --lines=1 | grep "$installed"
done
echo "modules documented from the artefact: $(wc --words <<<"$modules")"
