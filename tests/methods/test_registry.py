"""Every method as it declares itself: its phases, its options, and how a report shows it."""

import re
import sys
from typing import Annotated

import pytest
import torch

import fadeout
from fadeout import methods
from fadeout.experiments.build import build_model, build_optimizer, build_structure
from fadeout.experiments.run import Run
from fadeout.methods import ACDC, HESSO, ST3, GradualMagnitudePruning, GrowingRegularization
from fadeout.methods.method import Method, Phase
from fadeout.methods.registry import METHODS, find_methods, merge_options
from fadeout.methods.slimming import Slimming

STRENGTHS = {"a_min": 1.0, "a_max": 100.0}


def phases(**fields):
    return [(phase.name, phase.epochs, phase.remove, phase.restart) for phase in Run(**fields).phases()]


# Phases ---------------------------------------------------------------------------------------------------


def test_training_alone():
    assert phases(method="dense", epochs=7) == [("train", 7, None, True)]
    assert phases(method="one_shot", epochs=7) == [("train", 7, None, True), ("pruned", 0, 0.9, False)]
    by_lamp = ("gmp_lamp", "acdc_lamp", "st3_lamp")
    for method in ("gmp", "acdc", "rigl", "st3", "pat", "swd", "auto", "growing_decay", *by_lamp):
        assert phases(method=method, epochs=7, **STRENGTHS) == [("train", 7, None, True)]


def test_han_removes_in_equal_parts_and_fine_tunes_longest_at_last():
    found = phases(method="han", epochs=300, sparsity=0.5, fine_tune=15, last_fine_tune=50)
    assert found == [
        ("train", 300, None, True),
        ("fine-tune 1", 15, 0.1, False),
        ("fine-tune 2", 15, 0.2, False),
        ("fine-tune 3", 15, pytest.approx(0.3), False),
        ("fine-tune 4", 15, 0.4, False),
        ("fine-tune 5", 50, 0.5, False),
    ]


def test_liu_removes_once():
    found = phases(method="liu", structure="channels", epochs=90, last_fine_tune=40)
    assert found == [("train", 90, None, True), ("fine-tune", 40, 0.9, False)]


def built(**fields):
    """The pruner of the first phase, on the small network."""
    one = Run(**fields)
    model, example = build_model(one, 10), torch.zeros(1, 1, 8, 8)
    pruner = one.phases()[0].pruner
    structure = build_structure(one, example)
    return pruner and pruner(model, build_optimizer(one, model), steps=10, structure=structure)


def test_what_acts_during_training():
    assert built(method="dense") is None
    assert built(method="han") is None
    assert built(method="rewinding") is None
    assert isinstance(built(method="gmp"), GradualMagnitudePruning)
    auto = built(method="auto", sparsity=0.7)
    assert (auto.sparsity, auto._fade, auto.criterion) == (0.7, fadeout.Latent(), fadeout.criteria.lamp)
    assert built(method="auto", norm=False).criterion is fadeout.criteria.magnitude
    assert built(method="auto", structure="channels")._fade == fadeout.Progressive()
    assert built(method="progressive")._fade == fadeout.Progressive()
    for selective, method in ((True, "swd"), (False, "growing_decay")):
        fade = built(method=method, a_min=0.1, a_max=10.0, mu=2.0)._fade
        assert (fade.selective, fade.weight_decay, fade.mode, fade.penalty) == (
            selective,
            2.0,
            "gradient",
            "l2",
        )
        assert [fade.strength(p) for p in (0, 0.5, 1)] == pytest.approx([0.1, 1, 10])
    assert isinstance(built(method="greg", structure="channels"), GrowingRegularization)
    assert isinstance(built(method="hesso", structure="channels"), HESSO)
    for method in ("liu", "rewinding"):
        for preset in ("paper", "authors"):
            slimming = built(method=method, structure="channels", smooth_l1=0.25, preset=preset)
            assert isinstance(slimming, Slimming)
            assert (slimming.strength, slimming._authors) == (0.25, preset == "authors")


