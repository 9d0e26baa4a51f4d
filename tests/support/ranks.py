"""A program for test_distributed.py: processes that train together, over gloo, in many small trials.

Importing torch takes seconds, so that this process does it once, and each process of a trial is a fork of it.
What each returned, or its error, is in ``FOLDER/<trial>.<rank>``.
"""

import os
import signal
import socket
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed.fsdp
import torch.distributed.tensor
from torch import nn

import fadeout
from fadeout.experiments.data import digits
from fadeout.experiments.disk.run_folder import alone
from fadeout.experiments.distributed import ALONE, join
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.run import Run
from fadeout.experiments.training import evaluate, train

SHORT = {"epochs": 2, "steps": 4, "fine_tune": 1, "last_fine_tune": 1}
RUNS = {
    "dense": Run(method="dense", **SHORT),
    "han": Run(method="han", rounds=2, sparsity=0.8, optimizer="adam", lr=0.01, soft=True, **SHORT),
    "auto": Run(method="auto", **SHORT),
    "channels": Run(method="gmp", structure="channels", sparsity=0.6, **SHORT),
}
# what is interrupted and resumed: how, processes, run
RESUMED = [
    ("ddp", 2, "han"),
    ("ddp", 3, "auto"),
    ("ddp", 2, "channels"),
    ("fsdp", 3, "dense"),
    ("fsdp", 2, "han"),
    ("fsdp", 3, "auto"),
    ("fsdp", 2, "channels"),
]
# what equals one process: how, processes, batch, whether it is pruned
EQUAL = [
    ("ddp", 2, 64, True),
    ("ddp", 3, 64, True),
    ("ddp", 3, 2, False),  # one of them has nothing to take
    ("fsdp", 2, 64, False),
    ("fsdp", 3, 2, False),
    ("fsdp", 3, 64, True),
]
DIGITS = digits()
FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()


def together(trial, size, act, how="ddp"):
    """Let so many processes do the same; what each returned is kept under the trial's name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    numbers = []
    for rank in range(size):
        number = os.fork()
        if number == 0:
            signal.alarm(60)  # nothing here hangs, or else it dies
            os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(size))
            try:
                with join(how, timeout=30) as world:
                    outcome = act(world)
            except (Exception, Stopped) as error:
                outcome = {"error": f"{type(error).__name__}: {error}"}
            torch.save(outcome, FOLDER / f"{trial}.{rank}")
            os._exit(0)
        numbers.append(number)
    for number in numbers:
        os.waitpid(number, 0)


# Equal to one process -------------------------------------------------------------------------------------


def trained(world, batch, pruned):
    """Weights, losses and accuracy after a few steps in float64, without batch-norms."""
    data = replace(DIGITS, prepare=lambda x: DIGITS.prepare(x).double())
    torch.manual_seed(0)
    model = fadeout.models.smallcnn().double()
    network = world.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pruner = fadeout.NoPruning()
    if pruned:
        pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=12)
    losses = []
    train(
        *(network, optimizer, data),
        epochs=2,
        batch_size=batch,
        seed=0,
        steps=6,
        on_step=lambda now: losses.append(now.loss.item()),
        world=world,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner.remove()
    found = evaluate(network, data.tests(299), world=world)  # 599: the last batch has one
    state = {name: value.cpu() for name, value in world.whole(model.state_dict()).items()}
    return {"weights": state, "losses": losses, "accuracy": tuple(found)}


class _Pairs(nn.Module):
    """Takes two inputs, as a network for graphs does, and drops some of what it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x, scale):
        return self.layer(nn.functional.dropout(x, 0.5, self.training) * scale)


class _Graph:
    """A whole graph as the only batch; half of its nodes have a label."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(8, 5, generator=draw).double(), torch.ones(8, 1).double()
        self.y = torch.tensor([0, 1, 2, 0, -100, -100, -100, -100])

    def batches(self, *args, **kwargs):
        yield self.inputs, self.y

    tests = batches


def trained_on_a_graph(world):
    torch.manual_seed(0)
    model = _Pairs().double()
    network = world.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(network, optimizer, _Graph(), epochs=4, batch_size=1, seed=0, world=world)
    found = evaluate(network, _Graph().tests(), world=world)
    return {"weights": dict(world.whole(model.state_dict())), "losses": [], "accuracy": tuple(found)}


# Runs -----------------------------------------------------------------------------------------------------


def carried_out(name, results, stop=None, rank=1, **options):
    """A function that carries a run out, or what is left of it; one process gets a signal after a step."""

    def act(world):
        def watch(now):
            if now["step"] == stop and world.rank == rank % world.size:
                signal.raise_signal(signal.SIGTERM)

        return execute(RUNS[name], FOLDER / results, watch=watch, world=world, **options)

    return act


def death(world):
    """One process dies in the middle of it all."""

    def watch(now):
        if now["step"] == 3 and world.rank == 1:
            os._exit(9)

    return execute(RUNS["dense"], FOLDER / "death", watch=watch, world=world)


def main():
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None
    execute(RUNS["channels"], FOLDER / "warm")  # what torch imports when it is first used, once for all forks
    for batch, pruned in {case[2:] for case in EQUAL}:
        torch.save(trained(ALONE, batch, pruned), FOLDER / f"alone-{batch}-{pruned}")
    for how, size, batch, pruned in EQUAL:
        together(
            f"equal-{how}-{size}-{batch}-{pruned}", size, partial(trained, batch=batch, pruned=pruned), how
        )
    torch.save(trained_on_a_graph(ALONE), FOLDER / "alone-graph")
    together("graph", 2, trained_on_a_graph)
    for how, size, name in RESUMED:
        trial = f"{how}-{size}-{name}"
        together(f"{trial}-whole", size, carried_out(name, f"{trial}-whole"), how)
        together(f"{trial}-stop", size, carried_out(name, trial, stop=3), how)
        together(f"{trial}-rest", size, carried_out(name, trial, checkpoint_every=0), how)
    # begun by three, gone on with by two in the other way, ended by one
    together("fewer-3", 3, carried_out("dense", "fewer", stop=2), "fsdp")
    together("fewer-2", 2, carried_out("dense", "fewer", stop=5, rank=0), "ddp")
    torch.save(carried_out("dense", "fewer")(ALONE), FOLDER / "fewer-1.0")
    # and begun by one
    try:
        carried_out("dense", "more", stop=3, rank=0)(ALONE)
    except Stopped:
        together("more", 2, carried_out("dense", "more"), "fsdp")
    # errors
    together("death", 3, death)
    (FOLDER / "busy" / RUNS["dense"].hash).mkdir(parents=True)
    with alone(FOLDER / "busy" / RUNS["dense"].hash):
        together("busy", 2, carried_out("dense", "busy"))
    damaged = FOLDER / "damaged" / RUNS["dense"].hash
    damaged.mkdir(parents=True)
    (damaged / "checkpoint").write_text("{")
    together("damaged", 2, carried_out("dense", "damaged"))
    small = replace(RUNS["dense"], batch_size=3)
    together("small", 2, lambda world: execute(small, FOLDER / "small", world=world))


if __name__ == "__main__":
    main()
