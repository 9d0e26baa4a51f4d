"""Selection: exactly the k lowest scores, ties by position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fadeout.selection import lowest

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@st.composite
def score_tensors(draw, values=(-1.0, -0.0, 0.0, 0.5, 1.0, float("inf"))):
    """A few matrices of few different values, so that ties abound, in mixed dtypes and layouts."""
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        size = rows * columns
        numbers = draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))
        tensor = torch.tensor(numbers, dtype=draw(st.sampled_from(DTYPES))).view(rows, columns)
        tensors.append(tensor.t() if draw(st.booleans()) else tensor)
    return tensors


def by_sort(scores, k):
    """The same with Python's stable sort, on exact numbers."""
    numbers = [value for score in scores for row in score.tolist() for value in row]
    chosen = set(sorted(range(len(numbers)), key=numbers.__getitem__)[:k])
    return [position in chosen for position in range(len(numbers))]


@given(score_tensors(), st.floats(0, 1))
def test_equals_a_stable_sort(scores, fraction):
    k = round(fraction * sum(score.numel() for score in scores))
    marks = lowest(scores, k)
    assert [mark for part in marks for row in part.tolist() for mark in row] == by_sort(scores, k)
    assert [part.shape for part in marks] == [score.shape for score in scores]


@given(st.permutations(list(range(24))), st.integers(0, 24), st.permutations(range(3)))
def test_without_ties_the_order_of_the_tensors_does_not_matter(numbers, k, order):
    parts = [torch.tensor(numbers[i : i + 8], dtype=torch.float32) for i in (0, 8, 16)]
    marks = lowest(parts, k)
    turned = lowest([parts[i] for i in order], k)
    for place, i in enumerate(order):
        assert torch.equal(turned[place], marks[i])


def test_ties_fall_in_order_of_position():
    marks = lowest([torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([1.0, 0.0])], 4)
    assert [m.tolist() for m in marks] == [[[True, True], [True, False]], [False, True]]


def test_position_is_that_of_the_rows_and_not_of_the_memory():
    scores = torch.zeros(3, 2).t()
    assert lowest([scores], 4)[0].tolist() == [[True, True, True], [True, False, False]]


def test_scores_of_different_dtypes_compare_as_exact_numbers():
    """Rounding float64 to float32 would tie 1 + 1e-12 with 1, and the first of them would go."""
    wide = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    for dtype in DTYPES:
        narrow = torch.tensor([1.0], dtype=dtype)
        assert [m.item() for m in lowest([wide, narrow], 1)] == [False, True]
    # 0.1 is 0.10009765625 in bfloat16 and 0.0999755859375 in float16
    tenths = [torch.tensor([0.1], dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float16)]
    assert [m.item() for m in lowest(tenths, 1)] == [False, False, True]
    assert [m.item() for m in lowest(tenths, 2)] == [False, True, True]


@pytest.mark.parametrize("k", [-1, 4])
def test_refuses_more_than_there_are(k):
    with pytest.raises(ValueError, match=rf"{k} lowest of 3"):
        lowest([torch.zeros(2), torch.zeros(1)], k)


def test_nothing_and_everything():
    scores = [torch.tensor([float("inf"), 0.0]), torch.tensor(1.0)]
    for k, answer in ((0, False), (3, True)):
        marks = lowest(scores, k)
        assert [m.shape for m in marks] == [(2,), ()]
        assert all(bool((m == answer).all()) for m in marks)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a second device: this machine has a CPU only"
)
def test_tensors_on_different_devices():
    marks = lowest([torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0], device="cuda")], 2)
    assert [m.device.type for m in marks] == ["cpu", "cuda"]
    assert [m.tolist() for m in marks] == [[False, True], [False, True]]
