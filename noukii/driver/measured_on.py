"""--validation, checked before anything is written: are there images to measure on, and saves to name?"""

from __future__ import annotations

import os

from noukii.dataset.caption_check import plural
from noukii.dataset.captions import find_captions
from noukii.dataset.images import inspect_images, list_images
from noukii.dataset.plan import Plan
from noukii.driver.options import Options, extra_value
from noukii.errors import InputError
from noukii.names import printable


def check_validation(options: Options, plan: Plan) -> None:
    """Refuse --validation where there is nothing to measure on.

    Raises:
        InputError: no data set has an image to spare; the folder has no usable image, none with a caption,
            or is one of the data sets.
    """
    if options.validation_share is not None and not any(each.held_out for each in plan.sets):
        raise InputError(
            "--validation", "no data set has an image to spare",
            "add images, or name a folder of others: --validation FOLDER",
        )  # fmt: skip
    folder = options.validation_folder
    if folder is None:
        return
    if any(os.path.realpath(each.data_set.folder) == os.path.realpath(folder) for each in plan.sets):
        raise InputError(
            folder, "is trained on as well, so it cannot show over-fitting",
            "name a folder of other images, or hold some out: --validation 0.1",
        )  # fmt: skip
    infos, broken = inspect_images(list_images(folder).images)
    if not infos:
        why = f" ({broken[0].reason})" if broken else ""
        raise InputError(folder, f"has no usable image to measure on{why}", "name another folder")
    captions = find_captions([info.path for info in infos], (".txt",))
    if not any(captions.values()):
        raise InputError(
            folder,
            "none of its images has a caption (.txt)",
            "./run_captioning.sh FOLDER KEYWORD writes them",
        )
    trained = {image.info.sha256 for each in plan.sets for image in each.images}
    if all(info.sha256 in trained for info in infos):
        raise InputError(folder, "all of its images are trained on as well", "name a folder of other images")


def validation_lines(options: Options, plan: Plan) -> list[str]:
    """Return what the plan says of it."""
    if options.validation is None:
        return []
    if options.validation_folder is not None:
        what = f"the images of {printable(options.validation_folder)}"
    else:
        what = plural(sum(len(each.held_out) for each in plan.sets), "held-out image")
    lines = [f"validation loss: measured on {what}, about 20 times; the report shows the curve"]
    every = options.save_every is not None or any(
        extra_value(options, flag) for flag in ("--save_every_n_epochs",)
    )
    if not every:
        lines.append(
            "! --validation can name the best checkpoint only among those that are saved, and only the last"
            f" is: --save-every {max(1, plan.steps // 10)} keeps earlier ones too"
        )
    return lines
