"""Count what makes the source easy or hard to find one's way in, and print it as a Markdown table.

    python tools/count.py

counts the fadeout that Python imports, so that ``PYTHONPATH=other/src`` counts another version. A walk is
what runs in one call; a hop is a call (or the resumption of a generator) that goes from a function in one
file of fadeout to a function in another one, whatever of PyTorch lies between.
"""

import ast
import contextlib
import functools
import io
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F

import fadeout

ROOT = Path(fadeout.__file__).parent
PROJECT = ROOT.parents[1]


# Files ----------------------------------------------------------------------------------------------------


def modules() -> list[Path]:
    """All modules but those that only make a folder a package, or the command."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path.stem not in ("__init__", "__main__")]


def widest() -> tuple[Path, int]:
    """The folder with the most modules, and how many."""
    return Counter(path.parent for path in modules()).most_common(1)[0]


def lines() -> int:
    """Lines of all source files."""
    return sum(len(path.read_text().splitlines()) for path in ROOT.rglob("*.py"))


def untested() -> list[str]:
    """Modules for which no test file ``test_<module>.py`` exists."""
    tests = {path.stem for path in (PROJECT / "tests").rglob("test_*.py")}
    return [_name(path) for path in modules() if f"test_{path.stem.lstrip('_')}" not in tests]


def against_the_layers(layers: list[str]) -> list[str]:
    """Imports that go up, or between rooms of one layer, for types or inside functions included.

    Args:
        layers: as import-linter has them, the highest first; ``|`` separates rooms of one layer.
    """
    level = {room.strip(" ()"): n for n, layer in enumerate(layers) for room in layer.split("|")}
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT).with_suffix("").parts[0]
        for wanted in _imported(path):
            there = wanted.split(".")[1]
            wrong = here != there and here in level and there in level and level[there] <= level[here]
            found += [f"{_name(path)} imports {wanted}"] if wrong else []
    return found


def declared_layers() -> list[str]:
    """The layers in pyproject.toml; none where there is no such contract."""
    import tomllib  # from Python 3.11 on

    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"].get("importlinter", {})
    contracts = [each for each in settings.get("contracts", []) if each["type"] == "layers"]
    return contracts[0]["layers"] if contracts else []


@functools.cache
def _imported(path: Path) -> list[str]:
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    whole = [f"fadeout.{alias.name}" for node in found if node.module == "fadeout" for alias in node.names]
    return whole + [str(node.module) for node in found if (node.module or "").startswith("fadeout.")]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


# Walks ----------------------------------------------------------------------------------------------------


class Walk:
    """Notes the files that a call visits, and its hops.

    >>> walk = Walk()
    >>> with walk:
    ...     _ = fadeout.schedules.cubic(0.9)
    >>> walk.files
    ['schedules']
    """

    def __init__(self):
        self.visits: Counter[str] = Counter()
        self.hops: Counter[tuple[str, str]] = Counter()
        self._files: dict[str, str | None] = {}

    @property
    def files(self) -> list[str]:
        """Visited, in the order of the first visit."""
        return list(self.visits)

    def __enter__(self) -> "Walk":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        file = self._file(frame) if event == "call" else None
        if file is None or frame.f_code.co_name == "<module>":
            return
        self.visits[file] += 1
        caller = frame.f_back
        while caller is not None and self._file(caller) is None:
            caller = caller.f_back
        if caller is not None and (there := self._file(caller)) != file:
            self.hops[f"{there}:{caller.f_code.co_name}", f"{file}:{frame.f_code.co_name}"] += 1

    def _file(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        if path not in self._files:
            inside = path.startswith(f"{ROOT}/")
            self._files[path] = _name(Path(path)) if inside else None
        return self._files[path]


def walk_step() -> Walk:
    """``optimizer.step()`` in the middle of a training, with a pruner of single weights."""
    torch.manual_seed(0)
    model = fadeout.models.smallcnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=40)
    walk = Walk()
    for step in range(21):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.arange(8)).backward()
        with walk if step == 20 else contextlib.nullcontext():
            optimizer.step()
    pruner.detach()
    return walk


def walk_compact() -> Walk:
    """``fadeout.compact`` of a ResNet-20 that has lost half of its parameters."""
    torch.manual_seed(0)
    model, example = fadeout.models.resnet20(), torch.zeros(1, 3, 32, 32)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight)
    fadeout.methods.one_shot(model, 0.5, structure=fadeout.Channels(example))
    walk = Walk()
    with walk:
        fadeout.compact(model, example)
    return walk


def walk_reproduce() -> Walk:
    """``fadeout reproduce cora``, one short run; it needs the data set."""
    from fadeout.cli import main

    only = ["--only", "method=auto", "sparsity=0.9", "seed=0"]
    for walk in (contextlib.nullcontext(), Walk()):  # first for the imports, which are no part of it
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            shorter = ["--epochs-scale=0.005", "--steps=2", "--jobs=1"]
            with walk:
                main(["reproduce", "cora", *only, *shorter, f"--results={folder}"])
    assert isinstance(walk, Walk)
    return walk


WALKS: dict[str, Callable[[], Walk]] = {
    "optimizer.step()": walk_step,
    "fadeout.compact": walk_compact,
    "fadeout reproduce cora": walk_reproduce,
}


def table() -> str:
    """All counts."""
    folder, width = widest()
    layers, without = declared_layers(), untested()
    rows: dict[str, Any] = {
        "modules in the widest folder": f"{width} ({folder.relative_to(ROOT.parent).as_posix()})",
        "modules": len(modules()),
        "lines of src": f"{lines():,}",
        "modules without a test file of their name": len(without),
        "imports against the layers": len(against_the_layers(layers)) if layers else "no layers declared",
    }
    for name, walk in WALKS.items():
        try:
            found = walk()
        except (SystemExit, ImportError):
            rows[name] = "not counted: it needs the extra experiments, and the data set"
            continue
        rows[f"{name}: files"] = len(found.files)
        rows[f"{name}: hops, each pair of functions once"] = len(found.hops)
        if walk is walk_step:  # the others take turns as often as their networks have layers, or runs steps
            rows[f"{name}: hops in all"] = found.hops.total()
    return "\n".join(["| count | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(table())
    if "--list" in sys.argv:
        print("\nwithout a test file:", ", ".join(untested()))
        print("\nagainst the layers:", "\n  ".join(["", *against_the_layers(declared_layers())]))
        for name, walk in WALKS.items():
            found = walk()
            print(f"\n{name}: {', '.join(found.files)}")
            print("\n".join(f"  {a} -> {b}: {n}" for (a, b), n in found.hops.items()))
