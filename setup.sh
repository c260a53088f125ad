#!/usr/bin/env bash
# Prepare both stages: environments, models, kohya's trainer:  ./setup.sh [flags]
# A thin wrapper: finds a Python; all the rest is noukii/setup. --help lists the flags, docs/setup.md says more.
set -euo pipefail

self="${BASH_SOURCE[0]}"
while [[ -L $self ]]; do # called through a link: the checkout is where it leads
  link="$(readlink -- "$self")"
  if [[ $link == /* ]]; then self="$link"; else self="$(dirname -- "$self")/$link"; fi
done
here="$(CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P)"

# shellcheck source=scripts/environment.sh
source "$here/scripts/environment.sh"

# These are needed before there is a Python to read flags with; noukii/setup/options.py checks them all.
previous='' may_fetch_python=1
for argument in "$@"; do
  if [[ $previous == --python ]]; then export NOUKII_BASE_PYTHON="$argument"; fi
  case "$argument" in
  --python=*) export NOUKII_BASE_PYTHON="${argument#--python=}" ;;
  --pip) export NOUKII_INSTALLER=pip ;;
  --uv) export NOUKII_INSTALLER=uv ;;
  --check | --dry-run | -h | --help) may_fetch_python='' ;; # these change nothing
  esac
  previous="$argument"
done

if [[ -n ${NOUKII_PYTHON:-} ]]; then
  noukii_environment "$here"
  python="$NOUKII_PYTHON"
elif noukii_environment_ready "$here"; then
  python="$here/.venv/bin/python"
else
  NOUKII_MAY_FETCH_PYTHON="$may_fetch_python" noukii_find_python
  python="$NOUKII_BASE_PYTHON"
fi
exec "$python" "$here/noukii/setup/__main__.py" "$@"
