"""What ./setup.sh starts. See run.py. Runs on a Python without any packages until .venv is there."""

from __future__ import annotations

import os
import sys

# Started as a file, so that nothing is imported from the folder where the user stands; Python puts this
# file's own folder first, and the checkout takes its place.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

if {"--check", "--dry-run"} & set(sys.argv):
    sys.dont_write_bytecode = True  # they change nothing, not even __pycache__

from noukii.early_stop import stop_quietly_until_started  # noqa: E402

stop_quietly_until_started()

from noukii.command_line import run_command  # noqa: E402
from noukii.setup.run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_command(main))
