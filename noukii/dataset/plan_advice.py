"""What a plan warns of beside its captions, each with a remedy: pure functions on a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noukii.dataset.caption_check import plural
from noukii.names import printable

if TYPE_CHECKING:
    from noukii.dataset.plan import Plan, PlannedSet

FEW_IMAGES = 8
"""Below this number a LoRA learns the pictures instead of their subject."""

DROWNED = 0.2
"""A data set with less than this share of its fair part of the samples leaves hardly a trace."""

NAMED = 4


def advice(plan: Plan) -> list[str]:
    """Return what is likely to make the LoRA worse than it could be."""
    said = [line for each in plan.sets for line in _of_set(each)]
    said += _drowned(plan)
    said += _lone(plan)
    return said


def _of_set(each: PlannedSet) -> list[str]:
    count, name = len(each.images), each.data_set.name
    said = []
    if count < FEW_IMAGES:
        said.append(
            f"{name}: {plural(count, 'image')} {'are' if count > 1 else 'is'} few, and are learned by heart;"
            " 15 to 50 in varied places are usual: add some, or train fewer steps and look at the samples"
        )
    without = each.captions.without_keyword
    if 0 < len(without) <= each.captions.found / 2:  # more than half: the captions' own warning says so
        names = ", ".join(printable(path.name) for path in without[:NAMED])
        more = " …" if len(without) > NAMED else ""
        said.append(
            f"{name}: {plural(len(without), 'caption')} without the trigger '{each.data_set.keyword}'"
            f" ({names}{more}); write it in front, so that those images are learned under it too"
        )
    return said


def _drowned(plan: Plan) -> list[str]:
    """Name the data sets that the repeats of the others leave hardly any share."""
    if len(plan.sets) < 2:
        return []
    fair = plan.samples_per_epoch / len(plan.sets)
    said = []
    for each in plan.sets:
        if each.samples >= DROWNED * fair:
            continue
        others = [other.samples for other in plan.sets if other is not each]
        wanted = max(1, round(sum(others) / len(others) / max(1, len(each.images))))
        said.append(
            f"{each.data_set.name}: {each.samples} of {plan.samples_per_epoch} samples per epoch; the repeats"
            f" of the other data sets drown it; with {plural(wanted, 'repeat')} it has about as much weight"
            " (--repeats behind its --dataset, or the number that starts its name)"
        )
    return said


def _lone(plan: Plan) -> list[str]:
    """Name the buckets with one image: a batch of it holds the same picture several times."""
    images = sum(len(each.images) for each in plan.sets)
    if plan.batch_size == 1 or images < 2 or not plan.lone:
        return []
    named = ", ".join(f"{printable(name)} ({bucket})" for bucket, name in plan.lone[:NAMED])
    more = f" and {len(plan.lone) - NAMED} more" if len(plan.lone) > NAMED else ""
    return [
        f"{plural(len(plan.lone), 'bucket')} with one image: {named}{more}; its batches hold nothing else, so"
        " that it is learned by heart sooner: crop it to the shape of others, or give --batch-size 1"
    ]
