"""Structured pruning: which channels can go, how many of them, and that they are really gone."""

import copy
import itertools
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.covering import covering
from support.helpers import Net, conv, outputs, same_outputs, shapes, size
from support.structured import (
    DIGIT,
    IMAGE,
    NETWORKS,
    Residual,
    bind,
    chain,
    check_target,
    magnitudes,
    most,
    scatter,
    without,
    without_norms,
)
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import fadeout
from fadeout import Channels, Decay, Progressive, SelectiveWeightDecay, models
from fadeout.measure import measure
from fadeout.methods import GradualMagnitudePruning, one_shot
from fadeout.structures.channels.scores import TAYLOR

# Which can go ---------------------------------------------------------------------------------------


def names(model: nn.Module, structure: Channels, **arguments: Any) -> set[str]:
    return {layer.name for layer in bind(model, structure, **arguments).layers}


def blocks(*leaves: str) -> set[str]:
    return {f"layer{stage}.{block}.{leaf}" for stage in (1, 2, 3) for block in range(3) for leaf in leaves}


def test_candidates_are_those_of_the_paper():
    """Not a norm that feeds an addition which another norm follows."""
    model = models.resnet20(width=4)
    assert names(model, Channels(IMAGE)) == {"bn1"} | blocks("bn1", "post")
    shortcuts = {"layer2.0.downsample.1", "layer3.0.downsample.1"}
    everything = {"bn1"} | blocks("bn1", "bn2", "post") | shortcuts
    assert names(model, Channels(IMAGE, candidates="all")) == everything
    usual = {"bn1"} | blocks("bn1", "bn2") | shortcuts
    assert names(models.resnet20(width=4, post_norm=False), Channels(IMAGE)) == usual


def test_without_norms_the_filters_are_ranked():
    assert names(models.lenet5(), Channels(DIGIT, by="norm")) == {"conv1", "conv2", "fc1", "fc2"}
    model = models.vit(image_size=6, patch=3, dim=6, depth=2, heads=2)
    layers = bind(model, Channels(IMAGE, by="norm")).layers
    assert {layer.name for layer in layers if not layer.rows} == {"blocks.0.fc1", "blocks.1.fc1"}
    assert [layer.width for layer in layers if layer.rows] == [2, 2]  # heads


def test_a_filter_with_a_norm_is_ranked_with_it():
    layers = {layer.name: layer for layer in bind(chain(), Channels(IMAGE, by="norm")).layers}
    assert layers.keys() == {"1", "4"}
    assert layers["1"].scored == ("1.weight", "1.bias", "0.weight")
    assert layers["4"].scored == ("4.weight", "4.bias", "3.weight", "3.bias")
    assert layers["4"].fading == ("4.weight", "4.bias")


def test_filters_fade_too_where_asked():
    layers = {layer.name: layer for layer in bind(chain(), Channels(IMAGE, filters=True)).layers}
    assert layers["4"].fading == ("4.weight", "4.bias", "3.weight", "3.bias")
    assert layers["4"].scored == ("4.weight",)


def test_filters_that_are_only_ranked_do_not_decay():
    model = scatter(chain())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fade = Decay(10.0, weight_decay=0.1, mode="implicit", selective=False)
    structure = Channels(IMAGE, by="norm")
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=fade, structure=structure)
    before = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"1.weight", "1.bias", "4.weight", "4.bias"}


