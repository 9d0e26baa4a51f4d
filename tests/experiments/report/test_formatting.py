"""Numbers and names at the edges of what the examples in the docstrings show."""

import math

import pytest

from fadeout.experiments.report import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),  # of a template
        (math.inf, "not a number"),
        (0, "0.00"),
        (-0.004, "0.00"),
        (-0.006, "-0.01"),
        (1234.5, "1234.50"),
    ],
)
def test_numbers(value, text):
    assert formatting.number(value) == text


def test_differences_have_a_sign_unless_they_are_none():
    signed = [formatting.number(value, 1, signed=True) for value in (0.06, 0.04, -0.04, -0.06)]
    assert signed == ["+0.1", "0.0", "0.0", "-0.1"]


@pytest.mark.parametrize(
    ("a", "text"),
    [(0, "0"), (1, "1"), (100, "100"), (1e3, "10³"), (1e-3, "10⁻³"), (2e3, "2000"), (math.inf, "inf")],
)
def test_strengths_are_powers_of_ten_where_that_is_shorter(a, text):
    assert formatting.strength(a) == text


def test_percentages_of_what_is_not_exact():
    assert [formatting.percent(1 - p) for p in (0.9, 0.99, 0.999, 0.9995)] == [
        "10 %",
        "1 %",
        "0.1 %",
        "0.05 %",
    ]
    assert formatting.percent(1) == "100 %"


def test_lengths_that_have_a_name_and_those_that_have_none():
    assert formatting.length(0.02) == "a fiftieth of the length"
    assert formatting.length(1 / 3) == "33.3 % of the length"
    assert formatting.length(1, steps=5) == "at most 5 steps an epoch"


def test_names_in_print():
    names = [formatting.printed_name(name) for name in ("resnet110", "vit", "cifar100", "smallcnn", "")]
    assert names == ["ResNet-110", "ViT", "CIFAR-100", "smallcnn", ""]


@pytest.mark.parametrize("nothing", [None, "", "  \n"])
def test_a_failure_without_a_reason(nothing):
    assert formatting.last_line(nothing) == "no reason was recorded"
