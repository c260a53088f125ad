#!/usr/bin/env bash
# Test noukii: makes .venv if needed, then lint, format, shellcheck and the tests.
#   ./test.sh            what CI runs (minutes)
#   ./test.sh --slow     the slow tests too (full-size model: 4.3 GB on disk, about 12 GB of memory)
#   ./test.sh ARGS …     ARGS go to pytest
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
cd -- "$here"

marker='not slow'
arguments=()
for argument in "$@"; do
  if [[ $argument == --slow ]]; then marker=''; else arguments+=("$argument"); fi
done

# shellcheck source=scripts/environment.sh
source scripts/environment.sh
noukii_environment "$here" requirements-dev.txt

export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
bin="$(dirname -- "$NOUKII_PYTHON")"

echo '== format and lint'
"$bin/ruff" format --check .
"$bin/ruff" check .
echo '== shellcheck'
"$bin/shellcheck" -x ./*.sh scripts/*.sh .ci/run
echo '== tests'
exec "$NOUKII_PYTHON" -m pytest -n "${NOUKII_TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder -m "$marker" ${arguments[@]+"${arguments[@]}"}
