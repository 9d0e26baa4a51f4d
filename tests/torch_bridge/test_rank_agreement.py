"""What processes compare when they meet: texts that are the same wherever the same is built."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from support.different_ranks import PAIRS
from torch import nn

from fadeout import criteria, schedules
from fadeout.torch_bridge.description import describe
from fadeout.torch_bridge.rank_agreement import meet, ranks_of


def outer(factor):
    def inner(weight, gradient):
        return weight * factor

    return inner


ALIKE = [
    (outer(2), outer(2)),
    (schedules.linear(0.0, 1.0), lambda progress: progress),
    (partial(criteria.taylor, torch.ones(1)), partial(criteria.taylor, torch.zeros(1))),
    (criteria.moving_average(criteria.taylor), criteria.moving_average(criteria.taylor)),
    (np.float64(0.5), 0.5),
    ({3, 1, 2}, {2, 3, 1}),
    (nn.Linear(2, 2), nn.Linear(2, 2)),
    (object(), object()),
]
UNLIKE = [
    (outer(2), outer(3)),
    (lambda w, g: w, lambda w, g: g),
    (lambda w, g: w.abs(), lambda w, g: w.square()),
    (nn.Linear(2, 2), nn.Linear(2, 3)),
    (nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)),
    (np.zeros(3), np.ones(3)),
    (schedules.linear(0.0, 1.0), schedules.cosine(0.0, 1.0)),
    (list(range(1000)), [*range(999), 0]),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_the_same_is_described_alike(one, other):
    assert describe(one) == describe(other)
    assert " at 0x" not in describe(one)


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_what_differs_is_told_apart(one, other):
    assert describe(one) != describe(other)


@pytest.mark.parametrize("pair", list(PAIRS))
def test_copies_of_arguments_are_described_alike(pair):
    for arguments in PAIRS[pair][:2]:
        assert describe(copy.deepcopy(arguments)) == describe(arguments)


def test_what_contains_itself():
    inside = []
    inside.append(inside)
    assert describe(inside)


def test_alone_there_is_nobody_to_meet():
    assert ranks_of() == ()
    meet((), {"steps": "3"})
