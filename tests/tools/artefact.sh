#!/usr/bin/env bash
# Build the collection, install the artefact into an empty folder, compare it with the repository, and use it from there.
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

repository() { # [PATH...]: the files that are there and are not a tool's
  git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
    [[ ! -f $file ]] || printf '%s\n' "$file"
  done | sort
}
none() { # WORDS [FILE...]
  [[ $# -eq 1 ]] || {
    printf 'artefact.sh: %s\n' "$1: ${*:2:5}" >&2
    exit 1
  }
}
(cd "$installed" && find . -type f ! -name MANIFEST.json ! -name FILES.json -printf '%P\n' | sort) >"$scratch/found"
mapfile -t wrong < <(grep --extended-regexp '^(tests|inventories|\.ci|collections|requirements)/|^Makefile$' "$scratch/found")
none "is the project's, and in the artefact; add it to build_ignore of galaxy.yml" "${wrong[@]}"
mapfile -t wrong < <(comm -13 <(repository .) "$scratch/found")
none "is a tool's, and in the artefact; add it to build_ignore of galaxy.yml" "${wrong[@]}"
mapfile -t wrong < <(comm -23 <(repository changelogs docs meta playbooks plugins roles) "$scratch/found")
none "is not in the artefact" "${wrong[@]}"

# From a folder without ansible.cfg, so that nothing but the installed collection can answer.
cd "$scratch"
names() { find "$installed/$1" -maxdepth 1 -type f -name "*.$2" -exec basename --suffix=".$2" {} + | sort; }
mapfile -t playbooks < <(names playbooks yml | sed 's/^/llmops.vllm./')
ansible-playbook --syntax-check --inventory localhost, "${playbooks[@]}" 2>&1
modules=$(names plugins/modules py)
for module in $modules; do
  ansible-doc --type module "llmops.vllm.$module" | head --lines=1 | grep "$installed"
done
echo "modules documented from the artefact: $(wc --words <<<"$modules")"
