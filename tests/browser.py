"""A headless Chromium for tests, driven by the DevTools protocol over a pipe: no package, port or network.

with Browser(find_browser(), tmp_path) as browser:
    page = browser.open(path_of_a_page, width=390, height=800)
    assert page.js("document.title") == "..."
    assert page.problems == []
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LONGEST_WAIT = 120.0
"""Seconds after which a browser that does not answer counts as hung."""

# The pipe's ends must be descriptors 3 and 4 of the browser, whatever numbers they have here.
_STARTER = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"  # noqa: E501


def find_browser() -> str | None:
    """Return the Chromium of this machine: NOUKII_BROWSER, else one on the PATH; None if there is none."""
    named = os.environ.get("NOUKII_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process with a profile of its own; pages are opened one after the other."""

    def __init__(self, program: str, downloads: Path) -> None:
        self._downloads = downloads
        self._profile = tempfile.mkdtemp(prefix="noukii-browser-")
        to_read, self._write = (_high(end) for end in os.pipe())
        self._read, to_write = (_high(end) for end in os.pipe())
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
            "--disable-component-update", "--force-color-profile=srgb", f"--user-data-dir={self._profile}",
        ]  # fmt: skip
        starter = [sys.executable, "-c", _STARTER, str(to_read), str(to_write)]
        self._process = subprocess.Popen(
            [*starter, program, *flags, "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)  # the browser ends when its pipe does
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a file in a window of that size and wait until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, width)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self._downloads),
                  eventsEnabled=True)  # fmt: skip
        page.call("Page.navigate", url=path.absolute().as_uri())
        page.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; what else arrives is kept in `events`."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LONGEST_WAIT
        while True:
            answer = self._receive(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for_event(self, method: str, **wanted: Any) -> dict[str, Any]:
        """Return the first event of that name with these parameters, now or later."""
        until = time.monotonic() + LONGEST_WAIT
        seen = 0
        while True:
            for event in self.events[seen:]:
                found = event.get("params", {})
                if event.get("method") == method and all(found.get(k) == v for k, v in wanted.items()):
                    return found
            seen = len(self.events)
            self.events.append(self._receive(until))

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._read, 1 << 20) if ready else b""
            if not block:
                raise RuntimeError(f"the browser does not answer (its status: {self._process.poll()})")
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, width: int) -> None:
        self._browser, self._session, self._width = browser, session, width

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def js(self, expression: str) -> Any:
        """Evaluate an expression in the page and return its value; an exception there is one here."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + LONGEST_WAIT
        while not self.js(condition):
            if time.monotonic() > until:
                raise RuntimeError(f"never true: {condition}")

    def type(self, text: str) -> None:
        """Type into what has the focus, as a keyboard does."""
        self.call("Input.insertText", text=text)

    @property
    def problems(self) -> list[str]:
        """Console errors and warnings, exceptions, and every request for something outside the page."""
        self.js("0")  # whatever the page had to say has arrived after this
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            what, told = event["method"], event["params"]
            if what == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"]))
            elif what == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(told["args"]))
            elif what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(json.dumps(told["entry"]))
            elif what == "Network.requestWillBeSent":
                address = told["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:")):
                    found.append(f"asks for {address}")
        return found

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        """Write a PNG of the page from top to bottom (or of the window)."""
        if whole:
            for _ in range(2):  # cards out of sight have a guessed height until they are in it
                height = min(self.js("document.documentElement.scrollHeight"), 12_000)
                self.call(
                    "Emulation.setDeviceMetricsOverride", width=self._width, height=height,
                    deviceScaleFactor=1, mobile=self._width < 600,
                )  # fmt: skip
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))
        return path


def _high(descriptor: int) -> int:
    """Return a copy of a descriptor that is out of the way of 3 and 4; closes the old one."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


def main() -> None:
    """Take a picture: python tests/browser.py PAGE PICTURE.png [--width 1280] [--height 900] [--dark]."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, help="of the window; the whole page if it is not given")
    parser.add_argument("--dark", action="store_true")
    wishes = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("no Chromium on this machine (apt-get install chromium)")
    with Browser(program, wishes.picture.parent) as browser:
        page = browser.open(wishes.page, wishes.width, wishes.height or 900, wishes.dark)
        page.screenshot(wishes.picture, whole=wishes.height is None)


if __name__ == "__main__":
    main()
