"""Many runs: on the cores of this machine, or on a Ray cluster, through joblib."""

import os
import secrets
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from fadeout._checks import extra, known
from fadeout.experiments.disk.record_file import Record, write_record
from fadeout.experiments.disk.run_folder import BusyError, NewerError
from fadeout.experiments.execute import Stopped, check_interval, checked_device, execute
from fadeout.experiments.report.formatting import last_line
from fadeout.experiments.result import make_failure
from fadeout.experiments.run import Run
from fadeout.experiments.signals import asked_to_stop, held_back


def sweep(
    runs: Sequence[Run],
    results: str | os.PathLike[str] = "runs",
    *,
    jobs: int | None = None,
    backend: Literal["processes", "ray"] = "processes",
    address: str | None = None,
    on_done: Callable[[Record], object] = lambda record: None,
    **options: Any,
) -> list[Record]:
    """Carry out the runs that are not finished yet, several at a time, and return all their records.

    Finished runs are read, not repeated. A run that fails is recorded with its traceback, and the others go
    on; the next sweep tries it again. A run that another process is at is left to it. When a worker dies, its
    runs are resumed by new ones. At SIGINT or SIGTERM, and where ``on_done`` raises, the runs under way save
    their states before the sweep ends.

    Args:
        results: the folder of all runs; on a cluster a folder that all nodes see.
        jobs: how many at a time; by default one for each core, or all that the cluster has. The cores are
            shared out, so that each run has its own threads.
        backend: processes on this machine, or a Ray cluster.
        address: of the Ray cluster; by default the one that is running, or a local one.
        options: ``data_dir``, ``device`` and ``checkpoint_every`` of
            :func:`~fadeout.experiments.execute.execute`.
    """
    check_jobs(jobs)
    if runs:  # what no run could do is said once, before any begins
        check_interval(options.get("checkpoint_every", 0))
        if backend == "processes":  # the nodes of a cluster have devices of their own
            checked_device(options.get("device", "cpu"))
    records: dict[str, Record] = {}
    waiting = {run.hash: run for run in runs}
    lost: Counter[str] = Counter()
    trouble: list[Exception] = []
    with _backend(backend, jobs, address) as workers, _permitted(Path(results)) as permit:
        while waiting and permit.exists():
            # Where workers die, all runs under way are suspects: a suspect goes on alone, not to harm others
            suspect = [run for run in waiting.values() if lost[run.hash] >= _SUSPECT][:1]
            batch = suspect or list(waiting.values())
            try:
                tasks = [(run, os.fspath(results), lost[run.hash] > 0, permit, options) for run in batch]
                for record in workers.attempt(tasks):
                    if record["status"] != "stopped":
                        waiting.pop(record["hash"])
                        records[record["hash"]] = record
                        try:
                            on_done(record)
                        except Exception as error:  # the workers save before it is raised
                            trouble.append(error)
                            permit.unlink(missing_ok=True)
            except workers.deaths as error:
                left = [run for run in batch if run.hash in waiting]
                lost.update(run.hash for run in [run for run in left if _under_way(run, results)] or left)
                why = f"its worker died {_HOPELESS} times: {_cause(error)}"
                for run in [run for run in left if lost[run.hash] >= _HOPELESS]:
                    waiting.pop(run.hash)
                    records[run.hash] = make_failure(run, why)
                    on_done(records[run.hash])
    if trouble:
        raise trouble[0]
    if waiting:
        raise Stopped
    return [records[name] for name in dict.fromkeys(run.hash for run in runs)]


def check_jobs(jobs: int | None) -> None:
    """Raise where so many runs at a time are none."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is a whole number from 1 on, got {jobs}")


_SUSPECT, _HOPELESS = 2, 5  # deaths of workers that a run has seen


def _under_way(run: Run, results: str | os.PathLike[str]) -> bool:
    folder = Path(results) / run.hash
    return (folder / "config.json").exists() and not (folder / "result.json").exists()


@contextmanager
def _permitted(results: Path) -> Iterator[Path]:
    """A file that lets the workers of a sweep work, wherever they are: when it is gone, they save and stop.

    A signal takes it away, which works on a full disk, too.
    """
    results.mkdir(parents=True, exist_ok=True)
    permit = results / f".sweep-{secrets.token_hex(4)}"
    permit.touch()
    withdraw = partial(permit.unlink, missing_ok=True)
    with ExitStack() as at_end:
        at_end.callback(withdraw)
        at_end.enter_context(asked_to_stop(patient=False, on_first=withdraw))
        yield permit


def _cause(death: BaseException) -> str:
    """Why a worker died, in a line. What it raised itself is the last line of the traceback that it sent."""
    said = str(death.__cause__ or death).strip().removesuffix('"""')
    return " ".join(said.split()) if death.__cause__ is None else last_line(said)


