#!/usr/bin/env python3
"""Caption a folder of images with Janus-Pro: `janus_pro_caption_core.py FOLDER --keyword WORD`.

run_captioning.sh calls this; `--help` lists the flags. See noukii/captioning/folder.py.
"""

from __future__ import annotations

import sys

from noukii.early_stop import stop_quietly_until_started

if __name__ == "__main__":
    stop_quietly_until_started()  # the imports below take a moment

from noukii.captioning import apply_edits
from noukii.captioning.options import missing_folder, parse
from noukii.command_line import run_command


def main(arguments: list[str]) -> int:
    only_check = arguments[:1] == ["--only-check-arguments"]  # by run_captioning.sh, before it installs
    if apply_edits.is_asked(arguments):
        edits = apply_edits.parse(arguments[only_check:])
        return 0 if only_check else apply_edits.apply(edits)
    options = parse(arguments[only_check:])  # first: --help and a usage error need nothing else
    if not options.folder.is_dir():
        raise missing_folder(options.folder)
    if only_check:
        return 0
    from noukii.captioning.folder import caption_folder

    return caption_folder(options)


if __name__ == "__main__":
    sys.exit(run_command(main))
