"""One file as a stream of bytes from an offset on: from http(s), from file:// or from a path.

What can go wrong has its own words: no network, a proxy, a certificate, a missing file, a busy server.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from noukii.errors import RunError
from noukii.names import printable

SILENCE_SECONDS = 60
"""A server that sends nothing for so long is given up."""
BUSY = (408, 425, 429, 500, 502, 503, 504)


class Passing(Exception):
    """A fault that may be gone at the next attempt; str() is the reason in plain words."""


class NothingLeft(Exception):
    """All bytes of the file are there already."""


class CannotResume(Exception):
    """The server does not go on in the middle, or the file behind the address is another one now."""


@dataclass(frozen=True)
class Answer:
    """What a source sends: the stream from the offset on, the whole file's size (-1: unknown) and its tag."""

    stream: BufferedReader
    total: int
    tag: str
    """Changes when the file does: ETag, or size and time of a local file"""


def is_remote(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def local_path(location: str) -> Path:
    """Return the path that a location without http names; raises RunError for another kind of URL."""
    if location.startswith("file://"):
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(location).path))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", location):
        raise RunError(shown(location), "is no http, https or file address", "give one of these, or a path")
    return Path(location)


def shown(location: str) -> str:
    """Return an address that may be printed: without user name, password and query."""
    if "://" not in location:
        return printable(location)
    try:
        parts = urllib.parse.urlsplit(location)
    except ValueError:
        return printable(location.rpartition("@")[2])
    host = parts.netloc.rpartition("@")[2]
    return printable(urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", "")))


@contextmanager
def opened(location: str, offset: int = 0, tag: str | None = None) -> Iterator[Answer]:
    """Open `location` at `offset`; `tag` is what an earlier answer had, None if it may be another now.

    Raises:
        CannotResume: `offset` is not 0 and the rest cannot be had.
        NothingLeft: the file ends at `offset`.
        Passing: a fault that may pass.
        RunError: one that will not.
    """
    if is_remote(location):
        with _remote(location, offset, tag) as answer:
            yield answer
    else:
        with _local(local_path(location), offset, tag) as answer:
            yield answer


def local_problem(path: Path) -> str:
    """Say why a local source cannot be read from beginning to end; empty if it can, as far as can be seen."""
    if path.is_file():
        return ""
    return f"{path} is no file" if path.exists() else f"{path} is not there"


def known_size(location: str) -> int:
    """Return the size of a local source, -1 for a remote one or one that is not there."""
    if is_remote(location):
        return -1
    try:
        return local_path(location).stat().st_size
    except (OSError, RunError):
        return -1


@contextmanager
def _local(path: Path, offset: int, tag: str | None) -> Iterator[Answer]:
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise RunError(path, f"cannot be read: {reason}", "check the path") from None
    with stream:
        state = os.fstat(stream.fileno())
        now = f"{state.st_size}-{state.st_mtime_ns}"
        if offset and (tag not in (None, now) or offset > state.st_size):
            raise CannotResume
        stream.seek(offset)
        yield Answer(stream, state.st_size, now)


@contextmanager
def _remote(url: str, offset: int, tag: str | None) -> Iterator[Answer]:
    check_proxy(url)
    plain, password = _split_password(url)
    request = urllib.request.Request(
        plain, headers={"User-Agent": "noukii-setup", "Accept-Encoding": "identity"}
    )
    if password:
        # Not sent on where the server leads to another one.
        request.add_unredirected_header("Authorization", f"Basic {password}")
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response = urllib.request.urlopen(request, timeout=SILENCE_SECONDS, context=_certificates())
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error, offset) from None
    except (OSError, http.client.HTTPException) as error:
        raise fault(url, error) from None
    except ValueError as error:
        raise RunError(shown(url), f"is not an address: {error}", "correct it") from None
    with response:
        total, now = _total(response), response.headers.get("ETag", "")
        if offset and (response.status != 206 or tag not in (None, now)):
            raise CannotResume
        yield Answer(response, total, now)


