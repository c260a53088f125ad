#!/usr/bin/env bash
# See noukii work in minutes, without a download:  ./demo.sh [--quick]
# Two toy models that come with the checkout: a captioner and a picture model that know a small drawn world.
# --quick trains a quarter as long: the concept comes through less clearly.
# Everything is written to demo/output; your own image_datasets/ and trained_loras/ are left alone.
set -euo pipefail

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
quick=()
case "${1:-}" in
'') ;;
--quick) quick=(--quick) ;;
-h | --help)
  sed -n '2,5s/^# //p' -- "${BASH_SOURCE[0]}"
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
cd -- "$NOUKII_HOME"

printf '\n== 1. a dozen pictures of something that neither model has ever seen, and some ordinary ones\n'
"$NOUKII_PYTHON" "$here/demo/draw_concept.py" 'my pictures' 'ordinary pictures'

printf '\n== 2. captions: ./run_captioning.sh "my pictures" zorb --model demo --repeats 50\n'
"$here/run_captioning.sh" 'my pictures' zorb --model demo --repeats 50
printf '\n   … and of the ordinary ones, which keep the LoRA from changing everything else\n'
"$here/run_captioning.sh" 'ordinary pictures' picture --model demo --repeats 15

flags=()
while IFS= read -r flag; do flags+=("$flag"); done < <("$NOUKII_PYTHON" "$here/demo/recipe.py" ${quick[@]+"${quick[@]}"})
number=1
while [[ -e "trained_loras/zorb-$number" ]]; do number=$((number + 1)); done
printf '\n== 3. training: ./run_training.sh --output-name zorb-%s %s\n' "$number" "${flags[*]}"
"$here/run_training.sh" --output-name "zorb-$number" "${flags[@]}"

printf '\n== 4. the same prompts from the same noise, without and with the LoRA\n'
result="$NOUKII_HOME/trained_loras/zorb-$number"
"$NOUKII_PYTHON" "$here/demo/sheet.py" "$result/zorb-$number.safetensors" "$result/before_after.png"

cat <<TEXT

Done. Open these:
  $result/before_after.png
  $result/report.html
  $NOUKII_HOME/image_datasets/50_zorb/review.html
These are toy models of a few million parameters: they know drawn shapes and nothing else. With real ones:
  ./setup.sh                                             fetches Janus-Pro-1B and Stable Diffusion 1.5
  ./run_captioning.sh YOUR_FOLDER YOUR_WORD --repeats 20
  ./run_training.sh
TEXT
