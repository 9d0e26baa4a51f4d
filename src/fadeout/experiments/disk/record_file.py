"""Files of records: none that was altered is taken for a result, and none is lost without a word.

``result.json`` holds one record, ``EXPERIMENT.jsonl`` one in each line. Each has a checksum of its fields,
and the first line of the latter says how many follow. Those of version 1 have neither: they are taken as they
are.
"""

import json
import os
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fadeout._files import parse_json, write_text

Record = dict[str, Any]

VERSION = 2
_NUMBERS = (
    *("before", "removed", "after", "top5", "seconds"),
    *("parameters", "parameters_left", "operations", "operations_left", "milliseconds", "milliseconds_left"),
    *("sparsity", "a_min", "a_max", "width", "seed", "epochs", "epochs_scale", "steps"),
)
_TEXTS = ("data", "model", "structure", "method")


def write_record(path: Path, record: Record) -> None:
    """Write a file of one record, whole or not at all."""
    write_text(path, seal(record, indent=1) + "\n")


def read_record(path: Path) -> Record:
    """Read what :func:`write_record` wrote."""
    return unseal(path.read_bytes(), path)


def write_records(path: Path, records: Collection[Record]) -> None:
    """Write a file of many records, whole or not at all."""
    lines = [{"version": VERSION, "records": len(records)}, *records]
    write_text(path, "".join(seal(line) + "\n" for line in lines))


def read_records(path: Path) -> dict[int, Record]:
    """Read what :func:`write_records` wrote, each record checked: by the numbers of their lines, from 1 on.

    Such files can be joined: each beginning says how many records it brings.
    """
    lines = {
        number: unseal(line, f"{path}, line {number}")
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1)
        if line.strip()
    }
    records = {number: line for number, line in lines.items() if "records" not in line}
    announced = [line["records"] for line in lines.values() if "records" in line]
    old = not announced and all(record["version"] == 1 for record in records.values())
    if not old and sum(number for number in announced if type(number) is int) != len(records):
        raise ValueError(
            f"{path}: damaged, it announces {announced} records and holds {len(records)}; restore a copy, or "
            "delete it: fadeout reproduce collects anew what the folders of the runs hold"
        )
    return {number: check(record, f"{path}, line {number}") for number, record in records.items()}


def seal(record: Record, indent: int | None = None) -> str:
    """A record as JSON, with a checksum of all its fields.

    >>> seal({"version": 2, "after": 99.5})
    '{"version": 2, "after": 99.5, "checksum": 481757972}'
    """
    sums = {} if record["version"] == 1 else {"checksum": _checksum(record)}
    return json.dumps(record | sums, indent=indent)


def unseal(text: str | bytes, source: str | os.PathLike[str]) -> Record:
    """The record again, without its checksum; a ``ValueError`` if it is damaged, or of a newer version.

    Args:
        source: the file, or the line of one, to be named in an error.

    >>> unseal('{"version": 2, "after": 98.5, "checksum": 481757972}', "a.json")
    Traceback (most recent call last):
    ValueError: a.json: damaged, not the record of a run (its checksum differs); restore a copy, or delete it
    """
    try:
        record = parse_json(text)
    except ValueError as error:
        raise damaged(source, f"it is not JSON, {error}") from None
    version = record.get("version") if isinstance(record, dict) else None
    if type(version) is not int or version < 1:
        raise damaged(source, 'it has no "version"')
    if version > VERSION:
        raise ValueError(
            f"{source}: written by a newer fadeout (version {version}, this one reads {VERSION}); update it"
        )
    if version > 1 and record.pop("checksum", None) != _checksum(record):
        raise damaged(source, "its checksum differs")
    return record


def damaged(source: object, reason: str) -> ValueError:
    """What to raise where a record is none."""
    return ValueError(f"{source}: damaged, not the record of a run ({reason}); restore a copy, or delete it")


def check(record: Record, source: str | os.PathLike[str]) -> Record:
    """The record, if it can be reported; a ``ValueError`` if not."""
    if wrong := _wrong(record):
        raise damaged(source, wrong)
    return record


def _wrong(record: Record) -> str:
    """Why it cannot be reported; nothing if it can."""
    run, status = record.get("run"), record.get("status")
    if not isinstance(record.get("hash"), str) or not isinstance(run, dict):
        return 'it has no "hash" or no "run"'
    if status not in ("done", "failed"):
        return f'its "status" is {status!r}, not "done" or "failed"'
    if status == "done" and record.get("after") is None:
        return 'it is done, but has no accuracy "after"'
    values = run | record
    numbers = (name for name in _NUMBERS if not isinstance(values.get(name), (int, float, type(None))))
    texts = (name for name in _TEXTS if not isinstance(values.get(name), (str, type(None))))
    return ", ".join(f'"{name}" is {values[name]!r}' for name in (*numbers, *texts))


def _checksum(record: Record) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
