#!/usr/bin/env bash
# Sourced by the commands: finds or makes the Python environment they run in.
#
#   noukii_environment HERE [REQUIREMENTS …]   sets NOUKII_PYTHON; installs into HERE/.venv what
#                                              requirements.txt (and the files named) ask for
#   noukii_environment_ready HERE [REQUIREMENTS …]   true if that would have nothing to do
#   noukii_find_python                         sets NOUKII_BASE_PYTHON: a Python 3.10 to 3.13
#   noukii_install_last PACKAGE VENV FILE      for setup.sh: makes VENV, installs FILE, PACKAGE last
#   noukii_ready_in VENV FILE                  true if all that FILE asks for is in VENV
#
# Who sets NOUKII_PYTHON to an interpreter that has the packages gets that one, and no .venv is made.
# Each requirements file leaves its checksum in .venv once all of it is installed: an installation
# that was interrupted is finished by the next command, and a changed file is followed.
#
# Packages are installed with uv where it is found (on PATH or as .tools/bin/uv), else with venv and pip.
# Variables (setup.sh has flags for them): NOUKII_INSTALLER=uv|pip, NOUKII_BASE_PYTHON=PROGRAM,
# NOUKII_INDEX_URL and NOUKII_TORCH_INDEX (URLs), NOUKII_WHEELS (install from this folder alone).

export PYTHONUTF8=1 # file names and captions are UTF-8 whatever the locale says
unset PYTHONHOME __PYVENV_LAUNCHER__ # with another Python's folder in it none starts

noukii_checkout="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

noukii_say() { printf '%s\n' "$*" >&2; }

noukii_fail() { # REASON NEXT_STEP
  noukii_say "$1"
  noukii_say "  next: $2"
  exit 1
}

