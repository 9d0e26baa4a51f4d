"""Scores of channels by hand: norms of rows, what they cost, ranks that share out what is equal."""

import math

import numpy as np
import pytest
import torch

from fadeout.structures.channels.scores import by_channel, joined, over_prices, roots, squares, untied

GONE = -math.inf


def listed(arrays):
    return [array.tolist() for array in arrays]


def test_a_channel_has_the_norm_of_its_row():
    assert by_channel(torch.tensor([3.0, -1.0])).tolist() == [3.0, -1.0]  # already one for each
    assert by_channel(torch.tensor([[3.0, 4.0], [0.0, 0.0], [5.0, 12.0]])).tolist() == [5.0, 0.0, 13.0]
    filters = torch.zeros(2, 2, 1, 2)
    filters[1] = 1
    assert by_channel(filters).tolist() == [0.0, 2.0]


def test_a_row_of_which_something_is_gone_is_gone():
    rows = torch.tensor([[3.0, GONE], [GONE, GONE], [3.0, 4.0]])
    assert by_channel(rows).tolist() == [GONE, GONE, 5.0]


def test_rows_without_numbers():
    assert by_channel(torch.zeros(3, 0)).tolist() == [0.0, 0.0, 0.0]
    assert by_channel(torch.zeros(0, 4)).tolist() == []


def test_sums_over_processes_are_of_squares():
    mine, theirs = torch.tensor([3.0, GONE]), torch.tensor([4.0, GONE])
    assert roots(squares(mine) + squares(theirs)).tolist() == [5.0, GONE]


def test_several_parameters_have_a_part_in_a_channel():
    one, other = torch.tensor([3.0, 1.0, GONE]), torch.tensor([4.0, GONE, 2.0])
    assert joined([one]).tolist() == [3.0, 1.0, GONE]
    assert joined([one, other]).tolist() == [5.0, GONE, GONE]


def test_scores_are_weighed_with_the_mean_of_their_layer_and_the_price():
    """The means are 2 and 20, and roots of prices 1 and 3."""
    scores = [np.array([1.0, 3.0]), np.array([10.0, 30.0])]
    assert listed(over_prices(scores, [1.0, 9.0])) == [[0.5, 1.5], pytest.approx([0.5 / 3, 1.5 / 3])]


def test_what_is_gone_has_no_part_in_the_mean():
    scores = [np.array([GONE, 2.0, 6.0]), np.array([GONE, GONE]), np.zeros(2)]
    assert listed(over_prices(scores, [1.0, 1.0, 1.0])) == [[GONE, 0.5, 1.5], [GONE, GONE], [0.0, 0.0]]


def test_where_no_scores_differ_prices_do_not_decide():
    assert listed(over_prices([np.full(2, 7.0), np.ones(3)], [1.0, 100.0])) == [[1.0] * 2, [1.0] * 3]


def test_what_costs_nothing_is_worth_as_much_as_a_hundredth_of_the_mean():
    free, dear = over_prices([np.array([1.0, 3.0]), np.array([1.0, 3.0])], [0.0, 2.0])
    assert free.tolist() == [5.0, 15.0]  # over the root of (0 + 2) / 2 / 100
    assert dear.tolist() == pytest.approx([0.5 / 2**0.5, 1.5 / 2**0.5])


def test_ranks_are_in_the_order_of_the_scores():
    assert listed(untied([np.array([5.0, 1.0]), np.array([3.0])])) == [[2.0, 0.0], [1.0]]


def test_of_equal_scores_every_layer_loses_the_same_share():
    """A quarter, two quarters, ... of the wide layer, and a half, the whole of the narrow one."""
    narrow, wide = untied([np.ones(2), np.ones(4)])
    for taken in range(7):
        gone = (narrow < taken).sum() / 2, (wide < taken).sum() / 4
        assert abs(gone[0] - gone[1]) <= 0.5, taken
    assert sorted([*narrow, *wide]) == list(range(6))


def test_only_equal_scores_are_shared_out_and_what_is_gone_stays_first():
    first, second = untied([np.array([GONE, 1.0, 2.0]), np.array([1.0, 1.0, 3.0])])
    assert first[0] == GONE
    assert first[2] == 4
    assert second[2] == 5
    assert sorted([first[1], *second[:2]]) == [1.0, 2.0, 3.0]
