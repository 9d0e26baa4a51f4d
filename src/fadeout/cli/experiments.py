"""What the command line does with experiments: list, run, reproduce, report."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from fadeout._checks import extra, known
from fadeout.cli.run_display import RunDisplay
from fadeout.cli.sweep_display import SweepDisplay
from fadeout.experiments.bookkeeping import plan
from fadeout.experiments.build import build_data
from fadeout.experiments.catalogue import EXPERIMENTS
from fadeout.experiments.distributed import join, launched
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.report import report as write_report
from fadeout.experiments.result import describe_record
from fadeout.experiments.run import DATA, MODELS, Run, check_used
from fadeout.experiments.signals import asked_to_stop
from fadeout.experiments.sweep import check_jobs
from fadeout.experiments.tasks import TASKS, task
from fadeout.methods.registry import METHODS


def show() -> None:
    """List networks, data sets, methods, tasks and experiments."""
    for title, names in (
        ("networks", {n: (f.__doc__ or "").splitlines()[0] for n, f in MODELS.items()}),
        ("data sets", {n: (f.__doc__ or "").splitlines()[0] for n, f in DATA.items()}),
        ("methods", {n: method.summary for n, method in METHODS.items()}),
        (
            "tasks, for fadeout run",
            {n: f"{r.network} on {r.data}, {r.epochs} epochs" for n, r in TASKS.items()},
        ),
        (
            "experiments, for fadeout reproduce",
            {n: f"{e.title}: {len(e.runs())} runs" for n, e in EXPERIMENTS.items()},
        ),
    ):
        print(f"{title}:")
        width = max(map(len, names))
        for name, text in names.items():
            print(f"  {name:{width}}  {text.replace('``', '')}")


@dataclass(frozen=True)
class Command(Run):
    """The fields of a run and how it is carried out, as the command line takes them."""

    results: Path = Path("runs")
    """the folder of all runs; each has a folder in it, named by a hash of its settings"""
    data_dir: Path | None = None
    """where data sets lie; then the environment's FADEOUT_DATA, then a cache folder"""
    device: str = "cpu"
    """cpu, cuda or mps"""
    checkpoint_every: float = 60.0
    """seconds between two checkpoints; there is one at Ctrl-C, too"""
    parallel: Literal["ddp", "fsdp"] | None = None
    """under torchrun: ddp, each process has the whole network, or fsdp, each has a part of all parameters"""
    tensorboard: bool = False
    """also write what TensorBoard shows, into the run's folder"""

    def __post_init__(self):
        """The run that is made of it is what gets checked."""


