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


def test_a_page_that_stays_open_is_saved_and_applied_again(browser: Browser, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    picture(source / "a.png", 1)
    picture(source / "b.png", 2)
    wishes = options(source)
    caption(wishes)
    folder = wishes.output
    first = {name: (folder / f"{name}.txt").read_text(encoding="utf-8") for name in "ab"}
    page = browser.open(write_review(folder))
    card = "[...document.querySelectorAll('.card')]"

    def save_and_apply(number: int) -> None:
        page.js("document.getElementById('download').click()")
        assert page.js("document.getElementById('changes').textContent").endswith("saved to captions.jsonl")
        (tmp_path / f"{number}.jsonl").write_text(page.js("content()"), encoding="utf-8")
        assert apply(tmp_path / f"{number}.jsonl", folder) == 0

    edit(page, "a.png", "tomcat, once")
    assert page.js("document.getElementById('numbered').hidden")
    save_and_apply(1)
    assert page.js("!document.getElementById('numbered').hidden"), "the next download has another name"
    edit(page, "a.png", "tomcat, twice")
    edit(page, "b.png", "tomcat, b")
    assert page.js("document.getElementById('changes').textContent") == "2 captions edited, not saved yet"
    save_and_apply(2)
    assert [(folder / f"{name}.txt").read_text() for name in "ab"] == ["tomcat, twice", "tomcat, b"]
    page.js(f"{card}[0].querySelector('[data-undo]').click()")
    save_and_apply(3)
    assert (folder / "a.txt").read_text(encoding="utf-8") == first["a"], "taken back after it was written"
    assert (folder / "b.txt").read_text() == "tomcat, b"
    assert page.problems == []


def test_signs_that_no_caption_may_hold_do_not_leave_the_page(browser: Browser, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    picture(source / "a.png", 1)
    wishes = options(source)
    caption(wishes)
    page = browser.open(write_review(wishes.output))
    page.js("document.querySelector('.caption').click()")
    page.js(
        "(area => { area.value = 'tomcat,\\u0007 bell\\u0000\\u0085 \\ud800half\\u001b[31m';"
        " area.dispatchEvent(new Event('input')) })(document.querySelector('textarea'))"
    )
    (tmp_path / "e.jsonl").write_text(page.js("content()"), encoding="utf-8")
    assert apply(tmp_path / "e.jsonl", wishes.output) == 0
    assert (wishes.output / "a.txt").read_text() == "tomcat, bell half [31m"


def test_a_word_that_was_counted_finds_the_captions_that_were_counted(
    browser: Browser, tmp_path: Path
) -> None:
    for number, said in enumerate(("a carpet", "a car", "two cars", "a cart", "a big car, red", "red")):
        add(tmp_path, f"{number}.png", f"sat, {said}")
    (tmp_path / "prompt_cue-sat.txt").write_text("car\ncars\nbig red\nnowhere\n")
    page = browser.open(write_review(tmp_path))
    shares = page.js("[...document.querySelectorAll('.share')].map(one => one.textContent)")
    assert shares == ["50 %", "50 %", "0 %", "0 %"]
    for cue, names in (("car", ["1.png", "2.png", "4.png"]), ("big red", []), ("nowhere", [])):
        page.js(f"document.querySelector('[data-word={json.dumps(cue)}]').click()")
        assert shown(page) == names
    page.js("document.getElementById('word').value = 'car '; filter()")
    assert len(shown(page)) == 5, "typed letters are found anywhere"
    page.js("document.getElementById('word').value = ''; filter()")
    edit(page, "5.png", "sat, a car")
    page.js("document.querySelector('[data-word=car]').click()")
    assert shown(page) == ["1.png", "2.png", "4.png", "5.png"]
    assert page.problems == []


def test_an_accent_is_found_however_it_was_typed(browser: Browser, tmp_path: Path) -> None:
    add(tmp_path, "1.png", "sat, a cafe\u0301")
    add(tmp_path, "2.png", "sat, a CAF\u00c9")
    add(tmp_path, "3.png", "sat, a cafe")
    page = browser.open(write_review(tmp_path))
    for typed in ("caf\u00e9", "cafe\u0301"):
        page.js(f"document.getElementById('word').value = {json.dumps(typed)}; filter()")
        assert shown(page) == ["1.png", "2.png"]


def test_the_keyboard_edits_a_caption_and_goes_on_from_there(browser: Browser, tmp_path: Path) -> None:
    add(tmp_path, "1.png", "sat, one")
    add(tmp_path, "2.png", "sat, two")
    page = browser.open(write_review(tmp_path))

    def press(key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    page.js("document.querySelectorAll('.caption')[1].focus()")
    press("Enter", 13)
    assert page.js("document.activeElement.getAttribute('aria-label')") == "Caption of 2.png"
    page.type("sat, mine and ")
    press("Tab", 9)
    assert page.js("document.activeElement.textContent") == "Done"
    press("Enter", 13)
    assert page.js("document.activeElement === document.querySelectorAll('.caption')[1]")
    assert "sat, mine and" in page.js("document.activeElement.textContent")
    named = "one.textContent.trim() || one.getAttribute('aria-label') || one.alt"
    parts = "[...document.querySelectorAll('button, input, textarea, summary, img, [tabindex]')]"
    assert page.js(f"{parts}.filter(one => !({named})).map(one => one.outerHTML)") == []


def test_the_pages_on_paper_are_light_and_break_no_card(
    browser: Browser,
    finished: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a b#c?d%20e"  # and a path that a careless address would cut off
    folder.mkdir()
    add(folder, "1.png", "sat, one")
    for path, kept in ((write_review(folder), ".card"), (write_report(finished), "figure")):
        page = browser.open(path, dark=True)
        dark = page.js("getComputedStyle(document.body).backgroundColor")
        page.call("Emulation.setEmulatedMedia", media="print",
                  features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip
        assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)" != dark
        broken = f"getComputedStyle(document.querySelector({json.dumps(kept)})).breakInside"
        assert page.js(broken) == "avoid"
        assert page.js("[...document.querySelectorAll('.on-screen')].every(one => !one.offsetHeight)")
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
    if width == 1280:  # four columns fit into a common window
        six = write_sheet(tmp_path, "r", rows[:1], ["short", evil, "w" * 300, "x"], [pictures[0] * 2])[0]
        opened = browser.open(six, width)
        scrolls = "(one => one.scrollWidth - one.clientWidth)(document.querySelector('.scroll'))"
        assert opened.js(scrolls) == 0
        opened = browser.open(write_sheet(tmp_path, "<b>run", rows, [evil, "short"], pictures, "step 20,")[0])
    assert opened.js("document.querySelectorAll('thead th')[1].textContent") == evil
    tagged = "[...document.querySelectorAll('tbody th')].map(one => !!one.querySelector('.tag'))"
    assert opened.js(tagged) == [False, True, False]
    assert Image.open(picture).size[0] > 2 * 128
