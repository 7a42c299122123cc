#!/usr/bin/env bash
# Check every shell script of the working tree, by name or by first line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scripts=()
while IFS= read -r -d '' file; do
  [[ -f $file && ! -L $file ]] || continue
  if [[ $file == *.sh ]] || { [[ ${file##*/} != *.* ]] && head --bytes=32 "$file" | grep --quiet --text '^#!.*sh$'; }; then
    scripts+=("$file")
  fi
done < <(git ls-files --cached --others --exclude-standard -z)

shellcheck --external-sources --source-path=SCRIPTDIR "${scripts[@]}"
echo "${#scripts[@]} scripts checked"
