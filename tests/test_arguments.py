"""Values against annotations: what is accepted comes as the annotation wants it, the rest is refused."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fadeout._arguments import Count, Only, checked, fitted, shown, words

Even = Annotated[int, Only(lambda n: n % 2 == 0, "an even number")]


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 3.0, 3),
        (int, np.int64(3), 3),
        (int, torch.tensor(3), 3),
        (float, 3, 3),
        (float, np.float32(0.5), 0.5),
        (bool, np.bool_(True), True),
        (str, "text", "text"),
        (None, None, None),
        (type(None), None, None),
        (int | None, None, None),
        (str | int, 4.0, 4),
        (Even, 4, 4),
        (Literal["x", 1], 1, 1),
        (tuple[int, ...], [1, 2.0], (1, 2)),
        (tuple[int, str], (1, "a"), (1, "a")),
        (Iterable[int], [1, 2], [1, 2]),
        (Iterable[str], "a name", "a name"),
        (Mapping[str, float], {"a": 1}, {"a": 1}),
        (str | os.PathLike[str], Path("a"), Path("a")),
        (type[nn.Module], nn.Linear, nn.Linear),
    ],
)
def test_accepted(kind, value, wanted):
    found = fitted("it", value, type(None) if kind is None else kind)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, 3.5, "it is a whole number, got 3.5"),
        (int, float("inf"), "it is a whole number, got inf"),
        (int, True, "it is a whole number, got True"),
        (float, "3", "it is a number, got '3'"),
        (float, torch.ones(2), r"it is a number, got a tensor of shape \(2,\) and type torch.float32"),
        (bool, 1, "it is True or False, got 1"),
        (str, 1, "it is a text, got 1"),
        (str, None, "it is a text, got None"),
        (int | None, "a", "it is a whole number or None, got 'a'"),
        (Even, 3, "it is an even number, got 3"),
        (Count, 0, "it is a whole number from 1 up, got 0"),
        (Literal["x", 1], True, "it is one of 'x', 1, got True"),
        (tuple[int, str], (1,), r"it is 2 of: a whole number, got \(1,\)"),
        (Iterable[int], ["a"], r"it is several of: a whole number, got \['a'\]"),
        (Iterable[int], "12", "it is several of: a whole number, got '12'"),
        (Mapping[str, int], {"a": "b"}, "it is a mapping from a text to a whole number"),
        (Callable[[float], float], 3, "it is a schedule, got 3"),
        (Callable[[int, int], int], lambda x: x, "it is a callable of two arguments"),
        (nn.Module, nn.Linear, r"got Linear: the class itself. Did you mean Linear\(...\)\?"),
    ],
)
def test_refused(kind, value, message):
    with pytest.raises(ValueError, match=message):
        fitted("it", value, kind)


def test_what_can_be_gone_through_once_becomes_a_list():
    assert fitted("it", iter([1, 2]), Iterable[int]) == [1, 2]


def test_only_what_was_passed_is_checked_and_missing_arguments_are_pythons_affair():
    @checked
    def call(steps: Count, rate: float = "none"):  # pyright: ignore[reportArgumentType]
        return steps, rate

    assert call(2.0) == (2, "none")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()
    with pytest.raises(ValueError, match="rate is a number"):
        call(1, rate="fast")


def test_words_say_each_thing_once():
    assert words(float | int | Even | None) == "a number, a whole number, an even number or None"


def test_values_are_shown_short_and_without_addresses():
    assert shown("a" * 1000).count("a") < 100
    assert shown(object()) == "a object"
    assert shown(nn.Linear(1, 1)) == "a Linear"
