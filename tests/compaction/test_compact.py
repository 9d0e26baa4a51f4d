"""The compact network as a whole: whose class it is, how it trains on, what it refuses."""

import copy
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, Net, check, conv, gathers, kill, outputs, same_outputs, shapes, size
from torch import Tensor, fx, nn

import fadeout
from fadeout import Channels, Masks, SelectiveWeightDecay, models

PICTURE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).double()


class Residual(nn.Module):
    """Two layers that are added; the rectifier between leaves no module to put channels in their places."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = conv(3, 4, bias=False), nn.BatchNorm2d(4)
        self.b, self.c = conv(3, 4), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.norm(self.a(x))) + self.b(x))


class Functional(nn.Module):
    """Dropout and batch-norm as functions, which take the mode as an argument."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(3, 4), conv(3, 4), conv(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) + self.b(x)
        x = F.batch_norm(x, self.mean, self.variance, training=self.training)
        return self.c(F.dropout(x, 0.5, self.training))


class Chain(nn.Sequential):
    def __init__(self):
        super().__init__(conv(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2, 3))


def chain() -> Chain:
    model = Chain().double()
    kill(model[1], channels=[1, 2])
    return model


def residual() -> Residual:
    model = Residual().double()
    kill(model.norm, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    return model


def functional() -> Functional:
    model = Functional().double()
    kill(model.a, channels=[0])
    kill(model.b, channels=[1])
    return model


# The copy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [chain, residual, functional])
@pytest.mark.parametrize("training", [True, False])
def test_the_original_is_untouched(build, training, same_bits):
    model = build().train(training)
    *_, last = model.children()
    last.train(not training)  # a mode of its own
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    small = fadeout.compact(model, PICTURE)
    same_bits(before, model.state_dict())
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(generator, torch.get_rng_state())
    assert {p.data_ptr() for p in model.parameters()}.isdisjoint(p.data_ptr() for p in small.parameters())


@pytest.mark.parametrize("build", [chain, residual, functional])
def test_modes_and_frozen_parameters_are_those_of_the_original(build):
    model = build()
    first = next(iter(dict(model.named_children())))
    model.get_submodule(first).eval()
    next(model.parameters()).requires_grad_(False)
    small = fadeout.compact(model, PICTURE)
    assert small.training
    assert not small.get_submodule(first).training
    frozen = {name for name, p in small.named_parameters() if not p.requires_grad}
    assert frozen == {f"{first}.weight"}


def test_class_and_forward_are_kept_where_they_can_be():
    small = fadeout.compact(chain(), PICTURE)
    assert type(small) is Chain
    assert shapes(small)["0.weight"] == (2, 3, 3, 3)


def test_a_forward_that_must_change_is_rewritten():
    model = residual()
    small = fadeout.compact(model, PICTURE)
    assert isinstance(small, fx.GraphModule)
    assert small._get_name() == "Residual"
    assert shapes(small).keys() == shapes(model).keys()
    assert size(small) == 3 * 2 + 2 * 2 + (3 * 2 + 2) + (2 * 3 + 2)
    same_outputs(model, small, PICTURE, training=True)
    same_outputs(model, small, PICTURE)


def test_what_reads_the_mode_goes_on_reading_it():
    model = functional()
    small = fadeout.compact(model, PICTURE)
    assert isinstance(small, fx.GraphModule)
    for training in (True, False, True):
        found = []
        for network in (model, small):
            torch.manual_seed(1)
            found += outputs(network, PICTURE, training=training)
        torch.testing.assert_close(*found)
        torch.testing.assert_close(small.mean, model.mean)  # moves in training mode, and only there
    (first,), (second,) = (outputs(small, PICTURE, training=True) for _ in range(2))
    assert not torch.equal(first, second)
    (first,), (second,) = (outputs(small, PICTURE) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("build", [chain, residual, functional])
def test_the_compact_network_is_a_network_like_any_other(build):
    model = build()
    small = fadeout.compact(model, PICTURE).eval()
    same_outputs(small, copy.deepcopy(small), PICTURE)
    same_outputs(small, torch.compile(small, backend="eager", fullgraph=True), PICTURE)
    other = copy.deepcopy(small)
    nn.init.zeros_(other.get_parameter(next(iter(shapes(other)))))
    other.load_state_dict(small.state_dict())
    same_outputs(small, other, PICTURE)
    single = other.float()(PICTURE.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), small(PICTURE), rtol=1e-4, atol=1e-5)
    same_outputs(small, pickle.loads(pickle.dumps(small)), PICTURE)


@pytest.mark.parametrize("build", [chain, residual, functional])
def test_compacting_twice_changes_nothing(build):
    small = fadeout.compact(build(), PICTURE)
    again = fadeout.compact(small, PICTURE)
    assert shapes(again) == shapes(small)
    same_outputs(small, again, PICTURE)


def test_a_wrapper_is_taken_off():
    small = fadeout.compact(torch.optim.swa_utils.AveragedModel(chain()), PICTURE)
    assert type(small) is Chain
    assert size(small) < size(chain())


# Networks that do more than a graph shows -----------------------------------------------------------


class Noisy(Residual):
    """Takes another way in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x.neg()
        return super().forward(x)


def test_a_forward_that_goes_two_ways_is_kept():
    model = Noisy().double()
    kill(model.norm, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    small = fadeout.compact(model, PICTURE)
    assert type(small) is Noisy
    assert not gathers(small)
    assert shapes(small)["a.weight"] == shapes(small)["b.weight"] == (3, 3, 1, 1)  # coupled
    same_outputs(model, small, PICTURE, training=True)
    same_outputs(model, small, PICTURE)


def test_a_head_for_training_keeps_what_it_reads():
    def forward(m, x):
        x = m.a(x)
        return (m.b(x), m.helper(x)) if m.training else m.b(x)

    model = Net(forward, a=conv(3, 4), b=conv(4, 2), helper=conv(4, 2)).double()
    with torch.no_grad():
        model.b.weight[:, 0] = 0
    with pytest.warns(UserWarning, match="cannot keep this network's outputs"):
        small = fadeout.compact(model, PICTURE)
    same_outputs(model, small, PICTURE, training=True)
    small = fadeout.compact(model, PICTURE, for_inference=True)
    assert shapes(small)["a.weight"] == (3, 3, 1, 1)
    same_outputs(model, small, PICTURE)


class Branch(nn.Module):
    """Cannot be traced: the way depends on the numbers."""

    def __init__(self):
        super().__init__()
        self.conv = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x  # the line to be named


def test_what_cannot_be_traced_is_named():
    model = nn.Sequential(conv(3, 4), nn.Sequential(Branch(), nn.ReLU()), conv(4, 2))
    with pytest.raises(ValueError, match=r"in module '1\.0', at .*the line to be named") as caught:
        fadeout.compact(model, PICTURE.float())
    assert re.search(r"test_compact\.py:\d+:", str(caught.value))
    assert "leaves=" in str(caught.value)
    assert "Elements" in str(caught.value)


@pytest.mark.parametrize("by", ["class", "instance"])
def test_leaves_keep_all_their_channels(by):
    branch = Branch()
    model = nn.Sequential(conv(3, 5), nn.ReLU(), conv(5, 4), branch, conv(4, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], model[2], model[4], channels=[1])
    kept = {"0": [0, 2, 3, 4], "2": (ALL, [0, 2, 3, 4]), "4": [0, 2, 3], "6": (ALL, [0, 2, 3])}
    check(model, kept, leaves=[Branch if by == "class" else branch])


# Training goes on -----------------------------------------------------------------------------------


def _resnet(post_norm: bool) -> nn.Module:
    return models.resnet20(num_classes=2, width=4, post_norm=post_norm)


def _depthwise() -> nn.Module:
    depthwise = conv(4, 4, 3, padding=1, groups=4, bias=False)
    return nn.Sequential(
        *(conv(3, 4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), depthwise, nn.BatchNorm2d(4), nn.Flatten()),
        nn.Linear(144, 2),
    )


def _twice() -> nn.Module:
    layers = {"a": conv(3, 4), "b": conv(4, 4, bias=False), "n": nn.BatchNorm2d(4), "c": conv(4, 2)}
    return Net(lambda m, x: m.c(m.n(m.b(F.relu(m.b(m.a(x)))))), **layers)


# A network, the layers that lose channels, and whether all of them lose the same: a zero that must stay, say
# in half a head, would come back to life.
TRAINED = {
    "chain": (Chain, "1", False),
    "residual": (Residual, "norm|b", False),
    "depthwise": (_depthwise, "1|4", True),
    "used twice": (_twice, "a|b|n", True),
    "resnet": (lambda: _resnet(True), r".*(bn\d|post|downsample\.1)", False),
    "usual resnet": (lambda: _resnet(False), r".*(bn\d|downsample\.1)", False),
    "vit": (lambda: models.vit(2, image_size=6, patch=3, dim=4, depth=1, heads=2), r".*(\.v|fc1)", True),
}


def _masks(model: nn.Module, layers: str, alike: bool) -> Masks:
    """Take the last two channels, and perhaps some of the others."""
    masks = {}
    for name, module in model.named_modules():
        if re.fullmatch(layers, name):
            stays = torch.rand(len(module.weight)) > 0.4
            stays[: -2 if alike else 1] = True
            stays[-2:] = False
            for leaf, parameter in module.named_parameters():
                rows = stays.view([-1] + [1] * (parameter.dim() - 1))
                masks[f"{name}.{leaf}"] = rows.expand_as(parameter).clone()
    return Masks(masks)


OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.002),
}


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    pictures = torch.randn(4, 3, 6, 6, generator=generator).double()
    optimizer.zero_grad()
    model(pictures).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", TRAINED)
def test_training_goes_on_as_if_nothing_had_happened(network, optimizer):
    build, layers, alike = TRAINED[network]
    model = build().double()
    first, *others = model.parameters()
    groups = [{"params": others, "weight_decay": 0.1}, {"params": [first], "lr": 0.01, "weight_decay": 0.0}]
    dense = OPTIMIZERS[optimizer](groups)
    for number in range(3):
        _step(model, dense, number)
    masks = _masks(model, layers, alike)
    masks.apply(model)
    small, carried = fadeout.compact(model, PICTURE, optimizer=dense)
    assert size(small) < size(model)
    assert type(carried) is type(dense)
    masks.hold(model, dense)
    for number in range(3, 13):
        _step(model, dense, number)
        _step(small, carried, number)
    same_outputs(model, small, PICTURE)
    same_outputs(model, small, PICTURE, training=True)
    assert shapes(fadeout.compact(model, PICTURE)) == shapes(small)


def test_groups_and_state_are_carried_over():
    model = chain()
    optimizer = torch.optim.Adam(
        [{"params": [model[0].weight], "lr": 0.3, "name": "filters"}, {"params": model[3].parameters()}],
        lr=0.1,
        betas=(0.8, 0.9),
        amsgrad=True,
    )
    _step(model, optimizer, 0)
    small, carried = fadeout.compact(model, PICTURE, optimizer=optimizer)
    assert [group["lr"] for group in carried.param_groups] == [0.3, 0.1]
    assert carried.param_groups[0]["name"] == "filters"
    assert carried.param_groups[1]["betas"] == (0.8, 0.9)
    held = [[id(p) for p in group["params"]] for group in carried.param_groups]
    assert held == [[id(small[0].weight)], [id(small[3].weight), id(small[3].bias)]]
    mine, theirs = optimizer.state[model[3].weight], carried.state[small[3].weight]
    assert torch.equal(theirs["exp_avg"], mine["exp_avg"][:, [0, 3]])
    assert torch.equal(theirs["max_exp_avg_sq"], mine["max_exp_avg_sq"][:, [0, 3]])
    assert theirs["step"] == 1
    theirs["step"] += 1
    assert mine["step"] == 1  # the original optimizer is untouched
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_a_bias_that_came_into_being_is_trained_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    kill(model[0], channels=[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small, carried = fadeout.compact(model, torch.zeros(1, 3), optimizer=optimizer)
    assert any(p is small[2].bias for group in carried.param_groups for p in group["params"])


def test_optimizers_that_cannot_be_carried_over():
    model = chain()
    with pytest.raises(ValueError, match="LBFGS"):
        fadeout.compact(model, PICTURE, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="parameters that the model does not have"):
        fadeout.compact(model, PICTURE, optimizer=torch.optim.SGD(chain().parameters(), lr=0.1))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kill(model[0], channels=[1])
    optimizer = torch.optim.Adafactor(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    kill(model[0], channels=[1])
    with pytest.raises(ValueError, match=r"shape \(4, 1\) for a parameter of shape \(4, 3\)"):
        fadeout.compact(model, torch.zeros(1, 3), optimizer=optimizer)


# Batch-norm's shift ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_removed_channel_is_exactly_zero(training):
    """Left at its shift, a "removed" channel would go on speaking."""
    model = Chain().double()
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([3.0, -3.0, 2.0, 5.0]))
        model[1].weight.copy_(torch.tensor([1.0, 0.1, 0.2, 2.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.4, steps=10, structure=Channels(PICTURE))
    with pytest.warns(UserWarning, match="fade was not complete"):
        masks = pruner.remove()
    assert masks["1.weight"].tolist() == masks["1.bias"].tolist() == [True, False, False, True]
    found = model[1].train(training)(model[0](PICTURE))
    assert not found[:, [1, 2]].any()
    assert found[:, [0, 3]].all()
    same_outputs(model, fadeout.compact(model, PICTURE), PICTURE, training=training)
