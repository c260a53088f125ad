"""What every command of ours shares: its argument parser, its exit codes, its streams."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO

from noukii.early_stop import hand_over, stop_quietly_until_started
from noukii.errors import InputError, NoukiiError
from noukii.names import printable
from noukii.steady_output import SteadyOutput, lead_to_nowhere


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
        known = [option for action in self._actions for option in action.option_strings]
        if flag.startswith("--"):
            known = [option for option in known if option.startswith("--")]  # never -h for --ah
        near = nearest(flag, known)
        kind = "is not a flag of this command" if flag.startswith("-") else "was not expected"
        return InputError(
            flag, kind, f"did you mean {near}?" if near else f"{self.prog} --help lists the flags"
        )

    def error(self, message: str) -> NoReturn:
        raise plain_words(self.prog, message)


_KINDS = {"int": "a whole number", "float": "a number", "Path": "a path"}
_NOT_A_VALUE = re.compile(r"invalid (\w+) value: (.*)", re.DOTALL)
_NOT_A_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)", re.DOTALL)


def plain_words(program: str, message: str) -> InputError:
    """Return argparse's `message` in words for people who do not program."""
    step = f"{program} --help shows how it is called"
    about = re.fullmatch(r"argument ([^:]*): (.*)", message, re.DOTALL)
    if about is None:
        return InputError(program, printable(message), step)
    flag, reason = about[1].split("/")[0], about[2]
    if found := _NOT_A_VALUE.fullmatch(reason):
        kind = _KINDS.get(found[1], "what is wanted here")
        return InputError(f"{flag} {_unquoted(found[2])}", f"is not {kind}", step)
    if found := _NOT_A_CHOICE.fullmatch(reason):
        choices = ", ".join(_unquoted(choice) for choice in found[2].split(", "))
        return InputError(f"{flag} {_unquoted(found[1])}", "is not possible", f"choose from {choices}")
    if reason.startswith("expected"):  # one argument, at least one argument
        return InputError(flag, "needs a value behind it", step)
    if reason.startswith("ignored explicit argument"):
        return InputError(flag, "takes no value", step)
    return InputError(flag, printable(reason), step)


def _unquoted(text: str) -> str:
    """Return what argparse shows with repr() or not, depending on the version of Python."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return printable(text[1:-1] if quoted else text)


def nearest(word: str, known: list[str]) -> str | None:
    """Return the entry of `known` that is most like `word`, or None if none is close."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


def run_command(main: Callable[[list[str]], int], arguments: list[str] | None = None) -> int:
    """Run `main` and turn our own errors into one message and an exit code (2, 1 or 130).

    Output that nobody takes any more (`| head -1`, a full disk) does not end `main`: see SteadyOutput.
    """
    early = hand_over()
    out, err = sys.stdout, sys.stderr
    try:
        sys.stdout, sys.stderr = _steady(out, 1), _steady(err, 2)
        code = _coded(main, sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        lost = getattr(sys.stdout, "problem", "")
        return 1 if lost and code == 0 else code
    finally:
        sys.stdout, sys.stderr = out, err
        if early:
            stop_quietly_until_started()


def _steady(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:  # the command was started with it closed; else the next file would get its number
        try:
            os.fstat(number)
        except OSError:
            lead_to_nowhere(number)
        stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    return SteadyOutput(stream, number)  # type: ignore[return-value]


def _coded(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:  # argparse, after --help
        if isinstance(ended.code, str):
            raise
        return ended.code or 0
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
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS):
            where = printable(error.filename) if error.filename else "disk"
            print(
                NoukiiError(where, os.strerror(error.errno), "free space or rights there, then run it again"),
                file=sys.stderr,
            )
            return 1
        raise
