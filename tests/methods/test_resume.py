"""Kill and resume at random steps: the same weights to the last bit."""

import io
import random
import warnings
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from support.covering import covering

from fadeout import (
    NM,
    Blocks,
    Channels,
    Decay,
    Elements,
    Latent,
    Progressive,
    SelectiveWeightDecay,
    criteria,
    schedules,
)
from fadeout.methods import ACDC, ST3, GradualMagnitudePruning, RigL
from fadeout.methods.external.pat import PAT

STEPS = 12
GROWING = schedules.exponential(1.0, 1e4)


def pruned_by(fade):
    def build(model, optimizer, **arguments):
        return SelectiveWeightDecay(model, optimizer, fade=fade, **arguments)

    return build


METHODS = {
    "progressive": pruned_by(Progressive()),
    "latent": pruned_by(Latent()),
    **{
        f"{mode} {penalty}": pruned_by(Decay(GROWING, weight_decay=1e-3, mode=mode, penalty=penalty))
        for mode in ("gradient", "implicit")
        for penalty in ("l2", "l1", "smooth_l1")
    },
    "gradient on all": pruned_by(Decay(GROWING, weight_decay=1e-4, selective=False)),
    "implicit on all": pruned_by(Decay(GROWING, weight_decay=1e-4, mode="implicit", selective=False)),
    "gmp": GradualMagnitudePruning,
    "acdc": ACDC,
}
OF_SINGLE_WEIGHTS = {"rigl": partial(RigL, every=3), "st3": ST3}  # by their magnitude, and of a whole network
OF_SINGLE_WEIGHTS |= {"pat": PAT} if find_spec("torchao") else {}
CRITERIA = {
    "magnitude": criteria.magnitude,
    "lamp": criteria.lamp,
    "gradient": criteria.gradient_magnitude,
    "taylor": criteria.taylor,
    "average": criteria.moving_average(criteria.taylor),
    "own": lambda weight, gradient: weight.abs() + gradient.abs(),
}


