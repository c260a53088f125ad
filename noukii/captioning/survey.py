"""All that can be known about a captioning job before a model is loaded (R4), and its plan in words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noukii import hardware
from noukii.captioning import summary
from noukii.captioning.captioner import check_question_fits
from noukii.captioning.janus_files import JanusFiles, check_model
from noukii.captioning.manifest import Manifest, State
from noukii.captioning.options import CaptionOptions
from noukii.captioning.summary import Tally
from noukii.captioning.worklist import DESCRIBE, DONE, KEEP, Item, Worklist, make_worklist
from noukii.captioning.writer import TEXT_BYTES, copy_bytes
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.buckets import fit
from noukii.dataset.captions import find_captions
from noukii.dataset.images import ImageInfo, Listing, Skipped, inspect_images, list_images
from noukii.dataset.plan import BUCKET_STEP, bucket_rule
from noukii.disk import existing_parent, require_space
from noukii.errors import InputError, Interrupted
from noukii.names import printable
from noukii.progress import Progress, duration
from noukii.stop import StopSignal

MIN_CAPTION_ROOM = 15
"""CLIP tokens that the keyword must leave for the caption."""

TRAINING_SIZE = 512
"""run_training.sh's own --resolution: pictures that it cannot use are named before they are captioned."""

CPU_BYTES_PER_SECOND = 8e9
"""What a desktop processor reads from memory; each token of an answer reads the model once."""

USUAL_ANSWER = 180
"""Tokens of Janus-Pro's usual answer to the default question."""


@dataclass(frozen=True)
class Found:
    """What the input folder holds."""

    infos: Sequence[ImageInfo]
    skipped: Sequence[Skipped]
    litter: int

    @property
    def count(self) -> int:
        return len(self.infos) + len(self.skipped)


def look(options: CaptionOptions, stop: StopSignal) -> Found:
    """List and fully decode the images of the input folder."""
    folder = options.folder
    listing = list_images(folder, options.recursive)
    with Progress("looking at the images", len(listing.images), "images") as progress:

        def advance() -> None:
            if stop.requested:
                raise Interrupted(folder, "stopped before anything was written", "run the same command again")
            progress.advance()

        infos, broken = inspect_images(listing.images, advance)
    skipped = sorted([*listing.skipped, *broken], key=lambda entry: entry.path)
    if not infos:
        raise _nothing_usable(folder, listing, skipped)
    return Found(infos, skipped, listing.litter)


def _nothing_usable(folder: Path, listing: Listing, skipped: Sequence[Skipped]) -> InputError:
    """Return the refusal of a folder without a usable image, saying what it holds instead."""
    if skipped:
        reason = "\n".join(["no image here can be used:", *summary.skipped_lines(skipped, folder)])
        return InputError(folder, reason, "put PNG, JPEG or WebP files there")
    below = {path: len(list_images(path, recursive=True).images) for path in listing.folders}
    holding = [f"{printable(path.name)}/ ({count})" for path, count in below.items() if count]
    if holding:
        some = ", ".join(holding[:5]) + (" …" if len(holding) > 5 else "")
        return InputError(
            folder,
            f"no image lies in it, but in folders below: {some}",
            "name one of them, or add --recursive",
        )
    names = sorted(printable(entry.name) for entry in os.scandir(folder))
    what = f"no image among {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" if names else "is empty"
    return InputError(folder, what, "name the folder that holds the images")


def check_keyword_length(options: CaptionOptions, tokenizer: ClipTokenizer) -> None:
    used = tokenizer.count(f"{options.keyword},")
    if not options.raw_captions and used + MIN_CAPTION_ROOM > options.max_caption_tokens:
        raise InputError(
            f"keyword '{printable(options.keyword)}'",
            f"takes {used} of a caption's {options.max_caption_tokens} CLIP tokens",
            "use one short invented word, like tomcat",
        )


def compare(options: CaptionOptions, found: Found) -> Worklist:
    manifest = Manifest.read(options.output)
    return make_worklist(options, found.infos, manifest, State.read(options.output), identity(options.folder))


