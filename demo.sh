#!/usr/bin/env bash
# See noukii work in minutes, without a download:  ./demo.sh [--quick]
# Two toy models that come with the checkout: a captioner and a picture model that know a small drawn world.
# Everything is written to demo/output; your own image_datasets/ and trained_loras/ are left alone.
set -euo pipefail

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
steps=700
case "${1:-}" in
'') ;;
--quick) steps=120 ;;
-h | --help)
  sed -n '2,4s/^# //p' -- "${BASH_SOURCE[0]}"
  exit 0
  ;;
*)
  printf '%s: is not a flag of this command\n  next: ./demo.sh or ./demo.sh --quick\n' "$1" >&2
  exit 2
  ;;
esac

# shellcheck source=scripts/environment.sh
source "$here/scripts/environment.sh"
noukii_environment "$here"
export NOUKII_HOME="$here/demo/output"
mkdir -p -- "$NOUKII_HOME/trained_loras"

printf '\n== 1. a dozen pictures of something that neither model has ever seen: a zorb\n'
"$NOUKII_PYTHON" "$here/demo/draw_concept.py" "$NOUKII_HOME/my pictures"

printf '\n== 2. captions: ./run_captioning.sh "my pictures" zorb --model demo --repeats 10\n'
"$here/run_captioning.sh" "$NOUKII_HOME/my pictures" zorb --model demo --repeats 10

printf '\n== 3. training: ./run_training.sh --base-model demo …\n'
flags=()
while IFS= read -r flag; do flags+=("$flag"); done < <(cd -- "$here" && "$NOUKII_PYTHON" demo/recipe.py "$steps")
before="$(find "$NOUKII_HOME/trained_loras" -maxdepth 1 -name 'zorb*' | wc -l)"
name=zorb
if [[ $before -gt 0 ]]; then name="zorb-run-$((before + 1))"; fi
"$here/run_training.sh" --output-name "$name" "${flags[@]}"

printf '\n== 4. the same prompts from the same noise, without and with the LoRA\n'
result="$NOUKII_HOME/trained_loras/$name"
"$NOUKII_PYTHON" "$here/demo/sheet.py" "$result/$name.safetensors" "$result/before_after.png" \
  zorb zorb zorb zorb 'a large red circle on a white background' 'a small blue square on a grey background'

cat <<TEXT

Done. Open these:
  $result/before_after.png
  $result/report.html
  $NOUKII_HOME/image_datasets/10_zorb/review.html
These are toy models of a few million parameters: they know drawn shapes and nothing else. With real ones:
  ./setup.sh                                             fetches Janus-Pro-1B and Stable Diffusion 1.5
  ./run_captioning.sh YOUR_FOLDER YOUR_WORD --repeats 20
  ./run_training.sh
TEXT
