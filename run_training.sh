#!/usr/bin/env bash
# Train a LoRA on captioned images:  ./run_training.sh [--dataset PATH [--repeats N]]... [flags] [-- FLAGS]
# A thin wrapper: makes the environment if there is none; all the rest is noukii/driver.
set -euo pipefail

self="${BASH_SOURCE[0]}"
while [[ -L $self ]]; do # called through a link: the checkout is where it leads
  link="$(readlink -- "$self")"
  if [[ $link == /* ]]; then self="$link"; else self="$(dirname -- "$self")/$link"; fi
done
here="$(CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P)"

# shellcheck source=scripts/environment.sh
source "$here/scripts/environment.sh"

driver="$here/noukii/driver/__main__.py"
if ! noukii_environment_ready "$here"; then
  # Nothing large is installed for a call that asks for help or cannot work.
  noukii_find_python
  status=0
  "$NOUKII_BASE_PYTHON" "$driver" --only-check-arguments "$@" || status=$?
  if [[ $status -ne 3 ]]; then exit "$status"; fi
fi
noukii_environment "$here"
exec "$NOUKII_PYTHON" "$driver" "$@"
