"""A compact network in which more channels die shrinks again."""

import copy

import pytest
import torch
from support.helpers import Net, conv, gathers, kill, outputs, same_outputs, shapes, size
from support.structured import Residual, library, resnet8, scatter
from torch import fx, nn

import fadeout
from fadeout import Channels
from fadeout.compaction.plan import plans_of
from fadeout.graph.gather import Gather

IMAGE = torch.randn(2, 3, 6, 6).double()


def residual():
    model = Residual().double()
    for norm in (model.bn1, model.bn2, model.bn3):
        nn.init.normal_(norm.bias)
    return model


def named(model, name):
    """A module, perhaps beside a Gather."""
    module = model.get_submodule(name)
    return next(m for m in module.modules() if not isinstance(m, nn.Sequential | Gather))


def test_the_second_time_by_hand():
    model = residual()
    kill(model.bn1, channels=[0])
    kill(model.bn3, channels=[1])
    small = fadeout.compact(model, IMAGE)
    assert len(gathers(small)) == 2
    assert shapes(small)["conv1.weight"][0] == shapes(small)["conv3.weight"][0] == 5
    # of bn1 channels 1 to 5 are left, of bn3 0 and 2 to 5: channel 3 of the sum dies
    kill(named(small, "bn1"), channels=[2])
    kill(named(small, "bn3"), channels=[2])
    smaller = fadeout.compact(small, IMAGE)
    same_outputs(small, smaller, IMAGE)
    same_outputs(small, smaller, IMAGE, training=True)
    assert shapes(smaller)["conv1.weight"][0] == shapes(smaller)["conv3.weight"][0] == 4
    assert shapes(smaller)["fc.weight"] == (3, 5)
    assert len(gathers(smaller)) == 2  # none beside another
    kill(model.bn1, model.bn3, channels=[3])
    assert size(smaller) == size(fadeout.compact(model, IMAGE))  # as if at once


def test_a_gather_with_nothing_to_do_goes():
    model = residual()
    kill(model.bn1, channels=[0])
    small = fadeout.compact(model, IMAGE)
    kill(named(small, "bn3"), channels=[0])  # now the sum loses it too
    smaller = fadeout.compact(small, IMAGE)
    same_outputs(small, smaller, IMAGE)
    assert gathers(small)
    assert not gathers(smaller)
    assert shapes(smaller)["fc.weight"] == (3, 5)


def test_constants_stand_in():
    """A shift that stays when its scale has gone is put where the channel was."""
    model = residual()
    kill(model.bn3, channels=[1], shift=-1.0)
    small = fadeout.compact(model, IMAGE)
    same_outputs(model, small, IMAGE)
    kill(named(small, "bn3"), channels=[3], shift=3.0)
    smaller = fadeout.compact(small, IMAGE)
    same_outputs(small, smaller, IMAGE)
    assert shapes(smaller)["conv3.weight"][0] == 4
    (gather,) = gathers(smaller)
    assert gather.constant.tolist() == [0, -1, 0, 0, 3, 0]


@pytest.mark.parametrize("couple", [True, False])
def test_channels_that_nobody_reads_any_more(couple):
    model = residual()
    kill(model.bn1, channels=[0])
    kill(model.bn3, channels=[1])
    small = fadeout.compact(model, IMAGE)
    with torch.no_grad():
        small.fc.weight[:, 5] = 0
        small.conv2.weight[:, 4] = 0
    smaller = fadeout.compact(small, IMAGE, couple=couple)
    same_outputs(small, smaller, IMAGE)
    assert shapes(smaller)["conv1.weight"][0] == shapes(smaller)["conv3.weight"][0] == 4
    assert shapes(smaller)["fc.weight"] == (3, 5)


def test_a_gather_whose_input_is_not_followed():
    model = nn.Sequential(nn.Flatten(0, 1), Gather(torch.tensor([2, -1, 0]), torch.ones(3), width=3, axis=0))
    model.append(nn.Unflatten(0, (1, 3))).append(nn.Linear(4, 2)).double()
    x = torch.randn(1, 3, 4).double()
    same_outputs(model, fadeout.compact(model, x), x)


