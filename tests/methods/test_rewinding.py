"""Learning-rate rewinding, as phases."""

from functools import partial

from fadeout.methods.rewinding import rewinding
from fadeout.methods.slimming import Slimming


def test_it_trains_twice_as_long():
    first, again = rewinding(90, 0.9, "elements", "paper")
    assert (first.epochs, first.remove, first.restart, first.pruner) == (90, None, True, None)
    assert (again.name, again.epochs, again.remove, again.restart) == ("train again", 90, 0.9, True)


def test_structured_it_has_the_penalty_of_liu():
    first, again = rewinding(90, 0.9, "channels", "authors", smooth_l1=0.25)
    assert isinstance(first.pruner, partial)
    assert first.pruner.func is Slimming
    assert first.pruner.keywords == {"strength": 0.25, "authors": True}
    assert again.pruner is None
