#!/usr/bin/env bash
# Run ansible-test on a copy of the working tree, at the path that it insists on:
#   tests/tools/ansible_test.sh sanity [TEST ARGUMENTS]
# It judges what is published. It runs for the controller's Python and, where there is one, for Python 3.9 of the target hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
standin=$PWD/tests/tools/get_pip.py
cache=$PWD/.cache

command -v ansible-test >/dev/null || PATH=$PWD/.venv/bin:$PATH
# ansible-test tries every interpreter on PATH. Shims of versions that are not enabled do not start: leave them out.
mkdir -p "$cache/interpreters"
rm -f "$cache/interpreters/"*
if [[ -x .venv-3.9/bin/python ]]; then
  ln -s "$(.venv-3.9/bin/python -c 'import sys; print(sys._base_executable)')" "$cache/interpreters/python3.9"
fi
clean_path=$(tr ':' '\n' <<<"$PATH" | grep --invert-match '/shims$' | paste --serial --delimiters=:)
export PATH=$cache/interpreters:$clean_path

cd "$(tests/tools/copy_collection.sh "$cache/ansible-test")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run() { ansible-test "$@" </dev/null 2>&1 | tee "$log"; }
give_up() { # the errors once more, below the noise of pip
  grep '^ERROR' "$log" || true
  exit 1
}

if ! run "$@"; then
  # It fetches get-pip.py from a server of its own. Where that cannot be reached, any package index will do.
  wanted=$(sed --quiet 's/^The bootstrap script can be manually downloaded and saved to: //p' "$log" | head --lines=1)
  [[ -n $wanted ]] || give_up
  echo "ansible_test.sh: get-pip.py cannot be downloaded, ensurepip stands in for it" >&2
  cp "$standin" "$wanted"
  run "$@" || give_up
fi

left_out='All targets skipped|No tests applicable|no tests ran|Skipping sanity test'
if grep --extended-regexp "$left_out" "$log" | grep --invert-match 'on Python .* because it could not be found'; then
  echo "ansible_test.sh: ansible-test left out what the lines above say" >&2
  exit 1
fi
