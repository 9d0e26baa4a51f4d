"""What the processes of tests/test_distributed.py do."""

import contextlib
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from support.helpers import Largest
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

import fadeout
from fadeout.methods.slimming import Slimming
from fadeout.torch_bridge.parameters import named
from fadeout.torch_bridge.sharding import block_of, distributed_as, local, whole

STEPS = 30
FADES = {
    "progressive": lambda: fadeout.Progressive(),
    "latent": lambda: fadeout.Latent(),
    "gradient": lambda: fadeout.Decay(fadeout.schedules.exponential(1.0, 1000.0), weight_decay=1e-3),
    "implicit": lambda: fadeout.Decay(
        fadeout.schedules.exponential(1.0, 1e5), weight_decay=1e-3, mode="implicit"
    ),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


class Net(nn.Module):
    """Convolutions with batch-norm, and linear layers, of sizes that four does not divide."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 7, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(7)
        self.conv2 = nn.Conv2d(7, 6, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6 * 4, 9)
        self.head = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        return self.head(torch.relu(self.hidden(x)))


def build() -> Net:
    torch.manual_seed(0)
    model = Net().double()
    with torch.no_grad():
        for norm in (model.norm1, model.norm2):
            norm.weight.uniform_(0.5, 1.5)
        model.hidden.weight.mul_(8).round_().div_(8)  # ties abound, and zeros
    return model


def wrap(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in (model.conv2, model.hidden):
            fully_shard(layer)
        return fully_shard(model)
    return model


def structure(kind: str) -> Any:
    example = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    return {
        "elements": lambda: fadeout.Elements(),
        "layers": lambda: fadeout.Elements(scope="layer"),
        "channels": lambda: fadeout.Channels(example),
        "norms": lambda: fadeout.Channels(example, by="norm"),
        "rounded": lambda: fadeout.Channels(example, by="norm", multiple_of=3),
        "blocks": lambda: fadeout.Blocks(2, 5),  # which shards cut
        "nm": lambda: fadeout.NM(2, 5),
    }[kind]()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    torch.manual_seed(1000 + number)
    x, y = torch.randn(12, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (12,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def full(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.detach()).clone() for name, p in named(model).items()}


def train(
    how: str, kind: str, fade: str, optimizer: str, steps: int = STEPS, sparsity: float = 0.6
) -> dict[str, Any]:
    """Weights in the middle, masks in the middle and at the end, weights after removal."""
    model = wrap(build(), how)
    trained = OPTIMIZERS[optimizer](model.parameters())
    pruner = fadeout.SelectiveWeightDecay(
        model, trained, sparsity=sparsity, steps=steps, structure=structure(kind), fade=FADES[fade]()
    )
    for number in range(steps // 2):
        step(model, trained, number)
    middle, early = full(model), pruner.masks()
    for number in range(steps // 2, steps):
        step(model, trained, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masks = pruner.remove()
    return {
        "middle": middle,
        "early": {name: whole(mask) for name, mask in early.items()},
        "masks": {name: whole(mask) for name, mask in masks.items()},
        "weights": full(model),
        "left": masks.left,
    }


def measured_on_each() -> dict[str, Any]:
    """What a pruner knows of the machine, where the clocks of all processes differ."""
    from fadeout.structures.channels import bound, layer_times, network_times

    seconds = 1.0 + dist.get_rank()
    bound.multiple_for = lambda multiple, engine: 2 * (1 + dist.get_rank())
    layer_times.time_layer = lambda layer, given, engine: seconds * layer.weight.numel()
    network_times.time_networks = lambda networks, example, engine: {
        name: seconds * sum(p.numel() for p in network.parameters()) for name, network in networks.items()
    }
    model = wrap(build(), "ddp")
    example = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    pruner = fadeout.SelectiveWeightDecay(
        model,
        OPTIMIZERS["sgd"](model.parameters()),
        steps=9,
        structure=fadeout.Channels(example, faster=1.5, min_channels=0),
    )
    return pruner.state_dict()["structure"]


# Any placement --------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Parameters of several ranks and sizes; one dimension is shorter than there are processes."""

    def __init__(self):
        super().__init__()
        for name, shape in {"a": (5, 6), "b": (3, 4, 2), "c": (8, 4), "d": (2, 7)}.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=torch.float64)))


