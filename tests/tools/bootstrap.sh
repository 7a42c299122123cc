#!/usr/bin/env bash
# Make the locked environments, from a bare Debian or Ubuntu machine on:
#   tests/tools/bootstrap.sh [.venv] [.venv-2.19] [.venv-3.9] [tools]
#
#   .venv       the newest ansible-core this project is locked to; with no Python >= 3.12, ansible-core 2.19 on 3.11
#   .venv-2.19  ansible-core 2.19 on Python 3.11, the oldest controller; optional
#   .venv-3.9   no ansible at all: the libraries on the oldest Python of a target host; optional
#   tools       the system packages that only the tests need
#
# Without arguments: .venv. Where everything is up to date it does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly uv_home=.cache/uv-venv
readonly uv_lock=roles/vllm_runtime/files/uv.lock # one installer for this checkout and for the hosts
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true} # as pip on Debian does: a site may have an authority of its own

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# need PACKAGE...: install Debian packages, or say which ones somebody has to install.
need() {
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "install the system package(s) $*, then run this again (as root on Debian or Ubuntu that happens by itself)."
  fi
  say "installing $*"
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null 2>&1 || {
    apt-get update --quiet=2 >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null
  }
}

# need_command COMMAND PACKAGE
need_command() { command -v "$1" >/dev/null || need "$2"; }

# find_python VERSION...: the first interpreter that is there and starts. A pyenv shim of a version that is not
# enabled is on PATH but does not start, so the folders of pyenv and uv are searched as well.
find_python() {
  local version candidate
  for version; do
    for candidate in $(type -aP "python$version") "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version" \
      "${XDG_DATA_HOME:-$HOME/.local/share}/uv/python/cpython-$version".*/bin/"python$version"; do
      if [[ -x $candidate ]] && "$candidate" -c 'import sys, venv, ssl; sys.exit(sys.prefix != sys.base_prefix)' 2>/dev/null; then
        printf '%s\n' "$candidate"
        return 0
      fi
    done
  done
  return 1
}

digest() { cat -- "$@" tests/tools/bootstrap.sh | sha256sum | cut -d ' ' -f 1; }

fresh() { # fresh ENVIRONMENT STAMP
  [[ -x $1/bin/python && -f $1/.stamp && $(<"$1/.stamp") == "$2" ]] && "$1/bin/python" -c '' 2>/dev/null
}

install_uv() { # install_uv PYTHON
  local stamp
  stamp=$(digest "$uv_lock")
  fresh "$uv_home" "$stamp" && return
  say "installing uv"
  "$1" -c 'import ensurepip' 2>/dev/null || need "$(basename "$1")-venv"
  rm -rf "$uv_home"
  "$1" -m venv "$uv_home"
  "$uv_home/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$uv_lock"
  printf '%s\n' "$stamp" >"$uv_home/.stamp"
}

make_environment() { # make_environment ENVIRONMENT LOCK PYTHON
  local environment=$1 lock=$2 python=$3 stamp
  stamp=$(digest "$lock" "$uv_lock")
  install_uv "$python"
  say "making $environment with $("$python" -V)"
  rm -f "$environment/.stamp"
  if ! same_python "$environment" "$python"; then
    "$uv_home/bin/uv" venv --quiet --clear --no-python-downloads --python "$python" "$environment"
  fi
  "$uv_home/bin/uv" pip sync --quiet --require-hashes --only-binary :all: --python "$environment/bin/python" "$lock"
  printf '%s\n' "$stamp" >"$environment/.stamp"
}

same_python() { # same_python ENVIRONMENT PYTHON: an environment in use is brought up to date in place
  [[ -x $1/bin/python ]] && [[ $("$1/bin/python" -V 2>&1) == "$("$2" -V)" ]]
}

# provide ENVIRONMENT LOCK VERSION... What fails must not be called in a
# condition, where bash ignores `set -e`: therefore the interpreter is looked for here and used afterwards.
provide() {
  local environment=$1 lock=$2 python
  shift 2
  fresh "$environment" "$(digest "$lock" "$uv_lock")" && return
  if python=$(find_python "$@"); then
    make_environment "$environment" "$lock" "$python"
    return
  fi
  [[ $environment != .venv ]] || die "no Python of version $* was found: install one, with its venv module."
  say "no Python $* was found: $environment is not made and what needs it is not tested."
}

bootstrap() {
  case $1 in
    .venv)
      need_command ssh openssh-client
      # 3.12 and 3.13 run what is locked; others only for want of these
      [[ -e .venv/.stamp ]] || find_python 3.12 3.13 3.14 3.11 >/dev/null || need python3 python3-venv
      provide .venv requirements/dev.lock 3.12 3.13 3.14 3.11
      ;;
    .venv-2.19) provide .venv-2.19 requirements/dev.lock 3.11 ;;
    .venv-3.9) provide .venv-3.9 requirements/target.lock 3.9 ;;
    tools)
      need_command git git
      need_command ssh openssh-client
      need_command shellcheck shellcheck
      ;;
    *) die "unknown argument $1; known are .venv, .venv-2.19, .venv-3.9 and tools." ;;
  esac
}

mkdir -p .cache
if command -v flock >/dev/null; then # two at once would write into each other's environment
  exec 9>.cache/bootstrap.lock
  flock 9
fi
[[ $# -gt 0 ]] || set -- .venv
for what; do
  bootstrap "$what"
done