def test_what_the_user_left_out_stays():
    model = chain()
    assert names(model, Channels(IMAGE), prunable=["4.weight"]) == {"4"}
    assert names(model, Channels(IMAGE, by="norm"), prunable=["3.weight"]) == {"4"}
    assert names(model, Channels(IMAGE), prunable=lambda name, p: name.startswith("1")) == {"1"}
    model[1].requires_grad_(False)
    assert names(model, Channels(IMAGE)) == {"4"}
    assert names(nn.DataParallel(model), Channels(IMAGE)) == {"4"}


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, checkpoint_wrapper, partial(torch.compile, backend="eager")]
)
def test_parts_of_a_network_may_be_wrapped(wrap):
    plain = scatter(chain())
    structure = Channels(IMAGE, by="norm", filters=True)
    masks = one_shot(
        nn.Sequential(copy.deepcopy(plain[:6]), *copy.deepcopy(plain[6:])), 0.5, structure=structure
    )
    model = nn.Sequential(wrap(plain[:6]), *plain[6:])
    assert one_shot(model, 0.5, structure=structure) == masks
    small = fadeout.compact(model, IMAGE)
    same_outputs(model, small, IMAGE)
    assert size(small) <= 0.5 * size(model)
    assert size(fadeout.compact(model, IMAGE, leaves=[model[0]])) == size(model)


def test_what_is_known_to_stay_is_no_candidate():
    """Read by a softmax over channels, used twice, or an output."""
    norms = {f"n{i}": nn.BatchNorm2d(4) for i in range(5)}
    model = Net(
        lambda m, x: m.n4(m.b(F.softmax(m.n0(m.a(x)), 1) + m.n1(m.n1(m.a(x))) + m.n2(m.c(m.n3(m.d(x)))))),
        **{"a": conv(3, 4), "b": conv(4, 4), "c": conv(4, 4), "d": conv(3, 4), **norms},
    )
    assert names(model, Channels(IMAGE)) == {"n3"}


@pytest.mark.parametrize(
    ("model", "structure", "message"),
    [
        (without_norms(), {}, "no channel of this network can go.*by='norm'"),
        (nn.Sequential(conv(3, 4), nn.BatchNorm2d(4)), {}, "no channel"),
        (nn.Linear(6, 2), {"by": "norm"}, "no channel"),
    ],
)
def test_networks_without_candidates(model, structure, message):
    with pytest.raises(ValueError, match=message):
        bind(model, Channels(IMAGE, **structure))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "size"}, "by is one of 'scale', 'norm', 'taylor' or None, got 'size'"),
        ({"of": "bytes"}, "of is one of 'parameters', 'operations', 'time' or None, got 'bytes'"),
        ({"candidates": "some"}, "candidates is one of 'paper', 'all', got 'some'"),
        ({"min_channels": -1}, "min_channels is a whole number from 0 on, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Channels(IMAGE, **arguments)


def test_a_network_that_cannot_be_traced():
    model = Net(lambda m, x: m.b(m.a(x)) if x.sum() > 0 else x, a=conv(3, 4), b=nn.BatchNorm2d(4))
    with pytest.raises(
        ValueError, match=r"traced on its example_input: in module 'Net', at .*test_structure"
    ):
        bind(model, Channels(IMAGE))


# How many go ----------------------------------------------------------------------------------------


def multiplications(model: nn.Module) -> int:
    return measure(model, IMAGE).total.macs


@pytest.mark.parametrize(("network", "much"), covering(2, NETWORKS, [False, True]))
def test_the_target_is_met_by_the_least_number_of_channels(network, much):
    build, arguments = NETWORKS[network]
    model, structure = scatter(build()), Channels(IMAGE, **arguments)
    little, more = (0.15, 0.4) if network == "transformer" else (0.3, 0.7)
    check_target(model, structure, more if much else little)


@pytest.mark.parametrize("network", ["chain", "grouped", "residual", "usual resnet"])
def test_a_target_in_operations(network):
    build, arguments = NETWORKS[network]
    structure = Channels(IMAGE, of="operations", **arguments)
    check_target(scatter(build()), structure, 0.5, multiplications)


def test_ranks_by_hand():
    """Six channels of 27 + 2 + 54 parameters each feed six of 55 + 2 + 12; the lowest go first."""
    model = chain()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.9, -0.1, 0.5, 0.6, 0.7, -0.8]))
        model[4].weight.copy_(torch.tensor([1.0, 1.0, 0.2, 1.0, 1.0, 1.0]))
    total = 6 * 27 + 12 + (6 * 54 + 6) + 12 + (24 * 3 + 3)
    assert size(model) == total
    bound = bind(model, Channels(IMAGE))

    def gone(sparsity: float) -> tuple[list[int], list[int]]:
        marks = bound.select(magnitudes(bound), sparsity)
        assert torch.equal(marks["1.weight"], marks["1.bias"])
        return tuple(marks[name].nonzero().squeeze(1).tolist() for name in ("1.weight", "4.weight"))

    first, second = 27 + 2 + 6 * 9, 5 * 9 + 1 + 2 + 4 * 3  # the second has one input less by then
    assert gone(1 / total) == ([1], [])
    assert gone(first / total) == ([1], [])
    assert gone((first + 1) / total) == ([1], [2])
    assert gone((first + second) / total) == ([1], [2])
    assert gone((first + second + 1) / total) == ([1, 2], [2])


