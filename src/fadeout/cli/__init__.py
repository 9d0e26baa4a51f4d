"""The command line. Names here are the names in the code."""

import contextlib
import difflib
import io
import os
import pkgutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

from fadeout import __version__, _interrupt
from fadeout._checks import MissingExtraError, extra
from fadeout._tables import printable

COMMANDS = {
    "demo": "demo:demo",
    "inspect": "networks:inspect",
    "compact": "networks:compact",
    "export": "networks:export",
    "data": "data:data",
    "list": "experiments:show",
    "run": "experiments:run",
    "reproduce": "experiments:reproduce",
    "report": "experiments:report",
}
"""The module of this folder and the function that each command is; only that module is imported."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a package is missing, 2 wrong input, 70 a fault, 130 stopped.

    What a user can mend is said in a line. So is anything else, and with it the name of the file that its
    traceback was written to; ``--traceback``, or ``FADEOUT_TRACEBACK=1``, shows it. Where nobody reads any
    more what a command prints, it ends without a word (141).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    show = "--traceback" in words or bool(os.environ.get("FADEOUT_TRACEBACK"))
    try:
        _interrupt.raise_again()
        _accept_all_characters()
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: _say(str(message))
            _run([word for word in words if word != "--traceback"])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _turn_away_output()
        raise SystemExit(141) from None  # as if SIGPIPE had ended it
    except KeyboardInterrupt as error:
        _turn_away_output()
        _stop(130, str(error) or "stopped")
    except Exception as error:
        if show:
            traceback.print_exc()
        if isinstance(error, MissingExtraError):
            _stop(1, str(error))
        if isinstance(error, ValueError | OSError):
            _turn_away_output()  # it may be what cannot be written
            _stop(2, _in_words(error))
        where = "" if show else f"; the traceback, for a report of this fault, is in {_write_traceback()}"
        _stop(70, f"{type(error).__name__}: {error}{where}")


def _in_words(error: Exception) -> str:
    """What an error says, without the number that systems give it."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename!r}"
    return str(error) or type(error).__name__


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        print(f"fadeout {__version__}")
        return
    with extra("experiments"):
        import tyro
    name, rest = (arguments or ["--help"])[0], arguments[1:]
    flags = (tyro.conf.FlagCreatePairsOff,)
    if name.startswith("-"):  # to list all commands takes all of them
        tyro.extras.subcommand_cli_from_dict(
            {each: _load(each) for each in COMMANDS},
            prog="fadeout",
            description="Prune PyTorch networks while they train. --version says which fadeout this is, "
            "--traceback where an error comes from.",
            args=[name, *rest],
            config=flags,
        )
        return
    command = _load(name)
    if name == "run":  # its fields depend on the task
        command(rest)
    else:
        tyro.cli(command, prog=f"fadeout {name}", args=rest, config=flags)


def _load(name: str) -> Callable[..., object]:
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COMMANDS)}"
        raise ValueError(f"no command {name!r}; {hint}")
    with extra("experiments"):  # for all that its module imports
        return pkgutil.resolve_name(f"fadeout.cli.{COMMANDS[name]}")


def _stop(code: int, message: str) -> NoReturn:
    _say(message)
    raise SystemExit(code)


def _say(message: str) -> None:
    """In a line, without what would move the cursor."""
    line = " ".join(filter(None, map(str.strip, message.splitlines())))
    try:
        print(f"fadeout: {printable(line)}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads it; the exit code still says what happened
        _turn_away(sys.stderr)


def _write_traceback() -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fadeout-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(traceback.format_exc())
            return file.name
    except OSError as error:
        return f"no file, since none could be written ({error}): pass --traceback"


def _accept_all_characters() -> None:
    """What a terminal cannot show is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _turn_away_output() -> None:
    """What is still to be written would fail again when Python ends."""
    with contextlib.suppress(ValueError, AttributeError):  # it may be closed, or None
        try:
            sys.stdout.flush()
        except OSError:
            _turn_away(sys.stdout)


def _turn_away(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # it has no file, or that is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
