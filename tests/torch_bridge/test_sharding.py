"""DDP and FSDP2: the same masks and weights as in a single process, on every process."""

import itertools
import statistics
from functools import cache

import pytest
import torch
from support import distributed_cases as cases
from support.processes import Processes

import fadeout


@pytest.fixture(scope="module")
def processes():
    pools = {}

    def start(size: int) -> Processes:
        if size not in pools:
            pools[size] = Processes(size)
        return pools[size]

    yield start
    for pool in pools.values():
        pool.close()


@cache
def alone(*what):
    return cases.train("plain", *what)


KINDS = ["elements", "layers", "channels", "norms", "blocks", "nm"]


def cover():
    """Two processes with every kind, fade and optimizer once for each way; all combinations are slow."""
    for size, how in itertools.product((1, 2, 4), ("ddp", "fsdp")):
        where = size, how
        for number, what in enumerate(itertools.product(KINDS, cases.FADES, cases.OPTIMIZERS)):
            kind, fade = divmod(number // 2, len(cases.FADES))
            chosen = size == 2 and (kind - fade) % 4 == 2 * (how == "ddp") and number % 2 == kind % 2
            yield pytest.param(*where, *what, marks=() if chosen else pytest.mark.slow)


def check_equal(got, expected):
    for part, tensors in expected.items():
        if not isinstance(tensors, dict):
            assert got[part] == tensors, part
            continue
        assert got[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(got[part][name], tensor), (part, name)


@pytest.mark.parametrize(("size", "how", "kind", "fade", "optimizer"), list(cover()))
def test_equals_a_single_process(processes, size, how, kind, fade, optimizer):
    expected = alone(kind, fade, optimizer)
    for got in processes(size).run(cases.train, how, kind, fade, optimizer):
        check_equal(got, expected)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_rounded_widths_equal_a_single_process(processes, how):
    expected = alone("rounded", "progressive", "sgd")
    for got in processes(2).run(cases.train, how, "rounded", "progressive", "sgd"):
        check_equal(got, expected)


def test_all_go_by_what_the_first_has_measured(tmp_path):
    pool = Processes(2, XDG_CACHE_HOME=str(tmp_path))
    try:
        first, second = pool.run(cases.measured_on_each)
    finally:
        pool.close()
    assert first == second
    assert first["multiple_of"] == 2
    assert first["times"]["scale"] > 0


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("method", ["elements", "channels", "slimming"])
def test_a_closure_gets_the_penalty_of_all(processes, how, method):
    wanted = cases.closure_loss("plain", method)
    assert wanted > 7
    assert processes(2).run(cases.closure_loss, how, method) == [pytest.approx(wanted, rel=1e-12)] * 2


@cache
def drifted(*what):
    return cases.drift(None, *what)


LAYOUTS = ["rows", "columns", "copies", "hybrid", "grid", "twice", "mixed", "apart"]
WAYS = [
    ("network", "progressive", "swd"),
    ("layer", "gradient", "swd"),
    ("network", "implicit", "taylor"),
    ("network", "progressive", "gmp"),
    ("network", "latent", "lamp"),
    ("network", "latent", "calm"),
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("scope", "fade", "method"), WAYS)
def test_any_placement(processes, layout, scope, fade, method):
    """Ties abound, blocks are uneven or empty, and some are there several times."""
    expected = drifted(scope, fade, method)
    for got in processes(4).run(cases.drift, layout, scope, fade, method):
        for mine, theirs in zip(got["masks"], expected["masks"], strict=True):
            check_equal({"masks": mine}, {"masks": theirs})
        check_equal({"weights": got["weights"]}, {"weights": expected["weights"]})
        assert got["fade"] == pytest.approx(expected["fade"], rel=1e-9)
        assert got["warnings"] == expected["warnings"]


def test_empty_rows_are_calmed():
    """So that the placements above see it."""
    calm, not_calm = drifted("network", "latent", "calm"), drifted("network", "latent", "not calm")
    assert any(not torch.equal(calm["weights"][name], not_calm["weights"][name]) for name in "abcd")


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_empty_rows_are_calmed_as_in_a_single_process(processes, how):
    what = "elements", "latent", "sgd", cases.STEPS, 0.93
    for got in processes(2).run(cases.train, how, *what):
        check_equal(got, alone(*what))


def test_what_is_sent_does_not_grow_with_the_model(processes):
    runs = [processes(2).run(cases.traffic, *what)[0] for what in ((256,), (2048,), (256, "layer"))]
    for run, layers in zip(runs, (1, 1, 2), strict=True):
        assert statistics.median(run["bytes"]) <= 900 * layers
        assert max(run["bytes"]) <= 6000 * layers  # where the threshold jumps, a sample tells where to look
        assert statistics.median(run["calls"]) <= 5
        assert run["largest"] <= 4 << 18  # a piece of 2^18 numbers
    assert runs[1]["shard"] == 8 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["elements", "channels", "rounded", "blocks", "nm", "gmp", "taylor", "GrowingRegularization", "HESSO"],
)
def test_saved_on_four_resumed_on_two_then_on_one(processes, tmp_path, method):
    undisturbed = cases.resume("plain", method, str(tmp_path / "alone"), 0, 30)
    processes(4).run(cases.resume, "fsdp", method, str(tmp_path), 0, 11)
    for got in processes(2).run(cases.resume, "fsdp", method, str(tmp_path), 11, 20):
        assert sum(int(mask.sum()) for mask in got["masks"].values()) > 0
    check_equal(cases.resume("plain", method, str(tmp_path), 20, 30), undisturbed)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_an_ordinary_file_comes_out(processes, tmp_path, how):
    processes(2).run(cases.consolidate, how, str(tmp_path))
    expected = alone("channels", "progressive", "sgd")
    model = fadeout.load(tmp_path / "model.safetensors", lambda: cases.Net().double())
    example = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    small = fadeout.compact(model.eval(), example)
    assert sum(p.numel() for p in small.parameters()) <= 0.5 * sum(p.numel() for p in model.parameters())
    assert expected["masks"].keys() == fadeout.Masks.load(tmp_path / "masks.safetensors").keys()
    for got in processes(2).run(cases.masked, how, str(tmp_path)):
        for name, mask in fadeout.Masks.load(tmp_path / "masks.safetensors").items():
            assert not got[name][~mask].any()


def test_a_file_that_cannot_be_written_is_an_error_on_every_process(processes, tmp_path):
    for errors in processes(2).run(cases.saved_nowhere, str(tmp_path / "missing")):
        assert ["there is no folder" in error for error in errors] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_one_shot(processes, kind):
    expected = cases.one_shot("plain", kind)
    for got in processes(2).run(cases.one_shot, "fsdp", kind):
        check_equal(got, expected)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_gradients_may_be_accumulated(processes, how):
    expected = cases.accumulate("plain")
    for got in processes(2).run(cases.accumulate, how):
        check_equal({"weights": got}, {"weights": expected})


@pytest.mark.parametrize("low_weights", [False, True])
def test_mixed_precision(processes, low_weights):
    one, two = processes(2).run(cases.mixed_precision, low_weights)
    assert one["fade"] == 0
    assert one["left"] == 75
    assert one["total"] == 750
    check_equal(one, two)


@pytest.mark.parametrize("case", [cases.different_seeds, cases.different_models, cases.different_steps])
def test_processes_that_train_different_models(processes, case):
    first, second = processes(2).run(case)
    assert first == second
    assert "different" in first


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("fade", ["progressive", "gradient"])
@pytest.mark.parametrize(
    "kind",
    ["elements", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("channels", "blocks", "nm"))],
)
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_one_process_with_nan(processes, how, kind, fade, at):
    """All raise the same error; none waits for another."""
    first, second = processes(2).run(cases.one_nan, how, kind, fade, at)
    assert first == second
    assert "holds NaN" in first