def test_so_many_channels_stay():
    model = chain()
    with torch.no_grad():
        model[1].weight.copy_(torch.linspace(0.01, 0.06, 6))  # all lower than any of the other layer
    for least, sparsity in ((0, 0.75), (1, 0.75), (3, 0.6)):
        bound = bind(model, Channels(IMAGE, min_channels=least))
        marks = bound.select(magnitudes(bound), sparsity)
        assert int((~marks["1.weight"]).sum()) == least
        assert int((~marks["4.weight"]).sum()) >= max(least, 1)
    collapsed = without(model, bind(model, Channels(IMAGE, min_channels=0)), 0.75)
    (one,), (other,) = (outputs(collapsed, torch.randn(1, 3, 6, 6)) for _ in range(2))
    assert torch.equal(one, other)  # nothing goes through
    assert shapes(fadeout.compact(collapsed, IMAGE))["0.weight"] == (1, 3, 3, 3)


def test_channels_that_are_gone_and_have_to_stay_take_no_others_with_them():
    model = chain()
    bound = bind(model, Channels(IMAGE))
    scores = magnitudes(bound)
    scores["1.weight"] = torch.full_like(scores["1.weight"], -torch.inf)  # as a pruner keeps down
    marks = bound.select(scores, 1e-6)
    assert int((~marks["1.weight"]).sum()) == 1
    assert not marks["4.weight"].any()


@pytest.mark.parametrize(("network", "least"), covering(2, NETWORKS, [0, 1]))
def test_the_largest_target_that_can_be_reached(network, least):
    build, arguments = NETWORKS[network]
    model, structure = scatter(build()), Channels(IMAGE, min_channels=least, **arguments)
    bound = bind(model, structure)
    largest = most(bound)
    bound.check(largest)
    with pytest.raises(ValueError, match=f"with min_channels={least} at most {largest:g} can go"):
        bound.check(largest + 2e-4)
    for _ in range(2):  # whichever channels stay
        small = fadeout.compact(without(scatter(model), bound, largest), IMAGE, couple=structure.couple)
        assert size(model) - size(small) >= largest * size(model)


def test_a_pruner_refuses_what_cannot_be_reached():
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"sparsity=0.99 of the parameters cannot be reached"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.99, steps=10, structure=Channels(IMAGE))


# The fade -------------------------------------------------------------------------------------------

