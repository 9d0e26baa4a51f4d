"""Combinations of which the fast suite has a part."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def covering(every: int, *choices: Iterable[Any]) -> list[Any]:
    """All combinations as parameters; one of so many, and each value in some, is for the fast suite."""
    found = []
    for chosen in itertools.product(*(enumerate(values) for values in choices)):
        numbers, values = zip(*chosen, strict=True)
        found.append(pytest.param(*values, marks=pytest.mark.slow if sum(numbers) % every else ()))
    return found
