"""The command line. Names here are the names in the code."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from fadeout import __version__
from fadeout._checks import MissingExtraError, extra

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
    """Run a command and exit: 0 done, 1 a package is missing, 2 wrong input, 130 stopped by Ctrl-C.

    What a user can mend is said in a line, without a traceback; ``FADEOUT_TRACEBACK=1`` shows it.

    Args:
        arguments: by default those of the process.
    """
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as error:
        _stop(130, str(error) or "stopped")
    except MissingExtraError as error:
        _stop(1, str(error))
    except (ValueError, OSError) as error:
        if os.environ.get("FADEOUT_TRACEBACK"):
            raise
        _stop(2, str(error))


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
            description="Prune PyTorch networks while they train.",
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
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(COMMANDS)}"
        raise ValueError(f"no command {name!r}; {hint}")
    module, function = COMMANDS[name].split(":")
    return getattr(importlib.import_module(f"fadeout.cli.{module}"), function)


def _stop(code: int, message: str) -> None:
    print(f"fadeout: {message}", file=sys.stderr)
    raise SystemExit(code)
