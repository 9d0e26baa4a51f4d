"""Many runs: on the cores of this machine, or on a Ray cluster, through joblib."""

import json
import os
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fadeout.experiments.execute import VERSION, BusyError, conditions, execute
from fadeout.experiments.run import Run
from fadeout.extras import extra
from fadeout.files import write_atomically

Record = dict[str, Any]


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
    runs are resumed by new ones.

    Args:
        runs: what to do.
        results: the folder of all runs; on a cluster a folder that all nodes see.
        jobs: how many at a time; by default one for each core, or all that the cluster has. The cores are
            shared out, so that each run has its own threads.
        backend: processes on this machine, or a Ray cluster.
        address: of the Ray cluster; by default the one that is running, or a local one.
        on_done: called with each record as it comes.
        options: ``data_dir``, ``device`` and ``checkpoint_every`` of
            :func:`~fadeout.experiments.execute.execute`.
    """
    cores = os.cpu_count() or 1
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is a whole number from 1 on, got {jobs}")
    threads = max(1, cores // jobs) if jobs else 1
    records: dict[str, Record] = {}
    waiting = {run.hash: run for run in runs}
    lost: Counter[str] = Counter()
    with _backend(backend, jobs, address) as parallel:
        while waiting:
            batch = list(waiting.values())
            try:
                for record in parallel(_attempts(batch, results, threads, options)):
                    records[record["hash"]] = record
                    waiting.pop(record["hash"], None)
                    on_done(record)
            except _worker_died() as error:
                for run in waiting.values():  # the runs that were under way go on from their checkpoints
                    lost[run.hash] += 1
                hopeless = [run for run in waiting.values() if lost[run.hash] > _PATIENCE]
                for run in hopeless:
                    record = _failure(run, f"its worker died {_PATIENCE + 1} times: {error}")
                    records[run.hash] = waiting.pop(run.hash) and record
                    on_done(record)
    return [records[run.hash] for run in {run.hash: run for run in runs}.values()]


_PATIENCE = 10  # a run that is waiting may see so many workers die before it is given up


def collect(name: str, records: Iterable[Record], results: str | os.PathLike[str]) -> Path:
    """Write the records of an experiment into one file, ``results/<name>.jsonl``, beside those it holds."""
    path = Path(results) / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    together = {record["hash"]: record for record in map(json.loads, lines)}
    together |= {record["hash"]: record for record in records if record["status"] in ("done", "failed")}
    text = "".join(json.dumps(record) + "\n" for record in together.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return path


def _attempts(batch: list[Run], results: Any, threads: int, options: dict[str, Any]) -> Iterator[Any]:
    from joblib import delayed

    for run in batch:
        yield delayed(_attempt)(run, os.fspath(results), threads, options)


def _attempt(run: Run, results: str, threads: int, options: dict[str, Any]) -> Record:
    torch.set_num_threads(threads)
    note = Path(results) / run.hash / "failed.json"
    try:
        record = execute(run, results, **options)
    except BusyError as busy:
        return {"hash": run.hash, "status": "elsewhere", "run": run.to_dict(), "error": str(busy)}
    except Exception:
        record = _failure(run, traceback.format_exc())
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, lambda path: path.write_text(json.dumps(record, indent=1) + "\n"))
    else:
        note.unlink(missing_ok=True)
    return record


def _failure(run: Run, error: str) -> Record:
    return {
        "version": VERSION,
        "hash": run.hash,
        "status": "failed",
        "run": run.to_dict(),
        "error": error,
        **conditions(),
    }


class _backend:
    """A joblib backend for the time of a sweep; calling it yields results as they come."""

    def __init__(self, name: str, jobs: int | None, address: str | None):
        with extra("experiments"):
            import joblib
        self._joblib, self._name = joblib, name
        if name == "ray":
            with extra("ray"):
                import ray
                from ray.util.joblib import register_ray
            if not ray.is_initialized():
                ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
            register_ray()
            jobs = jobs or int(ray.cluster_resources().get("CPU", 1))
        self._jobs = jobs or os.cpu_count() or 1

    def __enter__(self) -> "_backend":
        return self

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, tasks: Iterator[Any]) -> Iterator[Record]:
        if self._jobs == 1 and self._name == "processes":
            yield from (function(*given, **named) for function, given, named in tasks)
            return
        # Ray's backend gives its results all at once; each is on disk long before
        name, how = ("ray", "list") if self._name == "ray" else ("loky", "generator_unordered")
        with self._joblib.parallel_config(backend=name), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib's note on workers that stopped
            yield from self._joblib.Parallel(
                n_jobs=self._jobs, return_as=how, batch_size=1, pre_dispatch="all"
            )(tasks)


def _worker_died() -> tuple[type[BaseException], ...]:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    try:
        from ray.exceptions import RayError
    except ImportError:
        return (BrokenProcessPool,)
    return (BrokenProcessPool, RayError)
