"""Selection: exactly the k lowest scores, ties by position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import Largest

import fadeout
from fadeout.selection import passes as kernels
from fadeout.selection import search as selection
from fadeout.selection.passes import Passes
from fadeout.selection.search import Finder, lowest

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


# Time and again ---------------------------------------------------------------------------------------------


def drifting(steps: int, seed: int = 0):
    """Tensors that move a little at each step, in several layouts; later with ties, then with zeros."""
    torch.manual_seed(seed)
    parts = [
        torch.randn(30, 100, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(400, 300),
        torch.randn(50),
        torch.randn(200, 150).t(),
    ]
    for step in range(steps):
        for part in parts:
            part.mul_(0.99).add_(torch.randn_like(part) * 0.003)
        if step > steps // 2:
            parts[1][:100] = parts[1][:100].mul(20).round() / 20
        if step > 3 * steps // 4:
            for part in parts:
                part[part.abs() < 1.0] = 0
        yield step, parts


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("joined", [0, 10**9])
def test_a_warm_search_finds_what_a_sort_finds(monkeypatch, compile, magnitude, joined):
    monkeypatch.setattr(selection, "_AT_ONCE", joined)
    finder = Finder(magnitude=magnitude, compile=compile)
    for step, parts in drifting(24):
        total = sum(part.numel() for part in parts)
        k = int(total * (0.5 + 0.02 * step if step < 16 else 0.9 if step < 21 else 0.3))
        keys = torch.cat([(part.abs() if magnitude else part).reshape(-1) for part in parts])
        wanted = torch.zeros(total, dtype=torch.bool)
        wanted[keys.argsort(stable=True)[:k]] = True
        found = finder(parts, k)
        got = torch.cat([found.mask(n, part).reshape(-1) for n, part in enumerate(parts)])
        if magnitude and found.threshold == 0:  # which of the zeros fade makes no difference
            assert not (wanted & ~got).any()
            assert not keys[got].any()
        else:
            assert torch.equal(got, wanted), step


@pytest.mark.parametrize("joined", [0, 10**9])
def test_a_threshold_that_jumps_is_found_again(monkeypatch, joined):
    monkeypatch.setattr(selection, "_AT_ONCE", joined)
    finder, part = Finder(magnitude=True), torch.linspace(0.001, 1, 50_000)
    for scale in (1.0, 1.0, 1e-30, 1e30, 1.0, 0.0, 1.0, 1e-44, 1.0):
        scaled = part * scale
        for k in (25_000, 25_100, 100, 49_999):
            assert finder([scaled], k).threshold == scaled.sort().values[k - 1]


@pytest.mark.parametrize("joined", [0, 10**9])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("k", [0, 1, 500, 999, 1000])
def test_magnitudes_are_finite(monkeypatch, odd, joined, k):
    monkeypatch.setattr(selection, "_AT_ONCE", joined)
    part = torch.ones(1000)
    finder = Finder(magnitude=True)
    finder([part], k)
    part[7] = odd
    with pytest.raises(FloatingPointError):
        finder([part], k)


def test_a_warm_search_is_one_pass(monkeypatch):
    monkeypatch.setattr(selection, "_AT_ONCE", 0)
    finder, calls = Finder(magnitude=True), []
    for name in ("count", "probe"):
        real = getattr(Passes, name)
        monkeypatch.setattr(
            Passes, name, lambda *a, real=real, name=name, **kw: (calls.append(name), real(*a, **kw))[1]
        )
    torch.manual_seed(0)
    part = torch.randn(200_000)
    for step in range(30):
        part.add_(torch.randn_like(part), alpha=1e-4)
        calls.clear()
        finder([part], 180_000 - 20 * step)
        if step > 2:
            assert calls == ["probe"], step


class Reads:
    """Counts how often numbers are read from a device, were the tensors on one."""

    METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero", "__index__")

    def __init__(self, monkeypatch):
        self.count = self._depth = 0
        for name in self.METHODS:
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, real):
        def call(*args, **kwargs):
            self.count += self._depth == 0
            self._depth += 1
            try:
                return real(*args, **kwargs)
            finally:
                self._depth -= 1

        return call


def test_a_warm_step_reads_at_most_three_times_from_the_device(monkeypatch):
    monkeypatch.setattr(kernels, "reads_are_free", lambda row: False)  # as on a GPU
    monkeypatch.setattr("fadeout.fades.root_", torch.Tensor.sqrt_)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 300))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=1000)
    pruner.load_state_dict({**pruner.state_dict(), "step": 500})
    reads = Reads(monkeypatch)
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = 1e-4 * torch.randn_like(parameter)
        reads.count = 0
        optimizer.step()
    assert 1 <= reads.count <= 3


def test_nothing_as_large_as_the_weights_is_made():
    torch.manual_seed(0)
    model = torch.nn.Linear(2000, 2000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=1000)
    pruner.load_state_dict({**pruner.state_dict(), "step": 500})
    model.weight.grad = torch.zeros_like(model.weight)
    for _ in range(3):
        with Largest() as largest:
            optimizer.step()
    assert largest.bytes <= 4 * 2**18 < 4 * 2000**2 / 8
