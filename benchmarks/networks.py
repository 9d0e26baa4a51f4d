"""Which networks of other packages can lose channels, and whether they really lose what was asked.

    python benchmarks/networks.py                    # what is not in the records yet, then the report
    python benchmarks/networks.py resnet18 levit     # again, those whose names contain one of these
    python benchmarks/networks.py --failed           # again, those that did not do what they should
    python benchmarks/networks.py --report           # only the report, from the records

Each network of :mod:`zoo` is built with random weights (scales of norms between 0.5 and 1.5, so that no
branch is dead from the start), bound with ``Channels(example, by="norm")``, trained for two steps that remove
40 % of the parameters, or what can go if that is less, and compacted. (Where magnitudes of random weights
would cut the network in two, so that its outputs are constant, channels are ranked within their layers.)
Outputs of the compact network are compared with those of the network with its channels at zero, on three
inputs, one of them of another batch size. :mod:`zoo_torch_pruning` does the same with Torch-Pruning. Each
network has a process of its own, and a limit of time; records are appended to results/networks.jsonl. Writes
results/networks.json and .md.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import re
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from harness import RESULTS, surroundings
from networks_report import Record, is_bound, is_good, page
from torch import nn
from zoo import Entry, entries

import fadeout
from fadeout._files import write_atomically
from fadeout.experiments.disk.run_folder import write_json
from fadeout.graph.example import Example, tensors_in

ASKED, STEPS, LIMIT = 0.4, 2, 300
RECORDS = RESULTS / "networks.jsonl"

MODULES = {
    "segmentation-models-pytorch": "segmentation_models_pytorch",
    "monai": "monai.networks.nets",
    "torch_geometric": "torch_geometric.nn",
    "transformers": "transformers.modeling_utils",
    "ultralytics": "ultralytics.nn.tasks",
}


@torch.no_grad()
def build(entry: Entry) -> nn.Module:
    """A network in evaluation mode, as training might leave it: norms with statistics, no head of zeros."""
    torch.manual_seed(0)
    model = entry.build()
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if "Norm" in type(module).__name__ and weight is not None:
            nn.init.uniform_(weight, 0.5, 1.5)
        elif isinstance(weight, torch.Tensor) and weight.dim() > 1 and not weight.any():
            nn.init.normal_(weight, std=0.02)
    with contextlib.suppress(Exception):  # some want labels in training
        outputs(model.train(), Example.of(entry.inputs(4)))
    return model.eval()


def inputs(entry: Entry) -> list[Example]:
    """Three inputs, of which the first is the example; the last is of another batch size."""
    torch.manual_seed(1)
    return [Example.of(entry.inputs(batch)) for batch in (2, 2, 3)]


def outputs(model: nn.Module, example: Example) -> list[torch.Tensor]:
    args, kwargs = example.fresh()
    return tensors_in(model(*args, **kwargs))


@torch.no_grad()
def difference(model: nn.Module, small: nn.Module, examples: list[Example]) -> float:
    """The largest difference of any output, over the largest number in that output."""
    worst = 0.0
    for example in examples:
        mine, theirs = outputs(model, example), outputs(small, example)
        if [one.shape for one in mine] != [one.shape for one in theirs]:
            return float("inf")
        for one, other in zip(mine, theirs, strict=True):
            if one.is_floating_point() and one.numel():
                worst = max(worst, float((one - other).abs().max() / one.abs().max().clamp_min(1e-30)))
    return worst


@torch.no_grad()
def varies(model: nn.Module, examples: list[Example]) -> bool:
    """Whether any output depends on the input: that of a network cut in two does not, and is easily equal."""
    mine, theirs = outputs(model, examples[0]), outputs(model, examples[1])
    return any(not torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def within_layers(weight: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """A criterion by which all layers lose about the same share."""
    return weight.abs() * (len(weight) ** 0.5 / weight.norm().clamp_min(1e-30))


def through_fadeout(entry: Entry) -> Record:
    """What comes of a network."""
    record = removed(entry, fadeout.criteria.magnitude)
    if record["varies"]:
        return {**record, "criterion": "magnitude"}
    return {**removed(entry, within_layers), "criterion": "magnitude within layers"}


def removed(entry: Entry, criterion: Any) -> Record:
    """What comes of a network whose channels are ranked by a criterion."""
    model, examples = build(entry), inputs(entry)
    example: Any = examples[0].kwargs or examples[0].args
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def bind(sparsity: float) -> fadeout.SelectiveWeightDecay:
        structure = fadeout.Channels(example, by="norm")
        return fadeout.SelectiveWeightDecay(
            model, optimizer, sparsity=sparsity, steps=STEPS, structure=structure, criterion=criterion
        )

    asked, start = ASKED, time.perf_counter()
    try:
        pruner = bind(asked)
    except ValueError as error:
        most = re.search(r"at most (\S+) can go", str(error))
        if most is None:
            raise
        asked, start = float(most[1]), time.perf_counter()
        pruner = bind(asked)
    bound = time.perf_counter() - start
    cost = pruner._bound.cost  # pyright: ignore
    can_go = 1 - cost.at_most_left(1) / cost.total
    record = {"parameters": size(model), "can_go": can_go, "asked": asked, "seconds_to_bind": bound}
    for _ in range(STEPS):
        optimizer.zero_grad()
        floating = [one for one in outputs(model, examples[1]) if one.requires_grad]
        loss = torch.stack([(one / one.detach().abs().max()).square().mean() for one in floating]).sum()
        with contextlib.suppress(RuntimeError):  # some keep values of the last step in evaluation mode
            loss.backward()
        for parameter in model.parameters():  # random weights may make numbers of any size
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0).clamp_(-1, 1)
        optimizer.step()
    optimizer.zero_grad()
    pruner.remove()
    start = time.perf_counter()
    small = fadeout.compact(model, example)
    record["seconds_to_compact"] = time.perf_counter() - start
    record["gone"] = 1 - size(small) / size(model)
    record["difference"] = difference(model, small, examples)
    record["varies"] = varies(model, examples)
    return record


def through_torch_pruning(entry: Entry) -> Record:
    from zoo_torch_pruning import prune

    model = build(entry)
    return prune(model, inputs(entry), difference)


TOOLS: dict[str, Callable[[Entry], Record]] = {
    "fadeout": through_fadeout,
    "torch-pruning": through_torch_pruning,
}


def attempt(tool: str, entry: Entry, pipe: Any) -> None:
    """Send what comes of it, or the message."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            record = TOOLS[tool](entry)
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
            said = re.sub(r"\S*site-packages/", "", str(error))  # no folders of this machine
            record = {"error": f"{type(error).__name__}: {said}", "at": where}
    said = [str(one.message) for one in caught if "compact" in str(one.message)]
    pipe.send({**record, **({"warned": said} if said else {})})


