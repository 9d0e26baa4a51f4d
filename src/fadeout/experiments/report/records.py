"""The records of runs, read from the files that a sweep leaves behind."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fadeout.experiments.disk.record_file import Record, check, read_record, read_records


@dataclass(frozen=True)
class Section:
    """An experiment, for the report.

    Args:
        name: of the experiment, such as ``"cora"``.
        kind: ``"curve"``, ``"grid"`` or ``"table"``.
        published: the paper's values, as ``fadeout.experiments.paper.published`` gives them.
    """

    name: str
    title: str
    kind: str
    records: Sequence[Record]
    published: Sequence[Any] = ()


def read(results: Path) -> dict[str, list[Record]]:
    """The records below a folder, or in one file, by experiment.

    A record belongs to the experiment in whose ``EXPERIMENT.jsonl`` it is, a ``HASH/result.json`` that is in
    none to ``"runs"``. The same hash counts once in an experiment: the last, and one that is done rather than
    one that failed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "cora.jsonl"
    ...     _ = file.write_text('{"version": 1, "hash": "3f", "status": "failed", "run": {}}\\n')
    ...     {name: len(records) for name, records in read(Path(folder)).items()}
    {'cora': 1}
    """
    found: dict[str, dict[str, Record]] = {}
    for name, record in _records(results):
        # A single one may have failed when the experiment's file was written, and be done by now.
        homes = [records for records in found.values() if not name and record["hash"] in records]
        for records in homes or [found.setdefault(name or "runs", {})]:
            old = records.setdefault(record["hash"], record)
            if old["status"] == "failed" or record["status"] == "done":
                records[record["hash"]] = record
    if not found:
        raise ValueError(
            f"no results in {results}: looked for records in *.jsonl and */result.json; "
            "give the folder that the experiments were told to write to"
        )
    return {name: list(records.values()) for name, records in found.items()}


def _records(results: Path) -> Iterator[tuple[str, Record]]:
    """Each record, with the experiment, if its file says it."""
    if not results.exists():
        raise ValueError(f"no results in {results}: there is no such file or folder")
    own = results / "result.json"  # in the folder of a run, where metrics.jsonl holds no records
    below = [path for name in ("*.jsonl", "*/result.json") for path in sorted(results.glob(name))]
    for path in [results] if results.is_file() else [own] if own.exists() else below:
        if path.suffix == ".json":
            yield "", check(read_record(path), path)
        else:
            yield from ((path.stem, record) for record in read_records(path).values())
