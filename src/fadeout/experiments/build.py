"""From the settings of a run to what it works with: data, network, optimizer, structure."""

import inspect
import os
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from fadeout.experiments.paper.authors import AuthorsElements
from fadeout.experiments.run import DATA, MODELS, Run
from fadeout.models.lenet import lenet5_authors
from fadeout.models.resnet import zero_branches
from fadeout.structures.base import Structure
from fadeout.structures.blocks import Blocks
from fadeout.structures.channels import Channels
from fadeout.structures.elements import Elements
from fadeout.structures.nm import NM
from fadeout.torch_bridge.modes import still


def build_data(run: Run, directory: str | os.PathLike[str] | None = None) -> Any:
    load = DATA[run.data]
    loaded = load(directory) if inspect.signature(load).parameters else load()
    return loaded.validation() if run.validation else loaded


def build_model(run: Run, num_classes: int) -> nn.Module:
    """The network as it is initialised, which depends on the seed alone."""
    build = MODELS[run.model]
    if run.model == "lenet5" and run.preset == "authors":
        build = lenet5_authors
    wanted = {"num_classes": num_classes, "width": run.width, "norm": run.norm}
    if run.residual != "normed":
        wanted["post_norm"] = False
    if run.data.startswith("imagenet"):
        wanted["stem"] = "imagenet"
    accepted = inspect.signature(build).parameters
    if run.width is not None and "width" not in accepted:
        raise ValueError(f"{run.model} has no width to choose, got {run.width}")
    if not run.norm and "norm" not in accepted:
        raise ValueError(f"{run.model} leaves no choice about batch-norms: norm is True")
    if run.residual != "normed" and "post_norm" not in accepted:
        raise ValueError(f"{run.model} has no residual blocks to choose, got residual={run.residual!r}")
    torch.manual_seed(run.seed)
    model = build(**{n: value for n, value in wanted.items() if n in accepted and value is not None})
    if run.residual == "zero":
        zero_branches(model)
    return model


def build_fitting(run: Run, num_classes: int, example: Any) -> nn.Module:
    """The network, on the device of the example, which it takes; a ``ValueError`` where it does not."""
    inputs = example if isinstance(example, tuple) else (example,)
    try:
        model = build_model(run, num_classes).to(inputs[0].device)
        with still(model):
            model(*inputs)
    except (RuntimeError, TypeError, IndexError, MemoryError) as error:
        shapes = " and ".join("x".join(map(str, part.shape)) for part in inputs)
        raise ValueError(
            f"the network {run.model} does not go with the data {run.data}, whose inputs are {shapes}: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    norms = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    if run.structure == "channels" and run.method != "dense" and not norms:
        out = "" if run.norm else " with --no-norm"
        raise ValueError(
            f"a run ranks channels by the scales of batch-norms, and {run.model} has none{out}: pass "
            "--structure elements, or another --model"
        )
    return model


def build_optimizer(run: Run, model: nn.Module) -> Optimizer:
    """A new optimizer at the base learning rate."""
    if run.optimizer == "adam":
        return Adam(model.parameters(), lr=run.lr, weight_decay=run.weight_decay)
    return SGD(model.parameters(), lr=run.lr, momentum=run.momentum, weight_decay=run.weight_decay)


def build_structure(run: Run, example: Any) -> Structure:
    """The unit that is pruned as a whole."""
    if run.structure == "blocks":
        return Blocks(run.rows, run.columns)
    if run.structure == "nm":
        return NM(run.n, run.m)
    if run.structure == "channels":
        by = None if run.method == "auto" else "scale"  # all others rank as the paper does
        multiple = "auto" if run.multiple_of == 0 else run.multiple_of
        return Channels(
            timed_example(run, example),
            by=by,
            of=run.of,
            engine=run.engine,
            min_channels=run.min_channels,
            couple=run.couple,
            multiple_of=multiple,
        )
    return AuthorsElements() if run.preset == "authors" else Elements()


def timed_example(run: Run, example: Any) -> Any:
    """What a network runs on when its time is measured: as many examples as count together."""
    if run.time_batch == 1:
        return example
    if isinstance(example, tuple):
        raise ValueError(f"{run.data} is one example, got time_batch={run.time_batch}")
    return example.expand(run.time_batch, *example.shape[1:]).contiguous()
