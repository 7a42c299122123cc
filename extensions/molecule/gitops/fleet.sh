#!/usr/bin/env bash
# The repository that this scenario's host follows, and the people who push to it.
#   fleet.sh keys                      the keys of alice, who may sign, of mallory, who may not, and of the host
#   fleet.sh first                     this checkout with the fleet's inventory, signed by alice
#   fleet.sh commit WHO FILE CONTENT   on top of what was deployed last, a commit of alice, mallory or nobody
#   fleet.sh tag                       alice's signed tag of what was deployed last, under the name of the branch
#   fleet.sh untag                     removes it
#   fleet.sh deployed                  remember that what was pushed last is deployed
#   fleet.sh rewind                    the branch as it was at first
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
fleet=$RIG_DIRECTORY/fleet
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_SSH_COMMAND="ssh -F $RIG_DIRECTORY/ssh_config"

as() { # as WHO COMMAND...
  local who=$1
  shift
  git -C "$fleet" -c "user.name=$who" -c "user.email=$who@example.com" -c gpg.format=ssh -c "user.signingKey=$RIG_DIRECTORY/$who" "$@"
}
push() { as nobody push --quiet --force ssh://git@rehearsal-1/srv/git/fleet.git "$@"; }

case ${1:-} in
  keys)
    for name in alice mallory deploy_key; do
      [[ -e $RIG_DIRECTORY/$name ]] || ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$RIG_DIRECTORY/$name"
    done
    ;;
  first)
    rm -rf "$fleet"
    mkdir -p "$fleet"
    cd "$root"
    git ls-files --cached --others --exclude-standard -z -- . ':!tests' ':!docs' ':!extensions' ':!.ci' ':!changelogs' |
      while IFS= read -r -d '' file; do [[ ! -e $file && ! -L $file ]] || printf '%s\0' "$file"; done |
      tar --create --null --files-from=- | tar --extract --directory "$fleet"
    cp -r "$here/fleet" "$fleet/inventories/fleet"
    as alice init --quiet --initial-branch main
    as alice add --all
    as alice commit --quiet --gpg-sign --message "The fleet"
    as alice tag first
    as alice tag deployed
    push main
    ;;
  commit)
    as nobody reset --quiet --hard deployed
    printf '%s\n' "$4" >"$fleet/$3"
    as nobody add --all
    if [[ $2 == nobody ]]; then sign=--no-gpg-sign; else sign=--gpg-sign; fi
    as "$2" commit --quiet "$sign" --message "$3 by $2"
    push main
    ;;
  tag)
    as alice tag --force --sign --message deployed main deployed
    push refs/tags/main
    as alice tag --delete main >/dev/null
    ;;
  untag) push :refs/tags/main ;;
  deployed) as alice tag --force deployed main ;;
  rewind) push first:refs/heads/main ;;
  *)
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
