#!/usr/bin/env bash
# Sourced by the commands: finds or makes the Python environment they run in.
#
#   noukii_environment HERE [REQUIREMENTS …]   sets NOUKII_PYTHON; installs into HERE/.venv what
#                                              requirements.txt (and the files named) ask for
#   noukii_environment_ready HERE [REQUIREMENTS …]   true if that would have nothing to do
#   noukii_find_python                         sets NOUKII_BASE_PYTHON: a Python 3.10 to 3.13
#
# Who sets NOUKII_PYTHON to an interpreter that has the packages gets that one, and no .venv is made.
# Each requirements file leaves its checksum in .venv once all of it is installed: an installation
# that was interrupted is finished by the next command, and a changed file is followed.

export PYTHONUTF8=1 # file names and captions are UTF-8 whatever the locale says

noukii_say() { printf '%s\n' "$*" >&2; }

noukii_fail() { # REASON NEXT_STEP
  noukii_say "$1"
  noukii_say "  next: $2"
  exit 1
}

noukii_runs() { # PYTHON: true if it starts and has a version that the packages exist for
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

noukii_find_python() {
  local name without_venv=''
  NOUKII_BASE_PYTHON=''
  # By running it: a pyenv shim or a Windows app alias has the name and does not start.
  for name in python3.11 python3.12 python3.13 python3.10 python3 python; do
    noukii_runs "$name" || continue
    if "$name" -c 'import venv, ensurepip' >/dev/null 2>&1; then
      NOUKII_BASE_PYTHON="$name"
      return
    fi
    without_venv="${without_venv:-$name}"
  done
  if [[ -n $without_venv ]]; then
    noukii_fail "$without_venv cannot make environments: its venv module is not installed" \
      "on Debian and Ubuntu: sudo apt install $without_venv-venv"
  fi
  noukii_fail 'no Python 3.10, 3.11, 3.12 or 3.13 was found' \
    'install Python 3.11 (python.org, apt, brew or pyenv), or set NOUKII_PYTHON to an interpreter'
}

noukii_marker() { # HERE REQUIREMENTS: where the checksum of an installed file stands
  printf '%s/.venv/.installed-%s' "$1" "$2"
}

noukii_checksum() { cksum <"$1"; }

noukii_environment_ready() {
  local here="$1" file marker
  shift
  if [[ -n ${NOUKII_PYTHON:-} ]]; then return 0; fi
  noukii_runs "$here/.venv/bin/python" || return 1
  for file in requirements.txt "$@"; do
    marker="$(noukii_marker "$here" "$file")"
    [[ -f $marker && "$(cat -- "$marker")" == "$(noukii_checksum "$here/$file")" ]] || return 1
  done
}

noukii_environment() {
  local here="$1"
  if [[ -n ${NOUKII_PYTHON:-} ]]; then
    noukii_runs "$NOUKII_PYTHON" ||
      noukii_fail "NOUKII_PYTHON: $NOUKII_PYTHON is not a working Python 3.10 to 3.13" \
        'correct it, or unset it to have an environment made in .venv'
    export NOUKII_PYTHON
    return
  fi
  if ! noukii_environment_ready "$@"; then
    # The lock is on this file, so that it leaves nothing behind; it ends with the subshell.
    (
      if command -v flock >/dev/null 2>&1 && ! flock -n 9; then
        noukii_say 'another command is installing the environment; waiting for it'
        flock 9
      fi
      noukii_environment_ready "$@" || noukii_install "$@"
    ) 9<"$here/scripts/environment.sh"
  fi
  export NOUKII_PYTHON="$here/.venv/bin/python"
}

noukii_install() {
  local here="$1" venv="$1/.venv" log="$1/.venv/install.log" file
  shift
  if ! { noukii_runs "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    noukii_find_python
    noukii_say "making the Python environment in $venv (once; torch is large, 1 to 6 GB)"
    "$NOUKII_BASE_PYTHON" -m venv --clear -- "$venv" ||
      noukii_fail "$venv: the environment could not be made" "read the lines above; is the disk full or read-only?"
  fi
  for file in requirements.txt "$@"; do
    noukii_say "installing what $file asks for"
    rm -f -- "$(noukii_marker "$here" "$file")"
    # -I: a user's PYTHONPATH or --user packages stay out of it.
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$venv/bin/python" -I -m pip install --disable-pip-version-check --no-input \
      --log "$log" -r "$here/$file" || noukii_explain "$log"
    noukii_checksum "$here/$file" >"$(noukii_marker "$here" "$file")"
  done
}

noukii_explain() { # LOG: says why pip failed, as far as it can be told
  if grep -q -i 'No space left on device' "$1" 2>/dev/null; then
    noukii_fail "the disk is full; the packages need 2 to 7 GB (log: $1)" \
      'make room, then run the same command: it goes on'
  fi
  if grep -q -i -E 'NewConnectionError|Temporary failure in name resolution|Connection(Error| refused)|timed out' \
    "$1" 2>/dev/null; then
    noukii_fail "the package index could not be reached (log: $1)" \
      'check the network or proxy, then run the same command: it goes on'
  fi
  noukii_fail "pip could not install the packages (log: $1)" 'the last lines above and the log say why'
}