def identity(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()


def check(options: CaptionOptions, work: Worklist, found: Found) -> JanusFiles | None:
    """Say what will be done, and check that it can be; returns the model's files if they are needed."""
    groups = work.to_describe()
    _say_plan(options, work, found, len(groups))
    _require_a_disk(options.output)
    require_space(options.output, *_space(work.items))
    if not groups:
        return None
    model = check_model(options.model)
    check_question_fits(options, model.tokenizer, model.image_tokens, model.longest_text)
    device = hardware.detect()
    if options.dtype == "float16" and (options.device == "cpu" or not device.has_gpu):
        raise InputError("--dtype float16", "is for GPUs", "use auto, bfloat16 or float32 on a CPU")
    if options.device.startswith("cuda") and not device.has_gpu:
        raise InputError(
            f"--device {options.device}", device.why_no_gpu, "leave it out, or give --device cpu"
        )
    if device.has_gpu and options.device != "cpu":
        print(f"model: {printable(model.name)} on {device.gpu_name}", flush=True)
    else:
        why = "as asked" if options.device == "cpu" else device.why_no_gpu
        print(f"model: {printable(model.name)} on the CPU, without CUDA ({why})", flush=True)
        print(f"  {_cpu_guess(model, options, len(groups))}", flush=True)
    return model


def _require_a_disk(output: Path) -> None:
    """Refuse a place such as /proc, which takes no files whatever rights one has there."""
    place = existing_parent(output)
    if place.is_dir() and os.statvfs(place).f_blocks == 0:
        raise InputError(
            output, f"cannot be written: {printable(place)} is no place for files", "name another folder"
        )


def _cpu_guess(model: JanusFiles, options: CaptionOptions, count: int) -> str:
    each = min(options.max_new_tokens, USUAL_ANSWER) * model.size_bytes / CPU_BYTES_PER_SECOND
    about = f"about {duration(each * count)}" if each * count >= 60 else "less than a minute"
    return (
        f"a GPU is many times faster; expect {about} for {summary.counted(count, 'image')}, guessed from the "
        "model's size (the true figure follows after the first batch)"
    )


def _space(items: Sequence[Item]) -> tuple[int, int]:
    """Return the bytes that all copies may need, and the largest of them."""
    needs = [copy_bytes(item.info) for item in items if item.write_copy]
    return sum(needs) + TEXT_BYTES * len(items), max(needs, default=0)


def _say_plan(options: CaptionOptions, work: Worklist, found: Found, to_describe: int) -> None:
    tally = Tally(found=found.count, skipped=list(found.skipped))
    print(summary.found_line(tally, len(found.infos), found.litter))
    for line in summary.skipped_lines(found.skipped, options.folder):
        print(line)
    tasks = [item.task for item in work.items]
    done, kept = tasks.count(DONE), tasks.count(KEEP)
    parts = [f"{tasks.count(DESCRIBE)} to caption"]
    if tasks.count(DESCRIBE) != to_describe:
        parts[0] += f" ({to_describe} by the model, the others are the same pictures)"
    parts += [f"{done} done already"] if done else []
    parts += [f"{kept} written or edited by hand and kept"] if kept else []
    if rest := len(tasks) - tasks.count(DESCRIBE) - done - kept:
        parts.append(f"{rest} to write from captions.jsonl")
    print(", ".join(parts))
    print(f"{'would write to' if options.dry_run else 'writing to'} {printable(options.output)}")
    for line in _warnings(work.items):
        print(line)
    beside = find_captions([info.path for info in found.infos])
    for line in summary.names(
        "these have a caption beside them in your folder, which stays there unused",
        [os.path.relpath(path, options.folder) for path, caption in beside.items() if caption],
    ):
        print(line)
    print(end="", flush=True)


def _warnings(items: Sequence[Item]) -> list[str]:
    small = [
        f"{item.source} ({item.info.width}x{item.info.height})"
        for item in items
        if not _is_trained(item.info)
    ]
    renamed = [
        f"{item.source} -> {item.file}"
        for item in items
        if item.stem != os.path.splitext(os.path.basename(item.source))[0]
    ]
    converted = [f"{item.source} ({', '.join(item.info.notes)})" for item in items if item.info.notes]
    return [
        *summary.names(
            f"too small or too long for training, which will skip them (at {TRAINING_SIZE} pixels a side "
            f"would be under {BUCKET_STEP})",
            small,
        ),
        *summary.names("copies under another name", renamed, summary.FEW),
        *summary.names("copies not as the file is", converted, 5),
    ]


def _is_trained(info: ImageInfo) -> bool:
    """Tell whether a picture finds a bucket, by the training plan's own rule."""
    try:
        fit(info.width, info.height, bucket_rule(TRAINING_SIZE))
    except ValueError:
        return False
    return True
