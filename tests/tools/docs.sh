#!/usr/bin/env bash
# Check the documentation of modules, plugins and roles, and make the reference of it, as HTML in build/docs:
#   tests/tools/docs.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v antsibull-docs >/dev/null || PATH=$PWD/.venv/bin:$PATH
pages=$PWD/.cache/docs/pages
site=$PWD/build/docs

copy=$(tests/tools/copy_collection.sh .cache/docs)
antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=self "$copy"

rm -rf "$pages" "$site"
(umask 022 && mkdir -p "$pages") # antsibull-docs takes no directory that others may write to
ANSIBLE_COLLECTIONS_PATH=$PWD/.cache/docs antsibull-docs collection --use-current --squash-hierarchy --fail-on-error \
  --dest-dir "$pages" llmops.vllm
sphinx-build -q -W --keep-going -c docs/docsite -b html "$pages" "$site"

missing=0
count=0
for source in plugins/modules/*.py plugins/filter/*.py plugins/callback/*.py roles/*/; do
  name=$(basename "$source" .py)
  kind=$(basename "$(dirname "$source")")
  page=${name}_${kind/%s/}.html
  count=$((count + 1))
  [[ -s $site/$page ]] || {
    echo "docs.sh: $source has no page in the reference ($page)." >&2
    missing=1
  }
done
[[ $missing -eq 0 ]] || exit 1
echo "pages in the reference: $count"