noukii_runs() { # PYTHON: true if it starts and has a version that the packages exist for
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

noukii_uv() { # prints the uv to use; false if there is none or pip is wanted
  local uv
  [[ ${NOUKII_INSTALLER:-auto} != pip ]] || return 1
  for uv in "$noukii_checkout/.tools/bin/uv" uv; do
    if "$uv" --version >/dev/null 2>&1; then
      printf '%s' "$uv"
      return
    fi
  done
  return 1
}

noukii_find_python() {
  local name without_venv='' uv=''
  if [[ -n ${NOUKII_BASE_PYTHON:-} ]]; then
    noukii_runs "$NOUKII_BASE_PYTHON" ||
      noukii_fail "$NOUKII_BASE_PYTHON is not a working Python 3.10 to 3.13" 'name another one'
    return
  fi
  uv="$(noukii_uv)" || uv=''
  # By running it: a pyenv shim or a Windows app alias has the name and does not start.
  for name in python3.11 python3.12 python3.13 python3.10 python3 python; do
    noukii_runs "$name" || continue
    if [[ -n $uv ]] || "$name" -c 'import venv, ensurepip' >/dev/null 2>&1; then
      NOUKII_BASE_PYTHON="$name"
      return
    fi
    without_venv="${without_venv:-$name}"
  done
  if [[ -n $without_venv ]]; then
    noukii_fail "$without_venv cannot make environments: its venv module is not installed" \
      "on Debian and Ubuntu: sudo apt install $without_venv-venv"
  fi
  if [[ -n $uv && -n ${NOUKII_MAY_FETCH_PYTHON:-} ]]; then
    export UV_PYTHON_INSTALL_DIR="$noukii_checkout/.tools/python"
    noukii_say "no Python 3.10 to 3.13 was found; uv fetches one into .tools/python"
    if "$uv" python install 3.11 >&2 && NOUKII_BASE_PYTHON="$("$uv" python find 3.11)"; then return; fi
  fi
  noukii_fail 'no Python 3.10, 3.11, 3.12 or 3.13 was found' \
    'install Python 3.11 (python.org, apt, brew or pyenv), or set NOUKII_PYTHON to an interpreter'
}

noukii_marker() { # VENV FILE: where the checksum of an installed file stands
  printf '%s/.installed-%s' "$1" "${2##*/}"
}

noukii_checksum() { cksum <"$1"; }

noukii_ready_in() { # VENV FILE …
  local venv="$1" file marker
  shift
  noukii_runs "$venv/bin/python" || return 1
  for file in "$@"; do
    marker="$(noukii_marker "$venv" "$file")"
    [[ -f $marker && "$(cat -- "$marker")" == "$(noukii_checksum "$file")" ]] || return 1
  done
}

noukii_environment_ready() {
  local here="$1" file files=()
  shift
  if [[ -n ${NOUKII_PYTHON:-} ]]; then return 0; fi
  for file in requirements.txt "$@"; do files+=("$here/$file"); done
  noukii_ready_in "$here/.venv" "${files[@]}"
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

noukii_install() { # HERE [REQUIREMENTS …]
  local here="$1" file
  shift
  noukii_make_venv "$here/.venv"
  for file in requirements.txt "$@"; do noukii_install_file "$here/.venv" "$here/$file"; done
}

noukii_install_last() { # PACKAGE VENV FILE: a program that sees PACKAGE's command sees a whole environment
  local package="$1" venv="$2" file="$3" first="$2/.first-requirements.txt"
  noukii_make_venv "$venv"
  if [[ -e $venv/bin/$package ]]; then noukii_uninstall "$venv" "$package"; fi
  grep -v "^$package==" "$file" >"$first"
  noukii_install_torch "$venv" "$file"
  noukii_say "installing what ${file##*/} asks for"
  rm -f -- "$(noukii_marker "$venv" "$file")"
  : >"$venv/install.log"
  noukii_packages "$venv" -r "$first" || noukii_explain "$venv/install.log"
  noukii_packages "$venv" --quiet -r "$file" || noukii_explain "$venv/install.log"
  rm -f -- "$first"
  noukii_checksum "$file" >"$(noukii_marker "$venv" "$file")"
}

noukii_make_venv() { # VENV: makes it unless it is there; a damaged one is made anew
  local venv="$1" uv said making=() seed=(--seed) # with pip in it, as README's commands for optional packages expect
  uv="$(noukii_uv)" || uv=''
  if noukii_runs "$venv/bin/python" && { [[ -n $uv ]] || "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    return
  fi
  noukii_find_python
  if [[ $venv == *:* ]]; then
    noukii_fail "$venv: no Python environment can be made in a folder with a colon in its name" 'rename the folder'
  fi
  noukii_say "making the Python environment in $venv (once; torch is large, 1 to 6 GB)"
  noukii_clear_place "$venv"
  # The mark comes first: an environment that was interrupted here is known as ours by the next run.
  if ! { mkdir -p -- "$venv" && : >"$venv/.noukii"; }; then
    noukii_fail "$venv: cannot be written" 'read the line above; is the disk full or read-only?'
  fi
  if [[ -n $uv ]]; then
    if [[ -n ${NOUKII_WHEELS:-} ]]; then seed=(); fi # uv would fetch pip for it
    making=("$uv" venv --quiet ${seed[@]+"${seed[@]}"} --allow-existing --python "$NOUKII_BASE_PYTHON")
  else
    making=("$NOUKII_BASE_PYTHON" -m venv)
  fi
  # Its words only where it fails: when it is stopped they are a traceback.
  said="$("${making[@]}" -- "$venv" 2>&1)" || {
    noukii_say "$said"
    noukii_fail "$venv: the environment could not be made" 'read the lines above; is the disk full or read-only?'
  }
}

noukii_clear_place() { # VENV: empties a damaged environment of ours; anything else is renamed, never deleted
  local venv="$1" number=1
  if [[ -e $venv/.noukii ]]; then
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name .noukii -exec rm -rf -- {} +
  elif [[ -e $venv || -L $venv ]] && ! rmdir -- "$venv" 2>/dev/null; then
    while [[ -e $venv.set-aside-$number || -L $venv.set-aside-$number ]]; do number=$((number + 1)); done
    mv -- "$venv" "$venv.set-aside-$number" || noukii_fail "$venv: is in the way" 'move it away'
    noukii_say "  what was there and does not work is now ${venv##*/}.set-aside-$number"
  fi
}

noukii_install_file() { # VENV FILE
  local venv="$1" file="$2"
  noukii_say "installing what ${file##*/} asks for"
  rm -f -- "$(noukii_marker "$venv" "$file")"
  noukii_install_torch "$venv" "$file"
  : >"$venv/install.log" # what is read for the cause of a failure is this attempt alone
  noukii_packages "$venv" -r "$file" || noukii_explain "$venv/install.log"
  noukii_checksum "$file" >"$(noukii_marker "$venv" "$file")"
}

noukii_install_torch() { # VENV FILE: torch and torchvision in the build that suits this machine
  local venv="$1" chooser="$noukii_checkout/noukii/setup/torch_build.py" line index what why
  local wanted=() names=()
  while IFS= read -r line; do
    wanted+=("$line")
    names+=("${line%%==*}")
  done < <(sed -n -E 's/^(torch(vision|audio)?==[^ ;#]+).*/\1/p' "$2")
  if [[ ${#wanted[@]} -eq 0 || ! -f $chooser ]]; then return 0; fi
  { read -r index && read -r what && read -r why; } < <("$venv/bin/python" -I "$chooser" "${wanted[@]}") || return 0
  noukii_say "  torch: $why"
  if [[ $what == replace ]]; then noukii_uninstall "$venv" "${names[@]}"; fi
  if [[ $what == keep || $index == default || -n ${NOUKII_WHEELS:-} ]]; then return 0; fi
  # Without their dependencies, which the usual index has too; one short attempt, since there is a second way.
  if NOUKII_INDEX_URL="$index" PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=20 UV_HTTP_TIMEOUT=60 \
    noukii_packages "$venv" --no-deps "${wanted[@]}"; then return 0; fi
  if [[ $index != */cpu ]]; then noukii_explain "$venv/install.log"; fi
  noukii_say "  $index was of no use; the usual index has a larger build that works as well"
}

noukii_uninstall() { # VENV NAME …
  local venv="$1" uv
  shift
  if uv="$(noukii_uv)"; then
    "$uv" pip uninstall --quiet --python "$venv/bin/python" "$@" || true
  else
    "$venv/bin/python" -I -m pip uninstall --quiet --yes "$@" || true
  fi
}

noukii_packages() { # VENV ARGUMENTS: installs with uv or pip
  local venv="$1" log="$1/install.log" uv where=()
  shift
  if [[ -n ${NOUKII_WHEELS:-} ]]; then
    where=(--no-index --find-links "$NOUKII_WHEELS")
  elif [[ -n ${NOUKII_INDEX_URL:-} ]]; then
    where=(--index-url "$NOUKII_INDEX_URL")
  fi
  if uv="$(noukii_uv)"; then
    if [[ -t 2 ]]; then # its progress needs the terminal, and its errors speak for themselves
      "$uv" pip install --python "$venv/bin/python" ${where[@]+"${where[@]}"} "$@"
    else
      "$uv" pip install --python "$venv/bin/python" ${where[@]+"${where[@]}"} "$@" 2>&1 | tee -a -- "$log" >&2
      return "${PIPESTATUS[0]}"
    fi
  else
    # -I: a user's PYTHONPATH or --user packages stay out of it; so does what sends packages elsewhere.
    env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_DRY_RUN -u PIP_NO_DEPS -u PIP_PYTHON \
      PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$venv/bin/python" -I -m pip install --disable-pip-version-check --no-input \
      --log "$log" ${where[@]+"${where[@]}"} "$@"
  fi
}

noukii_explain() { # LOG: says why the installation failed, as far as it can be told
  if grep -q -i 'No space left on device' "$1" 2>/dev/null; then
    noukii_fail "the disk is full, or the one with ${TMPDIR:-/tmp}; the packages need 2 to 7 GB (log: $1)" \
      'make room (TMPDIR names another folder for unpacking), then run the same command: it goes on'
  fi
  if grep -q -i -E 'ProxyError|407 Proxy' "$1" 2>/dev/null; then
    noukii_fail "the proxy does not let us through to the package index (log: $1)" \
      'correct https_proxy (http://NAME:PASSWORD@HOST:PORT), then run the same command: it goes on'
  fi
  if grep -q -i -E 'NewConnectionError|Temporary failure in name resolution|Connection(Error| refused)|timed out|dns error|error sending request' \
    "$1" 2>/dev/null; then
    noukii_fail "the package index could not be reached (log: $1)" \
      'check the network or proxy, then run the same command: it goes on'
  fi
  if grep -q -i -E 'Permission denied|Read-only file system' "$1" 2>/dev/null; then
    noukii_fail "the packages cannot be written there (log: $1)" \
      'give yourself the right to write there, then run the same command: it goes on'
  fi
  if grep -q -i -E 'No matching distribution found|No solution found' "$1" 2>/dev/null; then
    noukii_fail "${NOUKII_WHEELS:-the package index} lacks a package in the version that is asked for (log: $1)" \
      'the last lines above name it; add it there, or name another source (./setup.sh --help)'
  fi
  noukii_fail "the packages could not be installed (log: $1)" 'the last lines above and the log say why'
}