def block() -> Block:
    torch.manual_seed(3)
    model = Block()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-6, 7, parameter.shape) / 8)
    return model


def placed(layout: str) -> Block:
    """A model whose parameters lie as a layout says."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    model, size = block(), dist.get_world_size()
    line = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    places = {
        "rows": dict.fromkeys("abcd", (line, [Shard(0)])),
        "columns": dict.fromkeys("abcd", (line, [Shard(1)])),
        "copies": dict.fromkeys("abcd", (line, [Replicate()])),
        "hybrid": dict.fromkeys("abcd", (square, [Replicate(), Shard(0)])),
        "grid": dict.fromkeys("abcd", (square, [Shard(0), Shard(1)])),
        "twice": dict.fromkeys("abcd", (square, [Shard(0), Shard(0)])),
        "apart": {
            "a": (square["data"], [Shard(0)]),
            "b": (square["tensor"], [Shard(0)]),
            "c": (square["tensor"], [Shard(1)]),
        },
        # as FSDP over one dimension of a mesh, and tensor parallel layers over the other, leave them
        "mixed": {
            "a": (square["data"], [Shard(0)]),
            "b": (square, [Shard(0), Shard(1)]),
            "c": (square, [Replicate(), Shard(1)]),
        },
    }[layout]
    for name, (mesh, kinds) in places.items():
        parameter = distribute_tensor(getattr(model, name).detach(), mesh, kinds)
        setattr(model, name, nn.Parameter(parameter))
    return model


def drift(layout: str | None, scope: str, fade: str, method: str = "swd") -> dict[str, Any]:
    """Thirty steps with given gradients: whatever the layout, each weight sees the same numbers."""
    model = block() if layout is None else placed(layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    chosen = fadeout.Elements(scope=scope)
    if method == "gmp":
        pruner: Any = fadeout.methods.GradualMagnitudePruning(
            model, optimizer, sparsity=0.6, steps=30, structure=chosen
        )
    else:
        criterion = {
            "swd": fadeout.criteria.magnitude,
            "lamp": fadeout.criteria.lamp,
            "calm": fadeout.criteria.lamp,
            "not calm": fadeout.criteria.lamp,
            "taylor": fadeout.criteria.moving_average(fadeout.criteria.taylor),
        }[method]
        pruner = fadeout.SelectiveWeightDecay(
            model,
            optimizer,
            sparsity=0.85 if method in ("calm", "not calm") else 0.6,  # so that rows are emptied
            steps=30,
            structure=chosen,
            fade=FADES[fade](),
            criterion=criterion,
        )
        pruner._bound_fade._calms = method == "calm"  # as if there were batch-norms
    masks = []
    for number in range(30):
        torch.manual_seed(number)
        for parameter in model.parameters():
            gradient = torch.randint(-4, 5, parameter.shape).double() / 8
            parameter.grad = distributed_as(block_of(gradient, parameter).clone(), parameter)
            if layout == "copies":  # each process has a part of the sum, as after a backward pass
                parts = torch.full_like(gradient, 0) + gradient / dist.get_world_size()
                parameter.grad = DTensor.from_local(parts, parameter.device_mesh, [Partial()])
        optimizer.step()
        if number % 3 == 2:  # to gather them takes longer than a step
            masks.append({name: whole(mask) for name, mask in pruner.masks().items()})
    fade = pruner.fade
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pruner.remove()
    return {"masks": masks, "weights": full(model), "fade": fade, "warnings": len(said)}


def closure_loss(how: str, method: str) -> float:
    """What a closure's loss of seven becomes by a penalty."""
    model = wrap(build(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if method == "slimming":
        Slimming(model, optimizer, steps=9, structure=structure("channels"), strength=0.5, authors=False)
    else:
        fadeout.SelectiveWeightDecay(
            model, optimizer, sparsity=0.6, steps=9, structure=structure(method), fade=FADES["gradient"]()
        )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.zeros(2, 1, 6, 6, dtype=torch.float64)).sum() * 0 + 7
        loss.backward()
        return loss

    return optimizer.step(closure).item()


# What goes over the wire, and what is allocated -----------------------------------------------------------


def traffic(rows: int, scope: str = "network", fade: str = "progressive") -> dict[str, Any]:
    """Bytes and calls of each step over a sharded model, and the largest tensor that they make."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.Linear(1024, rows, bias=False), nn.Linear(1024, rows, bias=False)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = fadeout.SelectiveWeightDecay(
        *(model, optimizer),
        sparsity=0.9,
        steps=1000,
        structure=fadeout.Elements(scope=scope),
        fade=FADES[fade](),
    )
    state = pruner.state_dict()
    pruner.load_state_dict({**state, "step": 500})
    found: dict[str, Any] = {"bytes": [], "calls": [], "largest": 0}
    sent, real = [], dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.numel() * tensor.itemsize)
        return real(tensor, *args, **kwargs)

    weights = [p.to_local() for p in model.parameters()]
    for _ in range(20):
        for weight in weights:
            weight.detach().add_(torch.randn_like(weight), alpha=1e-6)
        sent.clear()
        dist.all_reduce = counted
        try:
            with Largest() as largest:
                optimizer.step()
        finally:
            dist.all_reduce = real
        found["bytes"].append(sum(sent))
        found["calls"].append(len(sent))
        found["largest"] = max(found["largest"], largest.bytes)
    return {
        **found,
        "shard": sum(w.numel() * w.itemsize for w in weights),
    }


# Checkpoints ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def silence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a checkpoint of one process says that it is one
        yield


@silence()
def resume(how: str, method: str, folder: str, first: int, last: int, steps: int = STEPS) -> dict[str, Any]:
    """Go on from a checkpoint, if there is one, train some steps, and write another."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, alone = wrap(build(), how), not dist.is_initialized()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    options: dict[str, Any] = {"sparsity": 0.6, "steps": steps}
    if method == "gmp":
        pruner: Any = fadeout.methods.GradualMagnitudePruning(model, optimizer, **options)
    elif method == "taylor":
        criterion = fadeout.criteria.moving_average(fadeout.criteria.taylor)
        pruner = fadeout.SelectiveWeightDecay(model, optimizer, criterion=criterion, **options)
    elif method in ("GrowingRegularization", "HESSO"):
        kind = getattr(fadeout.methods, method)
        pruner = kind(model, optimizer, structure=structure("channels"), **options)
    else:
        pruner = fadeout.SelectiveWeightDecay(model, optimizer, structure=structure(method), **options)
    if first:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load(
            {"model": weights, "optimizer": moments, "pruner": pruner}, checkpoint_id=f"{folder}/{first}"
        )
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for number in range(first, last):
        step(model, optimizer, number)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "pruner": pruner}
    dcp.save(state, checkpoint_id=f"{folder}/{last}", no_dist=alone)
    return {"masks": {name: whole(mask) for name, mask in pruner.masks().items()}, "weights": full(model)}


