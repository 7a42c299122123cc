#!/usr/bin/env bash
# Check every shell script of the working tree, by name or by first line, and every template of one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
rendered=$(mktemp --directory)
trap 'rm -rf "$rendered"' EXIT

scripts=() templates=()
while IFS= read -r -d '' file; do
  [[ -f $file && ! -L $file ]] || continue
  if [[ $file == *.sh ]] || { [[ ${file##*/} != *.* ]] && head --bytes=32 "$file" | grep --quiet --text '^#!.*sh$'; }; then
    scripts+=("$file")
  elif [[ $file == *.sh.j2 ]]; then # with a word for each expression
    mkdir -p "$rendered/${file%/*}"
    sed 's/{{[^}]*}}/word/g' "$file" >"$rendered/${file%.j2}"
    templates+=("$rendered/${file%.j2}")
  fi
done < <(git ls-files --cached --others --exclude-standard -z)

shellcheck --external-sources --source-path=SCRIPTDIR "${scripts[@]}"
shellcheck --exclude=SC2015 "${templates[@]}" # the launcher's A && B || { exit; } is meant
echo "$((${#scripts[@]} + ${#templates[@]})) scripts checked"
