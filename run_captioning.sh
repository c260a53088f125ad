#!/usr/bin/env bash
# Caption a folder of images with Janus-Pro:  ./run_captioning.sh FOLDER [KEYWORD] [flags]
# A thin wrapper: makes the environment if there is none; all the rest is janus_pro_caption_core.py.
set -euo pipefail

self="${BASH_SOURCE[0]}"
while [[ -L $self ]]; do # called through a link: the checkout is where it leads
  link="$(readlink -- "$self")"
  if [[ $link == /* ]]; then self="$link"; else self="$(dirname -- "$self")/$link"; fi
done
here="$(CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P)"

# shellcheck source=scripts/environment.sh
source "$here/scripts/environment.sh"

if [[ $# -eq 0 ]]; then
  noukii_say 'usage: ./run_captioning.sh FOLDER [KEYWORD] [flags]'
  noukii_say '  next: name the folder that holds your images and a trigger word; --help shows all flags'
  exit 2
fi

if [[ $# -ge 2 && $1 != -* && $2 != -* ]]; then
  set -- "$1" --keyword "$2" "${@:3}"
fi

core="$here/janus_pro_caption_core.py"
if ! noukii_environment_ready "$here"; then
  # Nothing large is installed for a call that asks for help or cannot work.
  noukii_find_python
  for argument in "$@"; do
    case "$argument" in
    --) break ;;
    -h | --help | --version) exec "$NOUKII_BASE_PYTHON" "$core" "$argument" ;;
    esac
  done
  "$NOUKII_BASE_PYTHON" "$core" --only-check-arguments "$@"
fi
noukii_environment "$here"
exec "$NOUKII_PYTHON" "$core" "$@"