def consolidate(how: str, folder: str) -> None:
    """Train, remove, and write an ordinary file, and the masks."""
    model = wrap(build(), how)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    pruner = fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=STEPS, structure=structure("channels")
    )
    for number in range(STEPS):
        step(model, optimizer, number)
    masks = pruner.remove()
    if how == "fsdp" or dist.get_rank() == 0:
        fadeout.save(model, f"{folder}/model.safetensors")
        masks.save(f"{folder}/masks.safetensors")
        assert os.path.exists(f"{folder}/masks.safetensors")  # on every process, and without a barrier
    dist.barrier()


def saved_nowhere(folder: str) -> list[str]:
    """What saving a sharded network, and its masks, in a folder that is not there says."""
    model = wrap(build(), "fsdp")
    masks = fadeout.Masks({name: parameter != 0 for name, parameter in model.named_parameters()})
    saves = [lambda: fadeout.save(model, f"{folder}/model"), lambda: masks.save(f"{folder}/masks")]
    return [message(save, OSError) for save in saves]


def masked(how: str, folder: str) -> dict[str, Tensor]:
    """Masks from a file hold through further training."""
    masks = fadeout.Masks.load(f"{folder}/masks.safetensors")
    model = wrap(build(), how)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    masks.hold(model, optimizer)
    for number in range(5):
        step(model, optimizer, number)
    return full(model)


def one_shot(how: str, kind: str) -> dict[str, Any]:
    model = wrap(build(), how)
    first = fadeout.methods.one_shot(model, 0.3, structure=structure(kind))
    second = fadeout.methods.one_shot(model, 0.6, structure=structure(kind), before=first)
    return {"left": second.left, "masks": {n: whole(m) for n, m in second.items()}, "weights": full(model)}


