#!/usr/bin/env bash
# Copy what is published of the working tree to PARENT/ansible_collections/llmops/vllm and print that path:
#   tests/tools/copy_collection.sh PARENT
# For tools that insist on that path, or that would walk through environments and caches.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
copy=$(cd "$1" && pwd)/ansible_collections/llmops/vllm

rm -rf "$copy"
mkdir -p "$copy"
cd "$root"
list() { git ls-files --cached --others --exclude-standard -z -- "$@"; }
{
  list . ':!collections' ':!inventories' ':!.ci' ':!tests'
  list tests/sanity
} |
  while IFS= read -r -d '' file; do # a file that is deleted but not yet committed is still listed
    [[ ! -e $file && ! -L $file ]] || printf '%s\0' "$file"
  done |
  tar --create --null --files-from=- | tar --extract --directory "$copy"

# The copy is a repository of its own. Otherwise ansible-test asks the one around it, which ignores the copy: it
# finds no file, skips every test and succeeds.
git -C "$copy" init --quiet
git -C "$copy" add --all
printf '%s\n' "$copy"