def test_a_criterion_that_needs_whole_layers(processes):
    for error in processes(2).run(cases.whole_layers, "fsdp"):
        assert "whole layers" in error
    assert processes(2).run(cases.whole_layers, "ddp") == ["no error"] * 2


def test_filters_that_one_process_has_and_the_others_not(processes):
    expected = {"masks": cases.narrow_filters(split=False)}
    for got in processes(2).run(cases.narrow_filters, True):
        check_equal({"masks": got}, expected)


CUTS = [("columns", "blocks"), ("grid", "blocks"), ("mixed", "blocks"), ("rows", "nm"), ("grid", "thirds")]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "kind"), CUTS)
def test_tiles_and_groups_wherever_they_are_cut(processes, layout, kind):
    """A tile may lie on several processes; a group that does is refused, by all of them."""
    answers = processes(4).run(cases.tiled, layout, kind)
    if kind == "thirds":
        assert answers == [answers[0]] * 4
        assert "cuts groups in two" in answers[0]
        return
    for got in answers:
        check_equal(got, cases.tiled(None, kind))


@pytest.mark.parametrize("criterion", ["magnitude", "lamp"])
def test_a_display_on_one_process(processes, criterion):
    assert processes(2).run(cases.lonely_display, criterion)[0] > 0


def test_a_sharded_model_is_not_compacted(processes):
    assert all("fadeout.save" in error for error in processes(2).run(cases.compacts))
