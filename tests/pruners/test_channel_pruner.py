"""Pruners that rank channels by a score of their own: what is chosen, what is left, and resuming."""

import copy
import io
import warnings
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from support.covering import covering
from support.helpers import size
from support.structured import IMAGE, Residual, chain, scatter
from torch import nn

import fadeout
from fadeout import Channels, Elements
from fadeout.experiments.run import Run
from fadeout.methods import HESSO, GrowingRegularization
from fadeout.methods.external.depgraph import DepGraph
from fadeout.pruners.channel_pruner import ChannelPruner

METHODS = {"greg": GrowingRegularization, "hesso": HESSO}
METHODS |= {"depgraph": DepGraph} if find_spec("torch_pruning") else {}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
STEPS = 60


class Given(ChannelPruner):
    """Scores as they are given, for one layer after the other."""

    given: list[torch.Tensor]

    def score_channels(self):
        return self.given

    def end(self):
        pass


@pytest.mark.parametrize("by", ["scale", "norm"])
def test_the_lowest_scores_of_all_layers_go_whatever_the_weights_are(by):
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Channels(IMAGE, by=by)
    pruner = Given(model, optimizer, sparsity=0.3, steps=3, structure=structure)
    pruner.given = [torch.tensor([9.0, 0.0, 8, 7, 6, 5]), torch.tensor([100.0, 1.0, 200, 2, 300, 400])]
    masks = pruner.masks()
    gone = {name: (~mask).flatten(1).all(1) if mask.dim() > 1 else ~mask for name, mask in masks.items()}
    assert gone["1.weight"].nonzero().flatten().tolist() == [1]
    assert gone["4.weight"].nonzero().flatten().tolist() == [1, 3]
    assert torch.equal(gone["0.weight"], gone["1.bias"])  # a filter goes with its norm's scale and shift
    assert not structure.filters  # what the user has made is left as it is


def test_what_has_gone_stays_gone_whatever_its_score():
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Given(model, optimizer, sparsity=0.3, steps=3, structure=Channels(IMAGE))
    pruner.given = [torch.arange(6.0), torch.arange(6.0, 12.0)]
    pruner.held = pruner.select(0.3)
    masks = pruner.masks()
    pruner.given = [torch.arange(12.0, 6.0, -1), torch.arange(6.0, 0.0, -1)]
    assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks().items())


def train(model, optimizer, stop, start=0):
    for step in range(start, stop):
        images = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        F.cross_entropy(model(images), torch.arange(8) % 3).backward()
        optimizer.step()


def build(method, seed=0, **arguments):
    torch.manual_seed(seed)
    model = scatter(Residual()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    options = {"sparsity": 0.6, "steps": STEPS, "structure": Channels(IMAGE.double()), **arguments}
    return model, optimizer, METHODS[method](model, optimizer, **options)


@pytest.mark.parametrize(
    ("method", "arguments"),
    covering(2, METHODS, [{}, {"by": "norm"}, {"of": "operations"}, {"min_channels": 2}]),
    ids=str,
)
def test_the_target_is_reached_and_removal_changes_nothing(method, arguments):
    model, optimizer, pruner = build(method, structure=Channels(IMAGE.double(), **arguments))
    train(model, optimizer, STEPS)
    assert (pruner.sparsity_now, pruner.factor_now, pruner.fade) == (0.6, 0.0, 0.0)
    before = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masks = pruner.remove()
    for one, other in zip(before.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask)
    count = size
    if "of" in arguments:
        count = lambda network: fadeout.measure(network, IMAGE.double()).total.macs  # noqa: E731
    least = 0.4 * count(model)
    assert 0.6 * least < count(fadeout.compact(model, IMAGE.double())) <= least


@pytest.mark.parametrize("method", ["greg", "hesso"])
def test_channels_of_several_slices_go_as_one(method):
    """What gates a gated linear unit, and what it gates: two rows of one filter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3)).double()
    optimizer, example = torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(8, 6).double()
    structure = Channels(example, by="norm")
    pruner = METHODS[method](model, optimizer, sparsity=0.4, steps=STEPS, structure=structure)
    for step in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(example), (torch.arange(8) + step) % 3).backward()
        optimizer.step()
    stays = pruner.remove()["0.weight"].any(1)
    assert torch.equal(stays[:8], stays[8:])
    small = fadeout.compact(model, example)
    assert size(small) <= 0.6 * size(model)
    assert torch.allclose(small(example), model(example))


KILLS = {"greg": (32, 35, 45), "hesso": (3, 7, 20), "depgraph": (3, 29, 45)}


@pytest.mark.parametrize(("method", "when"), covering(2, METHODS, range(3)))
def test_resuming_gives_the_same_bits(method, when, same_bits):
    kill = KILLS[method][when]
    whole, optimizer, pruner = build(method)
    train(whole, optimizer, STEPS)
    parts = build(method)
    train(*parts[:2], kill)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    again = build(method, seed=1)
    for part, state in zip(again, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*again[:2], STEPS, start=kill)
    same_bits(again[0], whole)
    same_bits(dict(again[2].masks()), dict(pruner.masks()))


@EVERY_METHOD
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_however_short_a_training_is_it_ends_at_the_target(method, steps):
    model, optimizer, pruner = build(method, steps=steps)
    train(model, optimizer, steps)
    assert pruner.fade == 0.0
    pruner.remove()
    assert size(fadeout.compact(model, IMAGE.double())) <= 0.4 * size(model)


@EVERY_METHOD
def test_removal_before_the_end_takes_what_would_go_now(method):
    model, optimizer, pruner = build(method)
    train(model, optimizer, 3)
    assert pruner.sparsity_now == 0.0
    with pytest.warns(UserWarning, match="57 steps early"):
        pruner.remove()
    assert size(fadeout.compact(model, IMAGE.double())) <= 0.4 * size(model)


@EVERY_METHOD
def test_a_network_that_diverges_is_said_to(method):
    model, optimizer, _ = build(method)
    model.conv1.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match="holds NaN or infinite weights at step 0"):
        train(model, optimizer, 1)


@EVERY_METHOD
def test_wrong_arguments(method):
    with pytest.raises(ValueError, match=r"structure is fadeout\.Channels\(example_input\), got Elements"):
        build(method, structure=Elements())
    with pytest.raises(ValueError, match="cannot be reached"):
        build(method, sparsity=0.99)
    with pytest.raises(ValueError, match="sparsity"):
        build(method, sparsity=1.5)
    with pytest.raises(ValueError, match="steps"):
        build(method, steps=0)
    pruner = build(method)[2]
    state = pruner.state_dict()
    del state["held"]
    with pytest.raises(ValueError, match="'held' is missing"):
        pruner.load_state_dict(state)
    pruner.detach()
    with pytest.raises(ValueError, match=f"{method} prunes whole channels: --structure channels"):
        Run(method=method).phases()
