"""The pages in a real browser: nothing in the console, pictures load, filters, editing and saving work.

Skipped, and said so, where no Chromium is installed (NOUKII_BROWSER names one elsewhere; on Debian:
apt-get install chromium).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, find_browser
from PIL import Image
from test_apply import apply
from test_caption_folder import caption, options, picture
from test_report import finished  # noqa: F401
from test_review import LONG, add

from noukii.captioning.manifest import State
from noukii.captioning.own_files import OwnFiles
from noukii.report.report import write_report
from noukii.report.review import write_review
from noukii.report.sheet import write_sheet

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads: Path) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with Browser(program, downloads) as one:
        yield one


def shown(page: Page) -> list[str]:
    """The names on the cards that can be seen."""
    return page.js("[...document.querySelectorAll('.card:not([hidden]) .name')].map(one => one.textContent)")


def assert_sound(page: Page) -> None:
    """No complaint, every picture decoded, nothing wider than the window."""
    broken = page.js(
        "Promise.all([...document.images].map(one => one.decode().then(() => '', () => one.alt)))"
        ".then(all => all.filter(Boolean))"
    )
    assert broken == []
    assert page.js("[...document.images].every(one => one.naturalWidth > 0)")
    assert page.js("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.problems == []


def edit(page: Page, name: str, text: str) -> None:
    """Click on a caption and type over it."""
    card = (
        f"[...document.querySelectorAll('.card')].find(one => one.dataset.edit.includes({json.dumps(name)}))"
    )
    page.js(f"({card}).querySelector('.caption').click()")
    page.js("document.activeElement.select()")
    page.type(text)
    page.js("document.activeElement.closest('.editor').querySelector('[data-done]').click()")


@pytest.mark.parametrize("count", [0, 1, 200])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_folder_of_any_size_gives_a_sound_page(
    browser: Browser, tmp_path: Path, count: int, width: int
) -> None:
    for number in range(count):
        if number < 8:
            add(tmp_path, f"{number}.png", f"sat, {LONG} {number}", (96, 64))
        else:
            os.link(tmp_path / f"{number % 8}.png", tmp_path / f"{number}.png")
            (tmp_path / f"{number}.txt").write_text(f"sat, number {number}")
    page = browser.open(write_review(tmp_path), width, dark=width == 390)
    assert_sound(page)
    assert len(page.js("[...document.querySelectorAll('.card')].map(one => one.dataset.flags)")) == count


def test_filters_by_flag_and_by_word(browser: Browser, tmp_path: Path) -> None:
    add(tmp_path, "a barn.png", "sat, a red barn")
    add(tmp_path, "mill.png", "sat, a red mill", (1400, 600))
    add(tmp_path, "leaf.png", "sat, a green leaf", (300, 320))
    (tmp_path / "prompt_cue-sat.txt").write_text("red\n")
    page = browser.open(write_review(tmp_path, [("broken barn.jpg", "0 bytes")]))
    assert shown(page) == ["a barn.png", "leaf.png", "mill.png"]
    page.js("document.getElementById('word').focus()")
    page.type("RED bar")
    assert shown(page) == ["a barn.png"]
    assert page.js("document.getElementById('shown').textContent") == "1 of 3"
    page.js("document.querySelector('[data-word=red]').click()")
    assert shown(page) == ["a barn.png", "mill.png"]
    page.js("document.querySelector('[data-flag=extreme-aspect]').click()")
    assert shown(page) == ["mill.png"]
    page.js("document.querySelector('[data-flag=small]').click()")
    assert shown(page) == []
    assert page.js("!document.getElementById('nothing').hidden")
    page.js(
        "document.querySelectorAll('[data-flag]').forEach(one => one.ariaPressed === 'true' && one.click())"
    )
    page.js("document.querySelector('[data-flag=skipped]').click()")
    page.js("document.getElementById('word').select()")
    page.type("barn")
    assert shown(page) == []
    assert page.js("document.querySelector('#skipped tbody').innerText").split("\t") == [
        "broken barn.jpg",
        "0 bytes",
    ]
    assert page.problems == []


def test_markup_in_captions_and_names_stays_text(browser: Browser, tmp_path: Path) -> None:
    owned = "document.title='owned'"
    evil = f'sat </script><script>{owned}</script><img src=x onerror="{owned}"> \u2028 end'
    add(tmp_path, "<img src=x onerror=alert(1)>.png", evil)
    (tmp_path / "prompt_cue-sat.txt").write_text("<script>document.title='owned'\n")
    page = browser.open(write_review(tmp_path, [(evil, evil)]))
    assert page.js("document.title") == f"{tmp_path.name} · captions" or "owned" not in page.js(
        "document.title"
    )
    assert page.js("document.querySelector('.caption').textContent") == " ".join(evil.split())
    edit(page, "onerror", "sat, <script>document.title='owned'</script>")
    assert page.js("document.querySelector('.caption').textContent").startswith("sat, <script>")
    assert "owned" not in page.js("document.title")
    assert_sound(page)


def test_an_edit_in_the_page_comes_back_into_the_folder(
    browser: Browser, downloads: Path, tmp_path: Path
) -> None:
    source = tmp_path / "raw"
    names = ["a.png", "b.png", "c é 日本.png"]
    for number, name in enumerate(names, 1):
        picture(source / name, number)
    wishes = options(source)
    caption(wishes)
    folder = wishes.output
    with OwnFiles(folder, State.read(folder)).writing("review.html"):
        write_review(folder)
    page = browser.open(folder / "review.html", 390)
    before = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    assert page.js("document.getElementById('save').hidden")
    edit(page, "a.png", 'tomcat, "quoted" \\ <b> é 日本 🐈')
    edit(page, "b.png", "tomcat, undone again")
    page.js("[...document.querySelectorAll('.card')][1].querySelector('[data-undo]').click()")
    assert page.js("document.getElementById('changes').textContent") == "1 caption edited, not saved yet"
    edit(page, "c \\u00e9", "tomcat, \u2028 three")
    edit(page, "b.png", " ")  # an empty caption is not saved
    assert page.js("document.getElementById('changes').textContent") == "2 captions edited, not saved yet"
    page.js("document.getElementById('word').value = 'quoted'; filter()")
    assert shown(page) == ["a.png"], "the filter sees the new text"
    page.js("document.getElementById('download').click()")
    begun = browser.wait_for_event("Browser.downloadWillBegin")
    assert begun["suggestedFilename"] == "captions.jsonl"
    browser.wait_for_event("Browser.downloadProgress", guid=begun["guid"], state="completed")
    assert page.js("document.getElementById('changes').textContent") == "2 captions saved to captions.jsonl"
    assert page.problems == []

    assert apply(downloads / "captions.jsonl", folder) == 0
    after = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    changed = {name: text for name, text in after.items() if before[name] != text}
    changed.pop("prompt_cue-tomcat.txt", None)  # made anew from the captions
    assert changed == {"a.txt": 'tomcat, "quoted" \\ <b> é 日本 🐈', "c é 日本.txt": "tomcat, three"}
    page = browser.open(folder / "review.html")
    assert "hand-edited" in page.js("document.querySelector('.card').dataset.flags")
    assert_sound(page)


def test_a_name_that_is_not_utf_8_survives_the_page(browser: Browser, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        add(tmp_path, name, "sat, a bar")
    except OSError:
        pytest.skip("this file system refuses such names")
    page = browser.open(write_review(tmp_path))
    edit(page, "caf", "sat, a café")
    assert [json.loads(line) for line in page.js("content()").splitlines()] == [
        {"file": name, "caption": "sat, a café", "before": "sat, a bar"}
    ]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_is_sound(browser: Browser, finished: Path, width: int) -> None:  # noqa: F811
    assert_sound(browser.open(write_report(finished), width, dark=width == 390))


def test_an_empty_run_s_report_is_sound(browser: Browser, tmp_path: Path) -> None:
    assert_sound(browser.open(write_report(tmp_path), 390))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_checkpoint_sheet_is_sound(browser: Browser, tmp_path: Path, width: int) -> None:
    evil = "<img src=x onerror=alert(1)> a prompt of many words, that has to be wrapped more than once"
    pictures = [
        [Image.new("RGB", (64, 96), (90 * row, 60, 90 * place)) for place in (0, 1)] for row in (0, 1, 2)
    ]
    rows = ["base model", "step 20, strength 1", "finished, strength 1"]
    page, picture = write_sheet(tmp_path, "<b>run", rows, [evil, "short"], pictures, "step 20,")
    opened = browser.open(page, width, dark=width == 390)
    assert_sound(opened)
    assert opened.js("document.querySelector('h1').textContent") == "<b>run"
    assert opened.js("document.querySelectorAll('thead th')[1].textContent") == evil
    tagged = "[...document.querySelectorAll('tbody th')].map(one => !!one.querySelector('.tag'))"
    assert opened.js(tagged) == [False, True, False]
    assert Image.open(picture).size[0] > 2 * 128
