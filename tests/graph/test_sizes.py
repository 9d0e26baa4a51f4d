"""Numbers with their origin."""

import copy
import pickle

from fadeout.graph.sizes import Asked, Attribute, Size, attribute_of, is_asked


def test_arithmetic_keeps_the_origin():
    heads, width = Size(4, Attribute("a", "heads")), Size(32, Asked(None, 2))
    assert (width // heads, 2 * width + 1, width % 5) == (8, 65, 2)
    assert is_asked(width // heads)
    assert not is_asked(heads * 2)
    assert attribute_of(heads) == ("a", "heads")
    assert attribute_of(heads * 1) is None
    assert attribute_of(4) is None


def test_a_float_has_none():
    assert type(Size(4, Attribute("a", "heads")) * 0.5) is float


def test_copies_are_plain():
    heads = Size(4, Attribute("a", "heads"))
    assert type(copy.deepcopy(heads)) is int
    assert type(pickle.loads(pickle.dumps(heads))) is int
