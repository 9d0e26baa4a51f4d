"""Checks of what users pass: the message says what was given, what is accepted, and what to do."""

import warnings

import pytest

from fadeout import _checks
from fadeout._checks import MissingExtraError, checked_sparsity, extra, known


def test_a_known_name_passes_and_an_unknown_one_brings_its_neighbours():
    known("task", "digits", ["digits", "gcn-cora"])
    with pytest.raises(ValueError, match=r"'digit'; did you mean digits\? There are digits, gcn-cora"):
        known("task", "digit", ["digits", "gcn-cora"])
    with pytest.raises(ValueError, match="no task 'x'; there are digits"):
        known("task", "x", ["digits"])


@pytest.mark.parametrize("sparsity", [0.5, 0.999, lambda progress: 0.9 * progress])
def test_a_sparsity_passes(sparsity):
    assert checked_sparsity(sparsity) is sparsity


@pytest.mark.parametrize(
    ("sparsity", "hint"),
    [
        (0, r"got 0\. Use fadeout\.NoPruning"),
        (1, r"got 1\. It is the fraction to remove"),
        ("0.9", r"a fraction between 0 and 1, or a schedule; got '0\.9'"),
        (95, r"Did you mean 0\.95\?"),
        (100, "got 100. It is the fraction"),
        (-0.5, r"got -0\.5\. It is"),
        (lambda progress: 2 * progress, "gives 1.0 at progress 0.5; it must stay in"),
        (lambda progress: 0.0, r"gives 0\.0 at progress 1; .* end above 0"),
        (lambda progress: "much", "what the sparsity schedule gives is a number, got 'much'"),
        (lambda progress: 1 / 0, "division by zero"),
    ],
)
def test_what_is_no_sparsity(sparsity, hint):
    with pytest.raises(ValueError, match=hint):
        checked_sparsity(sparsity)


def test_a_warning_names_the_line_that_called_into_the_package(monkeypatch):
    monkeypatch.setattr(_checks, "_PACKAGE", _checks.__file__)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _checks.warn("mind this")
    assert [(str(one.message), one.filename) for one in said] == [("mind this", __file__)]


def test_a_missing_package_brings_the_extra_that_has_it():
    message = r'no_such is not installed: pip install "fadeout\[plot\]"'
    with pytest.raises(MissingExtraError, match=message), extra("plot"):
        import no_such.inner  # noqa: F401  # pyright: ignore[reportMissingImports]


def test_a_broken_installation_is_not_a_missing_extra():
    with pytest.raises(ModuleNotFoundError) as raised, extra("plot"):
        import fadeout.no_such_room  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert not isinstance(raised.value, MissingExtraError)
