"""What ./run_training.sh starts. See run.py."""

from __future__ import annotations

import os
import sys

# Started as a file, so that nothing is imported from the folder where the user stands; Python puts this
# file's own folder first, and the checkout takes its place.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from noukii.early_stop import stop_quietly_until_started  # noqa: E402

if __name__ == "__main__":
    stop_quietly_until_started()  # the imports below take a moment

from noukii.command_line import run_command  # noqa: E402

GO_ON = 3
"""Exit code of --only-check-arguments: nothing speaks against making the environment."""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--only-check-arguments"]:  # by run_training.sh, before it installs packages
        return check_arguments(arguments[1:])
    from noukii.driver.run import main as train

    return train(arguments)


def check_arguments(arguments: list[str]) -> int:
    """Refuse a wrong call, or answer --help, with a Python that may have no packages."""
    try:
        from noukii.driver.options import parse
    except ModuleNotFoundError:  # then it cannot be told yet
        return GO_ON
    if any(word.partition("=")[0] == "--compare" for word in arguments):
        return GO_ON
    parse(arguments)
    return GO_ON


if __name__ == "__main__":
    sys.exit(run_command(main))