# One attempt ----------------------------------------------------------------------------------------------


def _attempt(run: Run, results: str, again: bool, permit: Path, options: dict[str, Any]) -> Record:
    """Carry out a run, or tell why not. After its last worker died, it may for a moment seem held."""
    if not permit.exists():
        return {"hash": run.hash, "status": "stopped"}
    options = {"stop": lambda: not permit.exists(), **options}
    deadline = time.monotonic() + (_GRACE if again else 0)
    note = Path(results) / run.hash / "failed.json"
    while True:
        try:
            record = execute(run, results, **options)
            note.unlink(missing_ok=True)
            return record
        except BusyError as busy:
            if time.monotonic() >= deadline or not permit.exists():
                return {"hash": run.hash, "status": "elsewhere", "run": run.to_dict(), "error": str(busy)}
            time.sleep(0.2)
        except NewerError:
            return make_failure(run, traceback.format_exc())
        except Exception:
            record = make_failure(run, traceback.format_exc())
            with suppress(OSError):  # a full disk must not end the sweep
                note.parent.mkdir(parents=True, exist_ok=True)
                write_record(note, record)
            return record


_GRACE = 20.0  # seconds


def _attempt_apart(
    threads: int,
    parent: int | None,
    run: Run,
    results: str,
    again: bool,
    permit: Path,
    options: dict[str, Any],
) -> Record:
    """The same in a worker, which has its threads, stops when the sweep is gone, and may be stopped alone."""
    torch.set_num_threads(threads)

    def orphaned() -> bool:
        return parent is not None and os.getppid() != parent

    try:
        stop = {"stop": lambda: orphaned() or not permit.exists()}
        return _attempt(run, results, again, permit, options | stop)
    except Stopped:
        if orphaned():
            os._exit(1)  # nobody listens
        return {"hash": run.hash, "status": "stopped"}


# Workers --------------------------------------------------------------------------------------------------


class _backend:
    """Workers for the time of a sweep, through joblib."""

    def __init__(self, name: str, jobs: int | None, address: str | None):
        with extra("experiments"):
            import joblib
            from joblib.externals.loky.process_executor import BrokenProcessPool
        known("backend", name, ("processes", "ray"))
        if address is not None and name != "ray":
            raise ValueError(f"address {address!r} is that of a Ray cluster: --backend ray")
        self._joblib, self._name = joblib, name
        self._started: Any = None
        self.deaths: tuple[type[BaseException], ...] = (BrokenProcessPool,)
        cores = joblib.cpu_count()
        available = self._connect(address) if name == "ray" else cores
        self._jobs = jobs or available
        self._threads = max(1, min(cores // self._jobs, torch.get_num_threads()))

    def __enter__(self) -> "_backend":
        return self

    def __exit__(self, *error: object) -> None:
        if self._started is not None:
            self._started.shutdown()

    def attempt(self, tasks: list[tuple[Any, ...]]) -> Iterator[Record]:
        """Yield the records, in whatever order they come."""
        if self._name == "processes" and self._jobs == 1:
            yield from (_attempt(*task) for task in tasks)
            return
        # Ray's backend gives its results all at once; each is on disk long before
        name, how = ("ray", "list") if self._name == "ray" else ("loky", "generator_unordered")
        parent = None if self._name == "ray" else os.getpid()
        with self._joblib.parallel_config(backend=name), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib's note on workers that stopped
            pool = self._joblib.Parallel(n_jobs=self._jobs, return_as=how, batch_size=1, pre_dispatch="all")
            calls = [self._joblib.delayed(_attempt_apart)(self._threads, parent, *task) for task in tasks]
            with held_back() if self._name == "processes" else nullcontext():
                coming = pool(calls)  # starts the workers
            yield from coming

    def _connect(self, address: str | None) -> int:
        """Join a Ray cluster, or start one; returns how many cores it has."""
        with extra("ray"):
            import ray
            from ray.exceptions import RayError
            from ray.util.joblib import register_ray
        self.deaths = (*self.deaths, RayError)
        if not ray.is_initialized():
            # Ray gives way to all other processes (a niceness of 15): on a busy machine it starves
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
            self._started = ray
        register_ray()
        return int(ray.cluster_resources().get("CPU", 1))
