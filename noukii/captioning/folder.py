"""A folder of images in, a captioned folder out: `caption_folder` is the whole job.

1. Look at every image, the output folder, the disk and the model's files: no model is loaded (R4).
2. Lock the output folder, see again what is there, load the model if anything is left for it.
3. Batch by batch: image, manifest line, caption. A kill at any point loses the running batch only.
4. Key concepts, review page, summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from noukii.captioning import summary
from noukii.captioning.janus_files import JanusFiles, check_model
from noukii.captioning.manifest import ENOUGH, HAND, Entry, Manifest, State
from noukii.captioning.model_id import model_id
from noukii.captioning.options import PROGRAM, CaptionOptions
from noukii.captioning.summary import Tally
from noukii.captioning.survey import Found, check, check_keyword_length, compare, identity, look
from noukii.captioning.worklist import (
    DESCRIBE,
    DONE,
    KEEP,
    WRITE,
    Item,
    Worklist,
    caption_settings,
    made_with,
    make_worklist,
)
from noukii.captioning.writer import GO_ON, Writer
from noukii.clip_tokens import ClipTokenizer
from noukii.dataset.images import Skipped, UnusableImage, list_images, open_image
from noukii.dataset.near_duplicates import near_duplicates
from noukii.disk import write_failure
from noukii.errors import Interrupted, RunError
from noukii.lock import folder_lock
from noukii.names import printable
from noukii.progress import Progress
from noukii.stop import StopSignal

if TYPE_CHECKING:
    from PIL.Image import Image

    from noukii.captioning.janus import Janus


def caption_folder(options: CaptionOptions) -> int:
    """Caption `options.folder` and return the exit code.

    Raises:
        InputError: something is wrong with the folders, the model's files or the wishes; nothing was written.
        RunError: a write failed, memory ran out, or no image was left; what was done is kept.
        Interrupted: the user stopped the run; what was done is kept.
    """
    with StopSignal("stopping: finished captions are saved; press Ctrl-C again to stop at once") as stop:
        options = replace(options, model_id=model_id(options.model))
        found = look(options, stop)
        tokenizer = ClipTokenizer.bundled()
        check_keyword_length(options, tokenizer)
        work = compare(options, found)
        model = check(options, work, found)
        if options.dry_run:
            return 0
        with folder_lock(options.output, f"{PROGRAM} {printable(options.folder)}"):
            return _run(options, found, model, tokenizer, stop)


def _run(
    options: CaptionOptions,
    found: Found,
    model: JanusFiles | None,
    tokenizer: ClipTokenizer,
    stop: StopSignal,
) -> int:
    """Do the work in the locked output folder."""
    manifest, state = Manifest.read(options.output), State.read(options.output)
    input_id = identity(options.folder)
    work = make_worklist(options, found.infos, manifest, state, input_id)
    groups = work.to_describe()
    janus = _load(options, model or check_model(options.model)) if groups else None
    writer = Writer(options, manifest, state, input_id, tokenizer)
    tally = _tally(options, found, work, manifest)
    if not stop.requested:
        writer.begin(work)
        try:
            _write_known(options, work, writer, tokenizer, tally, stop)
            if janus is not None and not stop.requested:
                _write_new(options, janus, groups, writer, tokenizer, tally, stop)
        finally:
            writer.abandon(work.items)
    if stop.requested:
        raise Interrupted(
            options.output,
            f"stopped; {tally.used} of {len(work.items)} captions are there",
            "the same command goes on from here",
        )
    if not tally.used:
        raise RunError(options.folder, "no image could be used", "see the reasons above")
    _finish(options, found, work, writer, tally)
    return 0


def _load(options: CaptionOptions, files_of_model: JanusFiles) -> Janus:
    from noukii.captioning import janus as room
    from noukii.captioning.captioner import check_length

    print(f"loading {printable(files_of_model.name)} …", flush=True)
    device = room.choose_device(options.device)
    loaded = room.load(files_of_model, device, room.choose_dtype(device, options.dtype))
    check_length(loaded, options)
    return loaded


def _tally(options: CaptionOptions, found: Found, work: Worklist, manifest: Manifest) -> Tally:
    settings = caption_settings(options)
    tally = Tally(found=found.count, skipped=list(found.skipped), gone=work.gone)
    for item in work.items:
        tally.notes += [f"{printable(item.source)}: {note}" for note in item.notes]
        if item.task == DONE and not item.write_copy:
            tally.unchanged += 1
            if item.entry is not None and not made_with(item.entry, settings):
                tally.older_settings += 1
    if manifest.damaged:
        tally.notes.append(f"captions.jsonl: {manifest.damaged} lines are not ours; a copy is kept beside it")
    return tally


def _write_known(
    options: CaptionOptions,
    work: Worklist,
    writer: Writer,
    tokenizer: ClipTokenizer,
    tally: Tally,
    stop: StopSignal,
) -> None:
    """Do everything that needs no model."""
    pending = {item.source for item in work.without_model()}
    for item in work.items:
        if stop.requested:
            return
        if item.source in pending:
            try:
                entry = writer.without_model(item, work.answers.get(item.info.sha256))
            except UnusableImage as error:
                tally.skipped.append(Skipped(item.info.path, str(error)))
                continue
            _note_users_work(writer, item, entry, tally)
        if item.task == KEEP:
            tally.by_hand.append(item.file)
            if tokenizer.count(item.hand_text) > options.max_caption_tokens:
                tally.over_limit.append(item.file)
        elif item.source in pending and item.task != DONE and entry.finish_reason == HAND:
            tally.by_hand.append(item.file)
        elif item.source in pending and item.task == DESCRIBE:
            tally.made += 1
        elif item.source in pending:
            tally.restored += 1
            tally.rewritten += item.task == WRITE


def _write_new(
    options: CaptionOptions,
    janus: Janus,
    groups: Sequence[Sequence[Item]],
    writer: Writer,
    tokenizer: ClipTokenizer,
    tally: Tally,
    stop: StopSignal,
) -> None:
    """Have the model describe the images that have no caption yet."""
    from noukii.captioning.captioner import describe_all
    from noukii.captioning.preprocess import square
    from noukii.captioning.wording import is_full

    problems: dict[str, str] = {}

    def prepare(group: Sequence[Item]) -> Image:
        """Write the copies and return what the model looks at: the very file that is trained on."""
        picture = None
        for item in group:
            try:
                copy = writer.copy_image(item)
                picture = picture or square(open_image(copy), janus.pixels)
            except UnusableImage as error:
                problems[item.source] = str(error)
        if picture is None:
            raise UnusableImage(problems[group[0].source])
        return picture

    def full(text: str) -> bool:
        return is_full(text, options.keyword, tokenizer, options.max_caption_tokens)

    enough = None if options.raw_captions else full
    with Progress("captioning", sum(len(group) for group in groups), "images") as progress:
        for described in describe_all(janus, groups, prepare, options, stop, progress.say, enough):
            for item in described.items:
                if described.answer is None or item.source in problems:
                    reason = problems.get(item.source, described.problem)
                    tally.skipped.append(Skipped(item.info.path, reason))
                    progress.say(f"skipped {printable(item.source)}: {reason}")
                    continue
                answer = described.answer
                entry = writer.describe(
                    item, answer.text, answer.finish_reason, answer.tokens, described.seconds
                )
                _note_users_work(writer, item, entry, tally)
                _count(options, entry, tally)
                if answer.finish_reason == ENOUGH:
                    tally.ended_early += 1
                    tally.early_tokens += answer.tokens
            progress.advance(len(described.items))


def _note_users_work(writer: Writer, item: Item, entry: Entry, tally: Tally) -> None:
    """Say what the user did to an image of the output folder while the run went on."""
    if item.task != KEEP and item.task != DONE and entry.finish_reason == HAND:
        tally.notes.append(f"{printable(entry.file)}: its caption was written while this ran, and is kept")
    if writer.was_kept(item):
        tally.notes.append(f"{printable(entry.file)}: the image was edited while this ran, and is kept")


def _count(options: CaptionOptions, entry: Entry, tally: Tally) -> None:
    """Add a new caption, and what is odd about it, to the summary."""
    if entry.finish_reason == HAND:
        tally.by_hand.append(entry.file)
        return
    tally.made += 1
    if entry.clip_tokens > options.max_caption_tokens:
        tally.over_limit.append(entry.file)
    if entry.finish_reason == "length":
        tally.cut_off.append(entry.file)
    if not entry.raw.strip() or entry.caption == options.keyword:
        tally.wordless.append(entry.file)


def _finish(
    options: CaptionOptions,
    found: Found,
    work: Worklist,
    writer: Writer,
    tally: Tally,
) -> None:
    """Write what belongs to the whole folder, and the summary."""
    from noukii.report.review import PAGE, write_review

    captions = writer.captions()
    tally.concepts, kept = writer.write_prompt_cue(captions.values())
    if kept:
        tally.notes.append(
            f"prompt_cue-{options.keyword}.txt was edited and is kept; delete it for a new one"
        )
    if not options.raw_captions:
        tally.without_keyword = [
            name for name, text in captions.items() if not summary.begins_with(text, options.keyword)
        ]
    writer.finish(work)
    lines = []
    if len(tally.skipped) > summary.NAMED:
        lines = summary.skipped_lines(tally.skipped, options.folder, len(tally.skipped))
    tally.log = writer.write_log(summary.SKIPPED_LOG, [line.strip() for line in lines])
    alike = near_duplicates(list_images(options.output).images)
    tally.alike = [[path.name for path in group] for group in alike]
    skipped = writer.skipped(tally.skipped)
    if writer.own.is_free(PAGE):
        try:
            with writer.own.writing(PAGE):
                write_review(options.output, skipped, alike)
        except OSError as error:
            raise write_failure(options.output / PAGE, error, GO_ON) from None
        tally.page = PAGE
    else:
        tally.notes.append(
            f"{PAGE} is not as this command writes it and is kept; move it away to get the page"
        )
    print("\n".join(["", *summary.end_lines(tally, options, found.litter)]), flush=True)