class Twice(nn.Module):
    """Calls one compact network on two values."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        return self.inner(x) - self.inner(y)


def test_a_gather_that_is_used_twice_stays():
    model = residual()
    kill(model.bn1, channels=[0])
    small = fadeout.compact(model, IMAGE)
    kill(named(small, "bn3"), channels=[0, 1])
    both = Twice(small)
    inputs = IMAGE, IMAGE.flip(0)
    with pytest.warns(
        UserWarning, match=r"2 of 'inner.bn3' stay, because they are not followed through add\(\)"
    ):
        same = fadeout.compact(both, inputs)
    same_outputs(both, same, inputs)


# Networks as they are trained -----------------------------------------------------------------------

NETWORKS = {
    "rewritten": residual,
    "usual resnet": lambda: resnet8(post_norm=False).double(),
    "resnet": lambda: resnet8(post_norm=True).double(),
    "mobilenet": lambda: library("mobilenetv2"),
}


@torch.no_grad()
def prune(model, generator):
    """A third of the channels of each batch-norm, one at least, but never the last."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.num_features > 1:
            count = max(1, module.num_features // 3)
            kill(module, channels=torch.randperm(module.num_features, generator=generator)[:count].tolist())


def step(model, optimizer, number):
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(number)).double()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:compact.. keeps .* channels whose weights are all zero")  # of mobilenet
@pytest.mark.parametrize("network", [*list(NETWORKS)[:-1], pytest.param("mobilenet", marks=pytest.mark.slow)])
def test_prune_train_prune_and_train(network, tmp_path):
    """Three times over; then save, load, and go on."""
    build, generator = NETWORKS[network], torch.Generator().manual_seed(0)
    model = scatter(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(3):
        step(model, optimizer, number)
        prune(model, generator)
        small, carried = fadeout.compact(model, IMAGE, optimizer=optimizer)
        assert size(small) < size(model)
        assert len(plans_of(small)) == number + 1
        same_outputs(model, small, IMAGE)
        assert shapes(fadeout.compact(small, IMAGE)) == shapes(small)
        held = {id(p) for group in carried.param_groups for p in group["params"]}
        assert held == {id(p) for p in small.parameters()}
        for parameter in small.parameters():
            state = carried.state[parameter]
            assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        model, optimizer = small, carried
    fadeout.save(model, tmp_path / "small.safetensors")
    loaded = fadeout.load(tmp_path / "small.safetensors", build)
    for other in (loaded, copy.deepcopy(model)):
        same_outputs(model, other, IMAGE)
    same_outputs(model, loaded, IMAGE, training=True)
    assert shapes(loaded) == shapes(model)
    step(model, optimizer, 3)
    assert all(output.isfinite().all() for output in outputs(model, IMAGE))


def test_both_ways_of_placing():
    """In modules of their own beside another, and in a forward that is rewritten."""
    model = residual()
    kill(model.bn1, channels=[0])
    assert isinstance(fadeout.compact(model, IMAGE), fx.GraphModule)
    model = NETWORKS["usual resnet"]()
    prune(model, torch.Generator().manual_seed(0))
    small = fadeout.compact(model, IMAGE)
    assert not isinstance(small, fx.GraphModule)
    assert gathers(small)


def test_structured_pruning_goes_on_with_a_compact_network():
    model = scatter(NETWORKS["usual resnet"]())
    prune(model, torch.Generator().manual_seed(0))
    small = fadeout.compact(model, IMAGE)
    assert gathers(small)
    bound = Channels(IMAGE).bind(small, [torch.optim.SGD(small.parameters(), lr=0.1)], lambda *_: True)
    marks = bound.select({name: p.detach().abs() for name, p in bound.parameters.items()}, 0.5)
    with torch.no_grad():
        for name, mark in marks.items():
            small.get_parameter(name)[mark] = 0
    smaller = fadeout.compact(small, IMAGE)
    same_outputs(small, smaller, IMAGE)
    alive = {layer.name: ~marks[layer.fading[0]].numpy() for layer in bound.layers}
    assert size(smaller) == bound.cost.left(alive)
    assert size(smaller) <= 0.5 * size(small)


def test_a_norm_between_gathers_keeps_its_state():
    """Others need more of what it reads, and the sum has more than it gives."""

    def forward(m, x):
        x = m.a(x)
        return m.c(m.norm(x) + m.b(x))

    layers = {"a": conv(3, 4), "norm": nn.BatchNorm2d(4), "b": conv(4, 4), "c": conv(4, 2)}
    model = Net(forward, **layers).double()
    kill(model.norm, channels=[0, 1])
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, 0)
    kill(model.norm, channels=[0, 1])
    small, carried = fadeout.compact(model, IMAGE, optimizer=optimizer)
    assert shapes(small)["norm.0.1.weight"] == (2,)
    mine, theirs = carried.state[small.norm[0][1].weight], optimizer.state[model.norm.weight]
    assert torch.equal(mine["exp_avg"], theirs["exp_avg"][2:])
    same_outputs(model, small, IMAGE)
