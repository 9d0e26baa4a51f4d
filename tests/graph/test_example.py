"""What a user gives as an example, and what it becomes in a plan."""

from collections import UserDict

import pytest
import torch

from fadeout.graph.example import Example, as_data, from_data, tensors_in


def test_positional_and_keyword_arguments():
    x, y = torch.zeros(2, 3), torch.ones(2)
    assert Example.of(x).args == (x,)
    assert Example.of((x, y)).args == (x, y)
    batch = Example.of(UserDict(x=x, y=y))  # as transformers' BatchEncoding is one
    assert (batch.args, batch.kwargs) == ((), {"x": x, "y": y})
    assert Example.of(batch) is batch


def test_a_mapping_without_names():
    with pytest.raises(ValueError, match=r"keys that are no names: .*comes in a tuple"):
        Example.of({0: torch.zeros(1)})


def test_nested_arguments_become_data_and_come_back():
    given = {"a": [torch.zeros(2, 3), {"b": torch.full((2,), 7)}], "flag": True, "none": None}
    back = from_data(as_data(given))
    assert back["flag"] is True
    assert back["none"] is None
    assert torch.equal(back["a"][0], given["a"][0])
    assert torch.equal(back["a"][1]["b"], given["a"][1]["b"])


def test_variants_have_another_batch_or_another_image_size():
    shapes = [[tuple(t.shape) for t in v.tensors] for v in Example.of(torch.zeros(2, 3, 4, 4)).variants()]
    assert shapes == [[(3, 3, 4, 4)], [(2, 3, 8, 8)]]
    assert Example.of((torch.zeros(2), torch.zeros(5))).variants() == []


def test_tensors_in_whatever_a_network_returns():
    x = torch.zeros(1)
    assert tensors_in({"a": [x, (x, None)], "b": 3}) == [x, x]


def test_random_numbers_stand_in_for_those_that_are_not_whole():
    given = Example.of((torch.zeros(50, dtype=torch.float16), torch.arange(3), True))
    drawn, again = given.random(), given.random()
    assert (drawn.args[0].dtype, len(drawn.args[0])) == (torch.float16, 50)
    assert 0 <= drawn.args[0].min() < 0.2 < 0.8 < drawn.args[0].max() <= 1
    assert torch.equal(drawn.args[0], again.args[0])
    assert drawn.args[1:] == given.args[1:]
