"""Tracing: what the mode changes, threads, what is overwritten, what cannot be traced."""

import builtins
import re
import threading

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, Net, check, conv, kill
from support.small_networks import IMAGES, functional
from torch import Tensor, nn

import fadeout
from fadeout.graph.trace import trace

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


def named(network):
    return {node.name: node for node in network.graph.nodes}


def test_what_follows_the_mode():
    following = trace(functional(), IMAGES).follows_training
    assert {node.name: found for node, found in following.items()} == {
        "batch_norm": [("training", False, True)],
        "dropout": [("training", False, True)],
    }
    two_ways = Net(lambda m, x: m.a(x) if m.training else m.a(x).neg(), a=conv(3, 2))
    assert trace(two_ways, IMAGES.float()).follows_training is None


def test_the_model_is_left_as_it_was():
    model = functional()
    model.c.eval()
    trace(model, IMAGES)
    assert (model.training, model.c.training) == (True, False)


def test_threads_that_trace_at_once_wait_for_each_other():
    begun, second_runs, first_is_done = threading.Event(), threading.Event(), threading.Event()

    def first(m, x):
        begun.set()
        second_runs.wait(0.1)  # it must not
        return m.a(x)

    def second(m, x):
        second_runs.set()
        first_is_done.wait(0.3)  # in vain where it comes in between two recordings of the first
        return m.a(x)

    before = nn.Module.__call__, builtins.len, torch.backends.mha.get_fastpath_enabled()
    other = threading.Thread(target=lambda: trace(Net(second, a=conv(3, 2)), IMAGES.float()))
    one = threading.Thread(target=lambda: trace(Net(first, a=conv(3, 2)), IMAGES.float()))
    one.start()
    begun.wait(5)
    other.start()
    one.join()
    first_is_done.set()
    other.join()
    after = nn.Module.__call__, builtins.len, torch.backends.mha.get_fastpath_enabled()
    nn.Module.__call__, builtins.len = before[:2]  # for all other tests
    assert after == before


def test_a_thread_that_runs_what_is_traced_meanwhile_is_not_recorded():
    def forward(m, x):
        thread = threading.Thread(target=lambda: [m.a(IMAGES.float()), len(x)])
        thread.start()
        thread.join()
        return m.a(x)

    model = Net(forward, a=conv(3, 2))
    assert list(named(trace(model, IMAGES.float()))) == ["x", "a", "output"]


def test_values_that_are_overwritten():
    def forward(m, x):
        x = m.a(x)
        y = x.mean()
        return F.relu(x, inplace=True) + y

    network = trace(Net(forward, a=conv(3, 2)), IMAGES.float())
    assert {node.name for node in network.overwritten} == {"a"}


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
        fadeout.compact(model, IMAGES.float())
    assert re.search(r"test_trace\.py:\d+:", str(caught.value))
    assert "leaves=" in str(caught.value)
    assert "Elements" in str(caught.value)


@pytest.mark.parametrize("by", ["class", "instance"])
def test_leaves_keep_all_their_channels(by):
    branch = Branch()
    model = nn.Sequential(conv(3, 5), nn.ReLU(), conv(5, 4), branch, conv(4, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], model[2], model[4], channels=[1])
    kept = {"0": [0, 2, 3, 4], "2": (ALL, [0, 2, 3, 4]), "4": [0, 2, 3], "6": (ALL, [0, 2, 3])}
    check(model, kept, leaves=[Branch if by == "class" else branch])


def test_an_example_that_the_network_does_not_take_is_no_matter_of_tracing():
    with pytest.raises(ValueError, match=r"cannot be run on its example.*\n\(RuntimeError: mat1") as caught:
        trace(nn.Sequential(nn.Linear(4, 2)), torch.zeros(1, 5))
    assert "leaves" not in str(caught.value)


@pytest.mark.parametrize("by", ["class", "instance"])
def test_leaves_that_have_a_rule_keep_all_their_channels_too(by):
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 3), nn.ReLU(), conv(3, 2))
    kill(model[0], model[1], model[3], channels=[1])
    kept = {"3": [0, 2], "5": (ALL, [0, 2])}
    check(model, kept, leaves=[nn.BatchNorm2d] if by == "class" else [model[0], model[1]])


def test_leaves_are_named_where_zeros_stay():
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], channels=[1])
    with pytest.warns(UserWarning, match=r"1 of '0' stay, because '0' is one of the leaves"):
        fadeout.compact(model, IMAGES.float(), leaves=[model[0]])


def test_an_empty_example():
    for use in (fadeout.compact, trace):
        with pytest.raises(ValueError, match=r"empty, of shape \(0, 4\): pass .* batch size of 1 or more"):
            use(nn.Linear(4, 2), torch.zeros(0, 4))


def test_a_part_of_an_example_may_be_empty():
    model = Net(lambda m, x: m.b(m.a(x[1])), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[1])
    small = fadeout.compact(model, ([torch.zeros(0), IMAGES.float()],))
    assert small.a.out_channels == 3


def test_a_network_that_was_made_for_inference_only():
    with torch.inference_mode():
        model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match=r"made under torch.inference_mode\(\).*: make it outside"):
        trace(model, torch.zeros(1, 4))