def _split_password(url: str) -> tuple[str, str]:
    """Return an address without its NAME:PASSWORD@, which urllib would take for a host, and that encoded."""
    parts = urllib.parse.urlsplit(url)
    given, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    text = urllib.parse.unquote(given) if ":" in given else urllib.parse.unquote(given) + ":"
    return parts._replace(netloc=host).geturl(), base64.b64encode(text.encode()).decode()


def _certificates() -> ssl.SSLContext:
    """The system's certificates; python.org's builds for macOS have none and get those that pip brought."""
    where = ssl.get_default_verify_paths()
    if where.cafile is None and not (where.capath and os.listdir(where.capath)):
        try:
            import certifi
        except ModuleNotFoundError:
            pass
        else:
            return ssl.create_default_context(cafile=certifi.where())
    return ssl.create_default_context()


def _total(response: http.client.HTTPResponse) -> int:
    if found := re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("Content-Range", "").strip()):
        return int(found[1])
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else -1


def _refused(url: str, error: urllib.error.HTTPError, offset: int) -> Exception:
    if error.code == 416 and offset:
        whole = error.headers.get("Content-Range", "").strip() == f"bytes */{offset}"
        return NothingLeft() if whole else CannotResume()
    if error.code in BUSY:
        return Passing(f"the server answers {error.code} ({error.reason})")
    where = shown(url)
    if error.code == 407:
        return RunError(where, f"{proxy_words()} wants a name and a password (407)", PROXY_STEP)
    if error.code in (401, 403):
        return RunError(
            where,
            f"the server refuses it ({error.code}); a proxy or a missing permission",
            "open the address in a browser on this machine, or name another source",
        )
    if error.code in (404, 410):
        return RunError(
            where, f"is not there ({error.code})", "name another source; ./setup.sh --help lists how"
        )
    return RunError(where, f"the server answers {error.code} ({error.reason})", "try again later")


PROXY_STEP = "set https_proxy to http://NAME:PASSWORD@HOST:PORT, or unset it if you need none"


def check_proxy(url: str) -> None:
    """Refuse a proxy that cannot be spoken to.

    Raises:
        RunError: the proxy set for `url` is a SOCKS proxy, or none at all.
    """
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not named or urllib.request.proxy_bypass(parts.hostname or ""):
        return
    address = named if "://" in named else f"http://{named}"
    try:
        proxy = urllib.parse.urlsplit(address)
        good = bool(proxy.hostname) and proxy.port != 0
    except ValueError:
        good = False
    if not good:
        raise RunError(proxy_words(), "is not a valid address", PROXY_STEP)
    if proxy.scheme not in ("http", "https"):
        raise RunError(proxy_words(), "is not an HTTP proxy, and no other kind can be used here", PROXY_STEP)


def proxy_words() -> str:
    """Name the proxy that is set, without its password."""
    proxies = urllib.request.getproxies()
    named = proxies.get("https") or proxies.get("http") or proxies.get("all")
    return f"the proxy {shown(named if '://' in named else 'http://' + named)}" if named else "a proxy"


def fault(url: str, error: BaseException) -> Exception:
    """Return a failed connection as Passing (try again) or RunError (it will not help), in plain words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    host = urllib.parse.urlsplit(url).hostname or url
    through = ""
    if urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        through = f" through {proxy_words()}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return RunError(
            shown(url),
            f"its certificate is not trusted{through}: {cause.verify_message}",
            "a company's proxy signs connections itself: set SSL_CERT_FILE to its certificate",
        )
    if isinstance(cause, socket.gaierror):
        return Passing(f"{host} is not found{through}: there is no network, or no name service")
    if isinstance(cause, ConnectionRefusedError):
        return Passing(f"{host} refuses the connection{through}")
    if isinstance(cause, TimeoutError):
        return Passing(f"{host} does not answer{through}")
    if isinstance(cause, OSError) and "Tunnel connection failed: 407" in str(cause):
        return RunError(shown(url), f"{proxy_words()} wants a name and a password (407)", PROXY_STEP)
    return Passing(
        f"the connection to {host} broke{through}: {printable(str(cause)) or type(cause).__name__}"
    )
