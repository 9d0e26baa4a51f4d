"""Descriptions: equal for what is the same in every process, different for what is not."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fadeout.torch_bridge.description import describe


class Plain:
    def __init__(self, **carried):
        self.__dict__ |= carried

    def method(self, one, other):
        return one


def scaled(weight, gradient, by=2):
    return weight * by


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        ("text", "'text'"),
        (np.float64(0.5), "0.5"),
        (np.int32(3), "3"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "tensor 2x3 bfloat16"),
        (torch.tensor(1.0), "tensor scalar float32"),
        (nn.Linear(2, 1, bias=False), "Linear(weight 1x2 float32)"),
        (nn.Linear(2, 1, bias=False).requires_grad_(False), "Linear(weight 1x2 float32 frozen)"),
        (nn.Linear, "class Linear"),
        ({"b", "a"}, "['a', 'b']"),
        ((1, [2.0, None]), "[1, [2.0, None]]"),
        ({"a": {1: "b"}}, "{'a': {1: 'b'}}"),
        (Plain(rate=0.1, inner=Plain()), "Plain(rate=0.1, inner=Plain())"),
        (object(), "object"),
        (len, "len"),
    ],
)
def test_plain_values(value, text):
    assert describe(value) == text


def test_of_an_optimizer_its_numbers():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5)
    text = describe(optimizer)
    assert text.startswith("SGD([{'params': 2, 'lr': 0.5, 'momentum': 0")
    optimizer.param_groups[0]["lr"] = 0.25
    assert describe(optimizer) != text


def test_arrays_by_their_values():
    assert describe(np.arange(3)) == describe(np.arange(3)) != describe(np.arange(1, 4))
    assert describe(np.arange(3)).startswith("array 3 int64 ")


def test_schedules_by_what_they_give():
    assert describe(lambda progress: 2 * progress) == describe(partial(scaled, gradient=None))
    assert describe(lambda progress: 0.9) != describe(lambda progress: 0.8)


def test_other_functions_by_their_code_and_what_they_hold():
    def made(by):
        return lambda weight, gradient: weight * by

    assert describe(made(2)) == describe(made(2)) != describe(made(3))
    assert describe(partial(scaled, by=3)) != describe(partial(scaled, by=2))
    assert describe(Plain(a=1).method) == describe(Plain(a=1).method) != describe(Plain(a=2).method)


def test_what_holds_itself_has_an_end():
    endless = []
    endless.append(endless)
    assert describe(endless) == "[" * 6 + "list" + "]" * 6


def test_long_texts_are_told_apart_by_a_digest():
    one, other = describe("a" * 300 + "b"), describe("a" * 300 + "c")
    assert one[:203] == other[:203] == "'" + "a" * 199 + "..."
    assert one != other