def test_extra_epochs_come_last_and_all_lengths_scale():
    found = phases(method="han", epochs=30, rounds=2, fine_tune=1, last_fine_tune=4, extra_epochs=9)
    assert found[-1] == ("extra", 9, None, False)
    scaled = Run(
        method="han", epochs=30, rounds=2, fine_tune=1, last_fine_tune=4, extra_epochs=9, epochs_scale=0.1
    )
    assert [phase.epochs for phase in scaled.phases()] == [3, 1, 1, 1]  # never none where there was one
    assert scaled.shortened
    assert phases(method="one_shot", epochs=30, epochs_scale=0.1)[-1][1] == 0


def test_han_fine_tunes_at_the_rate_that_is_asked_for():
    assert {phase.lr for phase in Run(method="han").phases()} == {None}
    assert [phase.lr for phase in Run(method="han", rounds=2, fine_tune_lr=0.005).phases()] == [
        *(None, 0.005, 0.005),
    ]
    with pytest.raises(ValueError, match="rounds is above 0, got 0"):
        Run(method="han", rounds=0)


@pytest.mark.parametrize("method", ["progressive", "latent", "gmp", "variant"])
def test_the_criterion_can_be_chosen(method):
    assert built(method=method).criterion is fadeout.criteria.magnitude
    assert built(method=method, criterion="lamp").criterion is fadeout.criteria.lamp


@pytest.mark.parametrize("pruner", [GradualMagnitudePruning, ACDC, ST3])
def test_lamp_makes_a_method_of_its_own(pruner):
    name = {GradualMagnitudePruning: "gmp", ACDC: "acdc", ST3: "st3"}[pruner]
    by_magnitude, by_lamp = built(method=name), built(method=f"{name}_lamp", sparsity=0.7)
    assert by_magnitude.criterion is fadeout.criteria.magnitude
    assert isinstance(by_lamp, pruner)
    assert (by_lamp.criterion, by_lamp.sparsity) == (fadeout.criteria.lamp, 0.7)


@pytest.mark.parametrize("method", ["rigl", "st3", "st3_lamp", "pat"])
def test_methods_of_single_weights_say_so(method):
    with pytest.raises(ValueError, match=f"{method} prunes single weights: --structure elements"):
        Run(method=method, structure="channels")


# Declarations ---------------------------------------------------------------------------------------------


def test_methods_are_told_apart_by_label_colour_and_marker():
    shown = [method for name, method in METHODS.items() if name != "variant"]
    for what in ("label", "colour", "dark_colour", "marker"):
        assert len({getattr(method, what) for method in shown}) == len(shown), what
    for method in METHODS.values():
        assert re.fullmatch("#[0-9a-f]{6}", method.colour)
        assert method.summary.endswith(".")
        assert all(option.help for option in method.options.values())


def test_the_order_in_which_they_are_listed():
    assert list(METHODS) == [
        *("dense", "one_shot", "han", "liu", "rewinding", "gmp", "gmp_lamp", "acdc", "acdc_lamp", "rigl"),
        *("st3", "st3_lamp", "swd", "auto", "growing_decay", "latent", "progressive", "greg", "hesso"),
        *("depgraph", "pat", "variant"),
    ]


def test_a_method_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "brand_new.py").write_text(
        """
from typing import Annotated
from fadeout.methods.method import Method, Phase

def twice(epochs: int, gap: Annotated[int, "epochs between"] = 3) -> list[Phase]:
    "Train twice."
    return [Phase("one", epochs, restart=True), Phase("gap", gap), Phase("two", epochs)]

TWICE = Method("twice", twice, label="twice", colour="#123456")
"""
    )
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    found = find_methods()
    monkeypatch.delitem(sys.modules, "fadeout.methods.brand_new")
    assert list(found) == sorted(found, key=lambda name: (found[name].order, name))
    assert found.keys() - METHODS.keys() == {"twice"}
    assert found["twice"].summary == "Train twice."
    assert merge_options(found)["gap"] == (int, 3, "twice: epochs between")


def test_methods_that_share_an_option_agree_about_it():
    def circles(epochs: int, rounds: Annotated[int, "circles"] = 5) -> list[Phase]:
        return []

    other = Method("other", circles, label="other", colour="#123456")
    with pytest.raises(ValueError, match="the methods han and other disagree about rounds"):
        merge_options({**METHODS, "other": other})
