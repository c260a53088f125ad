"""Train a LoRA for Stable Diffusion 1.5, with kohya's flags.

    accelerate launch --num_cpu_threads_per_process 1 noukii/trainer/train_network.py FLAGS

Exit codes: 0 trained and saved, 2 refused before anything was written, 1 failed, 130 stopped and saved.
"""

from __future__ import annotations

import os
import sys

# Python puts this script's own folder first, where our module names could hide others; the checkout's
# root takes its place.
_HERE = os.path.dirname(os.path.realpath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
sys.path[:] = [_ROOT, *(entry for entry in sys.path if os.path.realpath(entry) not in (_HERE, _ROOT))]

from noukii.trainer.starting import leave_quietly_until_training  # noqa: E402

if __name__ == "__main__":
    leave_quietly_until_training()  # before the imports that take time

from noukii.command_line import run_command  # noqa: E402
from noukii.errors import Interrupted  # noqa: E402
from noukii.trainer.settings import parse  # noqa: E402


def main(arguments: list[str]) -> int:
    """Parse the flags, check what can be checked, train."""
    settings = parse(arguments)
    from noukii.trainer.job import prepare_job

    job = prepare_job(settings)
    from noukii.quiet import prepare_libraries

    prepare_libraries()
    # transformers and diffusers import scipy where they find it, for losses and samplers that are not used
    # here: a second of every start. None means that there is no such package.
    sys.modules.setdefault("scipy", None)  # type: ignore[arg-type]
    from noukii.trainer.loop import train

    try:
        train(job)
    except KeyboardInterrupt:
        raise Interrupted(job.output_dir, "stopped at once; what came after the last save is lost") from None
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