def run(tool: str, entry: Entry) -> Record:
    """One network in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=attempt, args=(tool, entry, there))
    start = time.perf_counter()
    process.start()
    there.close()
    record: Record = {"error": f"more than {LIMIT} seconds"}
    try:
        if here.poll(LIMIT):
            record = here.recv()
    except EOFError:
        record = {"error": "the process died"}
    process.kill()
    process.join()
    took = round(time.perf_counter() - start, 2)
    return {"tool": tool, "package": entry.package, "network": entry.name, **record, "seconds": took}


def preload(package: str) -> None:
    """Import a package here, so that the processes need not."""
    with contextlib.suppress(ImportError):  # the process says so
        importlib.import_module(MODULES.get(package, package))


def records() -> dict[tuple[str, str, str], Record]:
    """The last record of each network with each tool."""
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    each = map(json.loads, lines)
    return {(one["tool"], one["package"], one["network"]): one for one in each}


def done(record: Record) -> bool:
    """Whether there is nothing to mend: what others' tools do is theirs."""
    return is_good(record) if record["tool"] == "fadeout" else is_bound(record)


def report() -> None:
    """Write what the records say."""
    known = records()
    listed = [(entry.package, entry.name) for entry in entries()]
    by_tool = {
        tool: {each: known[(tool, *each)] for each in listed if (tool, *each) in known} for tool in TOOLS
    }
    ours, theirs = list(by_tool["fadeout"].values()), by_tool["torch-pruning"]
    try:
        version = importlib.metadata.version("torch-pruning")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    write_json(RESULTS / "networks.json", {"records": [*ours, *theirs.values()], **surroundings()})
    text = page(ours, theirs, version)
    write_atomically(RESULTS / "networks.md", lambda path: path.write_text(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="run those again whose names contain one of these")
    parser.add_argument("--failed", action="store_true", help="run those again that failed")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--tool", choices=TOOLS, help="only with this one")
    given = parser.parse_args()
    known = records()
    for tool in [given.tool] if given.tool else TOOLS:
        for entry in [] if given.report else entries():
            last = known.get((tool, entry.package, entry.name))
            chosen = any(name in f"{entry.package} {entry.name}" for name in given.names)
            if given.names and not chosen:
                continue
            if not given.names and last is not None and not (given.failed and not done(last)):
                continue
            preload(entry.package)
            record = run(tool, entry)
            with RECORDS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    report()


if __name__ == "__main__":
    main()
