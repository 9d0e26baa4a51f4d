"""The command line. Names here are the names in the code."""

import difflib
import os
import sys
from collections.abc import Callable, Sequence

from fadeout import __version__
from fadeout._checks import MissingExtraError, extra


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
    commands = _commands()
    _check(arguments, commands)
    if arguments[:1] == ["run"]:  # its fields depend on the task
        from fadeout.cli.experiments import run

        run(arguments[1:])
        return
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="fadeout",
        description="Prune PyTorch networks while they train.",
        args=arguments or ["--help"],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _commands() -> dict[str, Callable[..., object]]:
    # here, because these need the extra
    from fadeout.cli.data import data
    from fadeout.cli.experiments import report, reproduce, run, show
    from fadeout.cli.networks import compact, export, inspect
    from fadeout.experiments.demo import demo

    return {
        "demo": demo,
        "inspect": inspect,
        "compact": compact,
        "export": export,
        "data": data,
        "list": show,
        "run": run,
        "reproduce": reproduce,
        "report": report,
    }


def _check(arguments: list[str], commands: dict[str, Callable[..., object]]) -> None:
    if not arguments or arguments[0].startswith("-") or arguments[0] in commands:
        return
    near = difflib.get_close_matches(arguments[0], commands, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(commands)}"
    raise ValueError(f"no command {arguments[0]!r}; {hint}")


def _stop(code: int, message: str) -> None:
    print(f"fadeout: {message}", file=sys.stderr)
    raise SystemExit(code)