def split(model):
    """Muon for matrices, AdamW for the rest."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01)]


OPTIMIZERS = {
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.05)],
    "momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True)],
    "adam": lambda m: [torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True)],
    "adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=0.01)],
    "rmsprop": lambda m: [torch.optim.RMSprop(m.parameters(), lr=0.003, momentum=0.5)],
    "adagrad": lambda m: [torch.optim.Adagrad(m.parameters(), lr=0.05)],
    "nadam": lambda m: [torch.optim.NAdam(m.parameters(), lr=0.01)],
    "adafactor": lambda m: [torch.optim.Adafactor(m.parameters(), lr=0.01)],
    "lbfgs": lambda m: [torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=2)],
    "muon and adamw": split,
}

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
EVERY_ONE = pytest.mark.parametrize("method", [*METHODS, *OF_SINGLE_WEIGHTS])


class Run:
    """One process: everything is built anew, then perhaps loaded from what another process saved."""

    def __init__(self, task, optimizer, method, saved=None, **arguments):
        self.task, self.closure = task, optimizer == "lbfgs"
        self.optimizers = OPTIMIZERS[optimizer](task.model)
        self.schedulers = [torch.optim.lr_scheduler.StepLR(o, 5, 0.5) for o in self.optimizers]
        self.pruner = (METHODS | OF_SINGLE_WEIGHTS)[method](
            task.model, self.optimizers, **{"sparsity": 0.7, "steps": STEPS, **arguments}
        )
        if saved is not None:
            for part, state in zip(self.parts(), torch.load(saved, weights_only=True), strict=True):
                part.load_state_dict(state)

    def parts(self):
        return [self.task.model, *self.optimizers, *self.schedulers, self.pruner]

    def save(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts()], file)
        file.seek(0)
        return file


@pytest.fixture
def same_after_resuming(make_task, train, same_bits):
    """Train whole, and again with two kills at random steps; compare weights, masks and states."""

    def check(method, optimizer="momentum", *, kind="mlp", dtype=torch.float32, **arguments):
        def go(run, start, stop):
            def after(step):
                for scheduler in run.schedulers:
                    scheduler.step()

            train(run.task, run.optimizers, stop, start=start, closure=run.closure, after=after)

        whole = Run(make_task(kind, dtype), optimizer, method, **arguments)
        go(whole, 0, STEPS)

        kills = sorted(random.Random(f"{method} {optimizer} {dtype} {arguments}").sample(range(STEPS), 2))
        saved = None
        for number, (start, stop) in enumerate(zip([0, *kills], [*kills, STEPS], strict=True)):
            # Another seed for each process: what is not saved would show.
            run = Run(
                make_task(kind, dtype, seed=0 if saved is None else number),
                optimizer,
                method,
                saved,
                **arguments,
            )
            go(run, start, stop)
            saved = run.save()
        same_bits(run.task.model, whole.task.model)
        assert run.pruner.progress == whole.pruner.progress == 1.0
        same_bits(dict(run.pruner.masks()), dict(whole.pruner.masks()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whether the fade was complete is not the question here
            whole.pruner.remove()
            run.pruner.remove()
        same_bits(run.task.model, whole.task.model)

    return check


OFTEN_USED = ("momentum", "adamw", "lbfgs", "muon and adamw")


@pytest.mark.parametrize(("method", "optimizer"), covering(2, [*METHODS, *OF_SINGLE_WEIGHTS], OFTEN_USED))
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_every_method_and_optimizer(same_after_resuming, method, optimizer):
    same_after_resuming(method, optimizer)


@pytest.mark.slow
@EVERY_ONE
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in OFTEN_USED])
def test_every_method_and_other_optimizers(same_after_resuming, method, optimizer):
    same_after_resuming(method, optimizer)


@pytest.mark.parametrize(("method", "criterion"), covering(3, METHODS, CRITERIA))
def test_every_method_and_criterion(same_after_resuming, method, criterion):
    same_after_resuming(method, criterion=CRITERIA[criterion], structure=Elements(scope="layer"))


@pytest.mark.parametrize(
    ("method", "dtype", "criterion"),
    covering(3, METHODS, [torch.bfloat16, torch.float16, torch.float64], ["magnitude", "average"]),
)
def test_every_method_and_dtype(same_after_resuming, method, dtype, criterion):
    """Below float32, doses that are saved up must be saved too."""
    same_after_resuming(method, "sgd", dtype=dtype, criterion=CRITERIA[criterion])


@pytest.mark.parametrize("method", OF_SINGLE_WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_methods_of_single_weights_and_dtypes(same_after_resuming, method, dtype):
    same_after_resuming(method, "sgd", dtype=dtype)


@EVERY_ONE
def test_batch_norm_and_a_target_that_grows(same_after_resuming, method):
    same_after_resuming(method, kind="conv", sparsity=schedules.cubic(0.7, window=(0.1, 0.6)))


@pytest.mark.parametrize(
    ("method", "by", "criterion"), covering(2, METHODS, ["scale", "norm"], ["magnitude", "average"])
)
def test_channels(same_after_resuming, method, by, criterion):
    structure = Channels(torch.zeros(1, 1, 5, 5), by=by)
    arguments = {"sparsity": 0.4, "structure": structure, "criterion": CRITERIA[criterion]}
    same_after_resuming(method, kind="conv", **arguments)


@EVERY_METHOD
def test_channels_in_multiples(same_after_resuming, method):
    structure = Channels(torch.zeros(1, 1, 5, 5), by="norm", multiple_of=2)
    same_after_resuming(method, kind="conv", sparsity=0.4, structure=structure)


@pytest.mark.parametrize(
    ("method", "structure", "criterion"),
    covering(2, METHODS, [Blocks(2, 3), NM(1, 2)], ["magnitude", "average"]),
    ids=str,
)
def test_blocks_and_groups(same_after_resuming, method, structure, criterion):
    same_after_resuming(method, sparsity=0.5, structure=structure, criterion=CRITERIA[criterion])


@pytest.mark.parametrize("kill", range(STEPS + 1))
def test_every_single_step(make_task, train, same_bits, kill):
    """The default fade with a gradient criterion in bfloat16, which has the most to save."""
    arguments = {"criterion": CRITERIA["average"]}
    ends = []
    for stops in ([STEPS], [kill, STEPS]):
        saved, start = None, 0
        for stop in stops:
            run = Run(make_task("mlp", torch.bfloat16), "sgd", "progressive", saved, **arguments)
            train(run.task, run.optimizers, stop, start=start)
            saved, start = run.save(), stop
        ends.append(run.task.model)
    same_bits(*ends)


def test_where_lamp_looks_its_shares_up(make_task, train, same_bits, monkeypatch):
    """What was targeted before is found again by the shares of then, not by those of the step to come."""
    monkeypatch.setattr("fadeout.structures.elements._LOOKS", 4)  # in a training: at every tenth step
    ends = []
    for stops in ([40], [20, 40]):
        saved, start = None, 0
        for stop in stops:
            lamp = {"criterion": criteria.lamp, "steps": 40, "sparsity": 0.8}
            run = Run(make_task("conv"), "momentum", "latent", saved, **lamp)
            train(run.task, run.optimizers, stop, start=start)
            saved, start = run.save(), stop
        ends.append(run.task.model)
    same_bits(*ends)


def test_saved_up_doses_are_part_of_the_state(bare, push):
    """A factor of 0.99 is nothing in bfloat16 until some of them have gathered."""
    fade = Decay(1 / 0.99 - 1, weight_decay=1.0, mode="implicit")
    value = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)

    def build(weight):
        model = bare(w=weight.clone())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return model, optimizer, SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=50, fade=fade)

    model, optimizer, pruner = build(value)
    push(model, optimizer)
    assert model.w[0, 0].item() == 1.0
    for _ in range(39):  # a process for each step: nothing would ever fade if they forgot
        state, weight = pruner.state_dict(), model.w.detach()
        model, optimizer, pruner = build(weight)
        pruner.load_state_dict(state)
        push(model, optimizer)
    assert model.w[0, 0].item() == pytest.approx(0.99**40, rel=0.1)


def test_a_state_is_a_copy(make_task, train):
    """What has been taken does not change with the training that goes on."""
    task = make_task("mlp")
    run = Run(task, "sgd", "gmp", criterion=criteria.taylor)
    train(task, run.optimizers, 8)
    state = run.pruner.state_dict()
    kept = io.BytesIO()
    torch.save(state, kept)
    train(task, run.optimizers, STEPS, start=8)
    kept.seek(0)
    before = torch.load(kept, weights_only=True)
    assert state["step"] == before["step"] == 8
    for part, values in before.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, torch.Tensor):
                assert torch.equal(state[part][name], value), (part, name)


def test_a_loaded_state_is_a_copy(make_task, train, same_bits):
    """Two pruners may start from one state."""
    first = Run(make_task("mlp"), "sgd", "progressive", criterion=CRITERIA["average"])
    train(first.task, first.optimizers, 8)
    state, weights = (
        first.pruner.state_dict(),
        {k: v.clone() for k, v in first.task.model.state_dict().items()},
    )
    ends = []
    for _ in range(2):
        run = Run(make_task("mlp"), "sgd", "progressive", criterion=CRITERIA["average"])
        run.task.model.load_state_dict(weights)
        run.pruner.load_state_dict(state)
        train(run.task, run.optimizers, STEPS, start=8)
        ends.append(run.task.model)
    same_bits(*ends)


@EVERY_ONE
def test_resuming_beyond_the_end_does_not_warn_again(make_task, train, method):
    run = Run(make_task("mlp"), "sgd", method)
    train(run.task, run.optimizers, STEPS)
    with pytest.warns(UserWarning, match="more steps"):
        train(run.task, run.optimizers, STEPS + 2, start=STEPS)
    again = Run(make_task("mlp"), "sgd", method, run.save())
    train(again.task, again.optimizers, STEPS + 4, start=STEPS + 2)
    assert again.pruner.progress == 1.0
