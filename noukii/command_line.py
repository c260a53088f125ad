"""What every command of ours shares: its argument parser, its exit codes, its streams."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from noukii.errors import InputError, NoukiiError
from noukii.names import printable


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations; an unknown flag is refused with the nearest known one."""

    def __init__(self, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)  # type: ignore[arg-type]

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise self.unknown_argument(unknown[0])
        return parsed

    def unknown_argument(self, argument: str) -> InputError:
        """Return the refusal of an argument that this command does not take."""
        flag = argument.split("=")[0]
        near = nearest(flag, [option for action in self._actions for option in action.option_strings])
        kind = "is not a flag of this command" if flag.startswith("-") else "was not expected"
        return InputError(
            flag, kind, f"did you mean {near}?" if near else f"{self.prog} --help lists the flags"
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(self.prog, printable(message), f"{self.prog} --help shows how it is called")


def nearest(word: str, known: list[str]) -> str | None:
    """Return the entry of `known` that is most like `word`, or None if none is close."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


def run_command(main: Callable[[list[str]], int], arguments: list[str] | None = None) -> int:
    """Run `main` and turn our own errors into one message and an exit code (2, 1 or 130)."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return main(sys.argv[1:] if arguments is None else arguments)
    except NoukiiError as error:
        print(f"\n{error}" if sys.stderr.isatty() else f"{error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on where this one ended", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("noukii"):
            raise
        print(
            NoukiiError(
                sys.executable,
                f"this Python lacks the package {error.name}",
                "use .venv/bin/python of the checkout (any of the ./run_*.sh commands makes it)",
            ),
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS):
            where = printable(error.filename) if error.filename else "disk"
            print(
                NoukiiError(where, os.strerror(error.errno), "free space or rights there, then run it again"),
                file=sys.stderr,
            )
            return 1
        raise