STEPS = 30
METHODS = {
    "progressive": (SelectiveWeightDecay, {"fade": Progressive()}),
    "gradient": (SelectiveWeightDecay, {"fade": Decay(9e3, weight_decay=1e-2)}),
    "implicit": (SelectiveWeightDecay, {"fade": Decay(1e9, weight_decay=1e-2, mode="implicit")}),
    "gmp": (GradualMagnitudePruning, {}),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(8, 3, 6, 6, generator=generator).double()
        optimizer.zero_grad()
        F.cross_entropy(model(images), torch.arange(8) % 3).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("method", "arguments"),
    covering(2, METHODS, [{}, {"by": "norm"}, {"filters": True}, {"of": "operations"}]),
    ids=str,
)
def test_channels_fade_and_are_gone(method, arguments):
    kind, extra = METHODS[method]
    model, example = scatter(Residual()).double(), IMAGE.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    structure = Channels(example, **arguments)
    pruner = kind(model, optimizer, sparsity=0.6, steps=STEPS, structure=structure, **extra)
    train(model, optimizer)
    before = copy.deepcopy(model)
    masks = pruner.remove()
    if method != "gradient":  # where removal takes nothing at all
        same_outputs(before, model, example)
    torch.testing.assert_close(outputs(before, example), outputs(model, example), rtol=0.05, atol=0.05)
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask)
    small = fadeout.compact(model, example)
    for training in (True, False):
        same_outputs(model, small, IMAGE.repeat(4, 1, 1, 1).double(), training=training)
    count = (lambda m: measure(m, example).total.macs) if arguments.get("of") else size
    assert count(small) <= 0.4 * count(model)
    rows = {name: mask.reshape(len(mask), -1).any(1) for name, mask in masks.items()}
    assert all(bool(rows[f"{bn}.weight"].any()) for bn in ("bn1", "bn2", "bn3"))


def test_what_gmp_has_taken_stays_taken():
    """Ranked by the norm of the whole filter, which goes on growing under a scale of zero."""
    model, example = scatter(Residual()).double(), IMAGE.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Channels(example, by="norm")
    pruner = GradualMagnitudePruning(model, optimizer, sparsity=0.6, steps=STEPS, structure=structure)
    gone = []
    for _ in range(STEPS):
        train(model, optimizer, 1)
        gone.append({name: p == 0 for name, p in model.named_parameters() if "bn" in name})
    for one, other in itertools.pairwise(gone):
        assert all(bool((other[name] | ~one[name]).all()) for name in one)
    assert sum(int(mask.sum()) for mask in gone[-1].values()) > 10
    assert size(fadeout.compact(model, example)) <= 0.4 * size(model)
    pruner.detach()


def test_by_scale_the_whole_target_is_known_from_the_first_step():
    model = scatter(Residual()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.6, steps=STEPS, structure=Channels(IMAGE.double(), by="scale")
    )
    assert pruner.sparsity_now == 0.6
    pruner.detach()
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.6, steps=STEPS, structure=Channels(IMAGE.double())
    )
    assert pruner.sparsity_now == 0.0  # what matters is seen first
    pruner._clock.step = math.ceil(0.75 * STEPS)
    assert pruner.sparsity_now == 0.6
    pruner.detach()
    growing = SelectiveWeightDecay(
        model,
        optimizer,
        sparsity=fadeout.schedules.linear(0.1, 0.6),
        steps=STEPS,
        structure=Channels(IMAGE.double()),
    )
    assert growing.sparsity_now == pytest.approx(0.1)


