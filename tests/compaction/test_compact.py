"""The compact network as a whole: whose class it is, how it behaves."""

import copy
import pickle

import pytest
import torch
from support.helpers import Net, conv, gathers, kill, outputs, same_outputs, shapes, size
from support.small_networks import IMAGES, Chain, Residual, chain, functional, residual
from torch import Tensor, fx, nn

import fadeout
from fadeout import Channels, SelectiveWeightDecay

# The copy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [chain, residual, functional])
@pytest.mark.parametrize("training", [True, False])
def test_the_original_is_untouched(build, training, same_bits):
    model = build().train(training)
    *_, last = model.children()
    last.train(not training)  # a mode of its own
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    small = fadeout.compact(model, IMAGES)
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
    small = fadeout.compact(model, IMAGES)
    assert small.training
    assert not small.get_submodule(first).training
    frozen = {name for name, p in small.named_parameters() if not p.requires_grad}
    assert frozen == {f"{first}.weight"}


def test_class_and_forward_are_kept_where_they_can_be():
    small = fadeout.compact(chain(), IMAGES)
    assert type(small) is Chain
    assert shapes(small)["0.weight"] == (2, 3, 3, 3)


def test_a_forward_that_must_change_is_rewritten():
    model = residual()
    small = fadeout.compact(model, IMAGES)
    assert isinstance(small, fx.GraphModule)
    assert small._get_name() == "Residual"
    assert shapes(small).keys() == shapes(model).keys()
    assert size(small) == 3 * 2 + 2 * 2 + (3 * 2 + 2) + (2 * 3 + 2)
    same_outputs(model, small, IMAGES, training=True)
    same_outputs(model, small, IMAGES)


def test_what_reads_the_mode_goes_on_reading_it():
    model = functional()
    small = fadeout.compact(model, IMAGES)
    assert isinstance(small, fx.GraphModule)
    for training in (True, False, True):
        found = []
        for network in (model, small):
            torch.manual_seed(1)
            found += outputs(network, IMAGES, training=training)
        torch.testing.assert_close(*found)
        torch.testing.assert_close(small.mean, model.mean)  # moves in training mode, and only there
    (first,), (second,) = (outputs(small, IMAGES, training=True) for _ in range(2))
    assert not torch.equal(first, second)
    (first,), (second,) = (outputs(small, IMAGES) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("build", [chain, residual, functional])
def test_the_compact_network_is_a_network_like_any_other(build):
    model = build()
    small = fadeout.compact(model, IMAGES).eval()
    same_outputs(small, copy.deepcopy(small), IMAGES)
    same_outputs(small, torch.compile(small, backend="eager", fullgraph=True), IMAGES)
    other = copy.deepcopy(small)
    nn.init.zeros_(other.get_parameter(next(iter(shapes(other)))))
    other.load_state_dict(small.state_dict())
    same_outputs(small, other, IMAGES)
    single = other.float()(IMAGES.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), small(IMAGES), rtol=1e-4, atol=1e-5)
    same_outputs(small, pickle.loads(pickle.dumps(small)), IMAGES)


@pytest.mark.parametrize("build", [chain, residual, functional])
def test_compacting_twice_changes_nothing(build):
    small = fadeout.compact(build(), IMAGES)
    again = fadeout.compact(small, IMAGES)
    assert shapes(again) == shapes(small)
    same_outputs(small, again, IMAGES)


def test_a_wrapper_is_taken_off():
    small = fadeout.compact(torch.optim.swa_utils.AveragedModel(chain()), IMAGES)
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
    with pytest.warns(UserWarning, match="1 of 'norm', 1 of 'b' stay.*: pass for_inference=True"):
        small = fadeout.compact(model, IMAGES)
    assert type(small) is Noisy
    assert not gathers(small)
    assert shapes(small)["a.weight"] == shapes(small)["b.weight"] == (3, 3, 1, 1)  # coupled
    same_outputs(model, small, IMAGES, training=True)
    same_outputs(model, small, IMAGES)


def test_a_head_for_training_keeps_what_it_reads():
    def forward(m, x):
        x = m.a(x)
        return (m.b(x), m.helper(x)) if m.training else m.b(x)

    model = Net(forward, a=conv(3, 4), b=conv(4, 2), helper=conv(4, 2)).double()
    with torch.no_grad():
        model.b.weight[:, 0] = 0
    with pytest.warns(UserWarning, match="cannot keep this network's outputs.*pass for_inference=True"):
        small = fadeout.compact(model, IMAGES)
    same_outputs(model, small, IMAGES, training=True)
    small = fadeout.compact(model, IMAGES, for_inference=True)
    assert shapes(small)["a.weight"] == (3, 3, 1, 1)
    same_outputs(model, small, IMAGES)


def test_noise_in_training_is_no_other_output():
    def forward(m, x):
        x = m.a(x)
        return m.b(x + torch.randn_like(x) if m.training else x)

    model = Net(forward, a=conv(3, 4), b=conv(4, 2)).double()
    kill(model.a, channels=[0])
    small = fadeout.compact(model, IMAGES)
    assert shapes(small)["a.weight"] == (3, 3, 1, 1)
    same_outputs(model, small, IMAGES)


# Modes and devices ----------------------------------------------------------------------------------


def test_under_inference_mode_a_network_comes_out_that_can_be_trained():
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(IMAGES).sum().backward()
    optimizer.step()
    with torch.inference_mode():
        example = IMAGES.clone()
        small, carried = fadeout.compact(model, example, optimizer=optimizer)
    small(IMAGES).sum().backward()
    carried.step()


def test_weights_without_values():
    model, example = nn.Linear(4, 2).to("meta"), torch.zeros(1, 4, device="meta")
    with pytest.raises(ValueError, match=r"on the device 'meta', where weights have no values.*to_empty"):
        fadeout.compact(model, example)


# Batch-norm's shift ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_removed_channel_is_exactly_zero(training):
    """Left at its shift, a "removed" channel would go on speaking."""
    model = Chain().double()
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([3.0, -3.0, 2.0, 5.0]))
        model[1].weight.copy_(torch.tensor([1.0, 0.1, 0.2, 2.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.4, steps=10, structure=Channels(IMAGES))
    with pytest.warns(UserWarning, match="fade was not complete"):
        masks = pruner.remove()
    assert masks["1.weight"].tolist() == masks["1.bias"].tolist() == [True, False, False, True]
    found = model[1].train(training)(model[0](IMAGES))
    assert not found[:, [1, 2]].any()
    assert found[:, [0, 3]].all()
    same_outputs(model, fadeout.compact(model, IMAGES), IMAGES, training=training)
