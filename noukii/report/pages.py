"""Pages from templates: one Jinja2 environment, streamed to disk, written whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup

from noukii import files
from noukii.names import printable
from noukii.report import readable

TEMPLATES = Path(__file__).resolve().parent / "templates"

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that HTML forbids, and halves of surrogate pairs, which UTF-8 cannot hold."""


def write_page(target: Path, template: str, **values: object) -> Path:
    """Render `template` with `values` into `target` and return `target`.

    The page is written piece by piece as the template makes it, so that a page of megabytes of
    pictures needs the memory of one picture. Text is escaped; only `Markup` is taken as HTML.
    """
    pieces = _environment().get_template(template).generate(**values)
    with files.whole_file(target) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as page:
        page.writelines(pieces)
        page.flush()
    return target


def clean(value: object) -> object:
    """Return text without characters that a page cannot hold; anything else as it is."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub(lambda found: printable(found.group()), value)
    return value


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        printable=printable,
        counted=readable.counted,
        percent=readable.percent,
        rounded=readable.rounded,
        duration=readable.duration,
        file_size=readable.file_size,
        moment=readable.moment,
        exact=exact,
    )
    return environment


def exact(value: float | int | None) -> Markup | str:
    """Return a number short enough to read, with all of its digits kept in the element's value."""
    if value is None:
        return "–"
    return Markup('<data value="{}">{}</data>').format(repr(value), readable.number(value))