def test_graph_convolutions_keep_their_channels():
    model, example = models.gcn(num_classes=3, width=4, features=5), (torch.rand(6, 5), torch.eye(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no channel of this network can go"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, structure=Channels(example, by="norm"))


# The default score ----------------------------------------------------------------------------------------


def trained(model, structure, steps=60, sparsity=0.5):
    """A short training on something that can be learned; returns the masks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=sparsity, steps=steps, structure=structure)
    for number in range(steps):
        torch.manual_seed(number)
        x = torch.randn(16, 3, 8, 8)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long()).backward()
        optimizer.step()
    assert pruner.fade == 0
    return pruner.remove()


def test_equal_scales_do_not_decide():
    """All scales of a residual network begin at one: no layer falls to its last channel because of that."""
    torch.manual_seed(0)
    model, example = fadeout.models.resnet20(num_classes=2, width=8), torch.zeros(1, 3, 8, 8)
    masks = trained(model, Channels(example))
    shares = [float(mask.float().mean()) for name, mask in masks.items() if name.endswith("weight")]
    assert min(shares) >= 0.25
    assert len({round(share, 3) for share in shares}) > 2  # nor do all layers lose alike


@torch.no_grad()
def with_equal_scores() -> nn.Module:
    """A ResNet-20 with 16 maps: all scales are one, and each filter has a single weight, which is one."""
    model = fadeout.models.resnet20(num_classes=2, width=16, post_norm=False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.zero_()[:, 0, 0, 0] = 1
    return model


@pytest.mark.parametrize(("by", "multiple_of"), covering(2, [None, "scale", "norm", "taylor"], [1, 4]))
def test_equal_scores_take_the_same_share_of_every_layer(by, multiple_of):
    """By position, the first six layers would have been left with one channel of sixteen each."""
    model, structure = with_equal_scores(), Channels(IMAGE, by=by, multiple_of=multiple_of)
    bound = bind(model, structure)
    ones = {
        name: torch.ones(p.shape) if p.dim() == 1 else p.detach().abs()
        for name, p in bound.parameters.items()
    }
    bound.rank_by(structure.criterion_for(model, fadeout.Progressive()))
    kept = {layer.name: 1 - bound.select(ones, 0.5)[layer.fading[0]].float().mean() for layer in bound.layers}
    if multiple_of == 1:
        assert max(kept.values()) - min(kept.values()) <= 1 / 16
    assert min(kept.values()) >= 0.5


def test_equal_scores_within_layers_that_differ():
    """Only what is equal is shared out: lower scores go first, whatever their layer."""
    model = with_equal_scores()
    with torch.no_grad():
        model.layer1[0].bn1.weight[:8] = 0.5
    masks = one_shot(model, 0.004, structure=Channels(IMAGE, by="scale"))
    gone = {name for name, mask in masks.items() if not mask.all()}
    assert gone == {"layer1.0.bn1.weight", "layer1.0.bn1.bias"}


def test_branches_that_begin_at_zero_are_not_destroyed():
    torch.manual_seed(0)
    model = fadeout.models.resnet20(num_classes=2, width=8, post_norm=False)
    for name, module in model.named_modules():
        if name.endswith("bn2"):
            nn.init.zeros_(module.weight)
    masks = trained(model, Channels(torch.zeros(1, 3, 8, 8)))
    for name, mask in masks.items():
        assert mask.any(), name
    shares = [float(mask.float().mean()) for name, mask in masks.items() if name.endswith("weight")]
    assert min(shares) > 0.1


def test_before_the_first_step_scales_rank():
    model = scatter(Residual()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=STEPS, structure=Channels(IMAGE.double())
    )
    masks = pruner.masks()
    for layer in pruner._bound.layers:
        scale, stays = model.get_parameter(layer.scored[0]).detach().abs(), masks[layer.scored[0]]
        assert not stays.all()
        assert scale[~stays].max() < scale[stays].min()


def test_what_takes_more_parameters_along_goes_first():
    """Scores that say the same of all layers thin the wide ones more, and so need fewer channels in all."""
    model = fadeout.models.resnet20(num_classes=2, width=16, post_norm=False)
    bound = bind(model, Channels(IMAGE))
    bound.rank_by(TAYLOR)
    scores = {n: torch.linspace(1, 3, p.numel()) for n, p in bound.parameters.items()}
    masks = bound.select(scores, 0.75)
    left = {name: float(1 - mask.float().mean()) for name, mask in masks.items()}
    assert left["layer1.1.bn1.weight"] > left["layer2.1.bn1.weight"] > left["layer3.1.bn1.weight"] > 0.1


def test_gradients_cannot_rank_where_nothing_trains():
    with pytest.raises(ValueError, match=r"by='taylor'.*gradients.*'scale' or 'norm'"):
        one_shot(scatter(Residual()), 0.5, structure=Channels(IMAGE, by="taylor"))


def test_the_repr_has_all_that_changes_the_choice():
    """By it a state tells whether it was saved with the same structure."""
    plain, other = Channels(IMAGE), Channels(IMAGE, min_channels=2, couple=True, filters=True)
    assert repr(plain) == "Channels(by=None, of='parameters', candidates='paper')"
    assert repr(other) == f"{repr(plain)[:-1]}, filters=True, min_channels=2, couple=True)"