def run(arguments: list[str]) -> None:
    """Train and prune one network: fadeout run [TASK] [--field value ...]. Run it again to resume it."""
    asks = not arguments or arguments[0] in ("-h", "--help")
    is_named = not asks and not arguments[0].startswith("-")
    name = arguments[0] if is_named else "digits"
    known("task", name, TASKS)
    typed = tyro.cli(
        Command,
        default=Command(**TASKS[name].to_dict()),
        prog=f"fadeout run {name if is_named else '[TASK]'}",
        description=f"Train and prune one network. To run it again is to resume it. TASK is one of "
        f"{', '.join(TASKS)}, digits if none is named; the defaults shown are those of {name}. fadeout list "
        "shows methods, networks, data sets.",
        args=["--help"] if asks else arguments[is_named:],
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    chosen = {f.name: getattr(typed, f.name) for f in fields(Run)}
    changes = {field: value for field, value in chosen.items() if value != getattr(TASKS[name], field)}
    if any(word.partition("=")[0] == "--sparsity" for word in arguments):  # also if it is the task's own
        changes["sparsity"] = typed.sparsity
    config = task(name, **changes)
    check_used(config, changes)
    _run(config, typed)


def _run(config: Run, options: Command) -> None:
    folder = options.results / config.hash
    with join(options.parallel, options.device) as world:
        console = Console() if world.main else Console(quiet=True, force_terminal=False)
        found = ", finished before" if (folder / "result.json").exists() else ""
        found = found or (", resumed" if (folder / "checkpoint").exists() else "")
        console.print(f"{config}, in {folder}{found}", highlight=False, markup=False, soft_wrap=True)
        log = _TensorBoard(folder) if options.tensorboard and world.main else None
        unread = False

        def watch(now: dict[str, Any]) -> None:
            nonlocal unread
            try:
                display(now)
            except (BrokenPipeError, SystemExit):  # the latter is rich's answer to the former
                unread = True
            if log is not None:
                log(now)

        try:
            with RunDisplay(console) as display:
                record = execute(
                    config,
                    options.results,
                    data_dir=options.data_dir,
                    device=options.device,
                    checkpoint_every=options.checkpoint_every,
                    watch=watch if world.main else None,
                    stop=lambda: unread,
                    world=world,
                )
        except Stopped:
            why = "stopped, since nobody reads what it prints" if unread else "stopped"
            said = f"{why}; its state is in {folder}, and the same command goes on"
            raise (KeyboardInterrupt(said) if world.main else SystemExit(130)) from None
        if world.main:
            print(describe_record(record))


def reproduce(
    experiment: Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")],
    /,
    *,
    results: Path = Path("runs"),
    epochs_scale: float = 1.0,
    steps: int | None = None,
    only: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction] = (),
    jobs: int | None = None,
    backend: Literal["processes", "ray"] = "processes",
    address: str | None = None,
    data_dir: Path | None = None,
    device: str = "cpu",
    checkpoint_every: float = 60.0,
    watch: bool = False,
    dry: bool = False,
) -> None:
    """Carry out all runs of an experiment, such as a table of the paper; finished ones are not repeated.

    Args:
        experiment: its name, as fadeout list shows it.
        results: the folder of all runs; what came of them is in EXPERIMENT.jsonl in it, enough to go on from.
        epochs_scale: shorten all phases in proportion, such as 0.1; results are marked.
        steps: at most so many steps in an epoch; results are marked.
        only: conditions such as method=auto or sparsity=0.99; runs that meet all of them.
        jobs: runs at a time; by default one for each core.
        backend: processes on this machine, or a Ray cluster.
        address: of the Ray cluster.
        data_dir: where data sets lie; then the environment's FADEOUT_DATA, then a cache folder.
        device: cpu, cuda or mps.
        checkpoint_every: seconds between two checkpoints of a run.
        watch: only follow the runs that another process carries out, until all are done; nothing is written.
        dry: only say what would be done.
    """
    known("experiment", experiment, EXPERIMENTS)
    if watch and dry:
        raise ValueError("--dry only says what would be done, and --watch follows what others do: pass one")
    if launched() > 1:
        raise ValueError("torchrun is for fadeout run --parallel; several runs at a time are --jobs")
    check_jobs(jobs)
    every = [
        replace(r, epochs_scale=epochs_scale, steps=r.steps if steps is None else steps)
        for r in EXPERIMENTS[experiment].runs()
    ]
    todo = plan(experiment, every, results, [condition for given in only for condition in given])
    print(f"{experiment}: {len(todo.runs)} runs, {todo.finished} of them finished", flush=True)
    if dry:
        for one in todo.runs:
            print(f"  {one.hash}  {one}")
        return
    display = SweepDisplay(Console(), todo.look, jobs)

    def say(number: int, record: dict[str, Any]) -> None:
        display.say(f"{number}/{len(todo.runs)}  {describe_record(record)}")

    if watch:
        _finish(experiment, results, _watch(display, say))
        return
    begins = backend == "processes" and todo.finished < len(todo.runs)
    if begins and len({one.data for one in todo.runs}) == 1:
        build_data(todo.runs[0], data_dir)  # a missing data set is said once, before anything starts
    try:
        with display:
            records = todo.carry_out(
                say,
                jobs=jobs,
                backend=backend,
                address=address,
                data_dir=data_dir,
                device=device,
                checkpoint_every=checkpoint_every,
            )
    except (Stopped, BrokenPipeError) as error:
        why = "stopped" if isinstance(error, Stopped) else "stopped, since nobody reads what it prints"
        said = f"{why}; the states of its runs are in {results}, and the same command goes on"
        raise KeyboardInterrupt(said) from None
    _finish(experiment, results, records)


def _watch(display: SweepDisplay, say: Callable[[int, dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Follow runs of others until all are over; returns their records."""
    said = {state.run.hash for state in display.states if state.record is not None}
    deserted = False
    with asked_to_stop(patient=False) as stopping, display:
        while not stopping:
            if display.deserted and not deserted:
                display.say("nobody is at these runs: without --watch, the same command carries them out")
            deserted = display.deserted
            for state in display.look():
                if state.record is not None and state.run.hash not in said:
                    said.add(state.run.hash)
                    say(len(said), state.record)
            if display.over:
                return [state.record for state in display.states if state.record is not None]
            time.sleep(0.5)
    raise KeyboardInterrupt("watched no more; whoever carries out the runs goes on")


def _finish(experiment: str, results: Path, records: list[dict[str, Any]]) -> None:
    states = Counter(record["status"] for record in records)
    said = ", ".join(f"{number} {state}" for state, number in states.items())
    print(f"{experiment}: {said}; written to {results / f'{experiment}.jsonl'}")
    if states["failed"]:
        raise SystemExit(1)


def report(
    results: Annotated[Path, tyro.conf.arg(metavar="RESULTS")],
    /,
    *,
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    format: Literal["html", "markdown"] | None = None,
) -> None:
    """Write a report of the results, with the paper's values beside them: one page, or Markdown.

    Args:
        results: the folder that the experiments were told to write to, or one EXPERIMENT.jsonl in it.
        output: the file to write; by default report.html, or report.md.
        format: html is one page that needs no network; markdown has the tables, for a README. By default
            markdown for a file *.md, and html for all others.
    """
    print(f"written to {write_report(results, output, format=format)}")


class _TensorBoard:
    """Scalars after each test and every hundredth step."""

    def __init__(self, folder: Path):
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, now: dict[str, Any]) -> None:
        if now["step"] % 100 == 0 or now["step"] % now["in_epoch"] == 0:
            for name in ("loss", "top1", "sparsity", "factor"):
                if now[name] is not None:
                    self._writer.add_scalar(name, now[name], now["step"])
            self._writer.flush()