# Precision and accumulation -------------------------------------------------------------------------------


def accumulate(how: str) -> dict[str, Tensor]:
    """Two batches a step, without communication in the first."""
    model = wrap(build(), how)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.6, steps=10)
    for number in range(10):
        optimizer.zero_grad()
        for part in (0, 1):
            torch.manual_seed(2 * number + part)
            x, y = torch.randn(4, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (4,))
            quiet = model.no_sync() if how == "ddp" and part == 0 else contextlib.nullcontext()
            if how == "fsdp":
                model.set_requires_gradient_sync(part == 1)
            with quiet:
                nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    pruner.remove()
    return full(model)


def mixed_precision(low_weights: bool) -> dict[str, Any]:
    """Weights in float32 and bfloat16 for the computation; or weights that are themselves in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    model = model.bfloat16() if low_weights else model
    policy = MixedPrecisionPolicy() if low_weights else MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=40)
    for number in range(40):
        torch.manual_seed(number)
        optimizer.zero_grad()
        x = torch.randn(16, 20, dtype=torch.bfloat16 if low_weights else torch.float32)
        model(x).float().square().mean().backward()
        optimizer.step()
    fade = pruner.fade
    masks = pruner.remove()
    return {"fade": fade, "left": masks.left, "total": masks.total, "weights": full(model)}


# Errors ---------------------------------------------------------------------------------------------------


def message(call: Any, kind: type[Exception] = ValueError) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


def different_seeds() -> str:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message(lambda: fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10))


def different_models() -> str:
    torch.manual_seed(0)
    model = nn.Linear(4, 4 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message(lambda: fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10))


def one_nan(how: str, kind: str, fade: str, at: int) -> str:
    """A weight of the last process is not a number."""
    model = wrap(build(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=10, structure=structure(kind), fade=FADES[fade]()
    )
    pruner.load_state_dict({**pruner.state_dict(), "step": at})
    if dist.get_rank() == dist.get_world_size() - 1:
        name = "norm2.weight" if kind == "channels" else "hidden.weight"
        local(pruner.parameters[name].detach()).view(-1)[0] = float("nan")

    def go() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    return message(go)


def different_steps() -> str:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 10 + dist.get_rank()
    return message(lambda: fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=steps))


def narrow_filters(split: bool) -> dict[str, Tensor]:
    """Filters of one input channel, split along their inputs: one process has all, the others nothing."""
    model = build()
    if split:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (model.conv1, model.conv2):
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(1)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.4, steps=10, structure=structure("norms")
    )
    return {name: whole(mask) for name, mask in pruner.masks().items()}


def tiled(layout: str | None, kind: str) -> dict[str, Any] | str:
    """Masks of blocks or groups, wherever the weights lie; or what is wrong with that."""
    chosen = {"blocks": fadeout.Blocks(2, 3), "nm": fadeout.NM(1, 2), "thirds": fadeout.NM(2, 3)}[kind]
    sparsity = chosen.sparsity if isinstance(chosen, fadeout.NM) else 0.5
    model = block() if layout is None else placed(layout)
    found: dict[str, Any] = {}

    def go() -> None:
        for part in (0.6, 1.0):
            masks = fadeout.methods.one_shot(model, part * sparsity, structure=chosen)
            found[str(part)] = {name: whole(mask) for name, mask in masks.items()}

    error = message(go)
    return found if error == "no error" else error


def lonely_display(criterion: str) -> float:
    """A process of several that have copies asks for figures by itself."""
    model = wrap(build(), "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=10, criterion=getattr(fadeout.criteria, criterion)
    )
    return pruner.fade if dist.get_rank() == 0 else 0.0


def whole_layers(how: str) -> str:
    model = wrap(build(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message(
        lambda: fadeout.SelectiveWeightDecay(
            model, optimizer, sparsity=0.5, steps=10, criterion=lambda w, g: w.abs() / w.abs().sum()
        )
    )


def compacts() -> str:
    return message(
        lambda: fadeout.compact(wrap(build(), "fsdp"), torch.zeros(1, 1, 6, 6, dtype=torch.float64))
    )
