"""Groups by hand: mean and std over seeds, settings that tell apart, and the paper's values."""

import math
from dataclasses import replace

import pytest
from support.reports import printed, record, section

from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.page import page
from fadeout.experiments.report.tables import table


def test_means_by_hand():
    made = [record(80.0, 81.0, seed=0), record(82.0, 82.0, seed=1), record(84.0, 86.0, seed=2)]
    (group,) = group_runs(section(made[::-1]))
    after, change = group.estimates["after"], group.estimates["change"]
    assert (after.mean, after.std, len(group.done)) == (82.0, 2.0, 3)
    assert (change.mean, change.std) == (-1.0, 1.0)  # -1, 0 and -2
    assert group.estimates.get("top5") is None
    assert group.estimates["operations"].mean == pytest.approx(100 * 9_000 / 416_520)
    assert [one["run"]["seed"] for one in group.records] == [0, 1, 2]


def test_speeds_by_hand():
    times = [{"milliseconds": 6.0, "milliseconds_left": left} for left in (2.0, 3.0)]
    made = [{**record(80.0, seed=seed), **own} for seed, own in enumerate(times)]
    (group,) = group_runs(section(made))
    assert group.estimates["faster"].mean == 2.5
    assert table([group])["times as fast"][0].text == "2.50 ± 0.71"
    assert "times as fast" not in table(group_runs(section([record(80.0)])))


def test_one_seed_has_no_spread():
    (group,) = group_runs(section([record(80.0)]))
    assert group.estimates["after"].std is None


def test_what_is_not_finite_stays_so():
    (group,) = group_runs(section([record(math.nan), record(80.0, seed=1)]))
    assert math.isnan(group.estimates["after"].mean)
    assert "not a number" in page([section([record(math.nan), record(80.0, seed=1)], kind="curve")])


def test_failed_runs_are_counted_apart():
    (group,) = group_runs(section([record(80.0), record(None, seed=1)]))
    assert (len(group.done), len(group.failed), group.estimates["after"].mean) == (1, 1, 80.0)


def test_settings_that_nothing_else_tells_apart_are_named():
    made = [record(80.0, method=m, preset=p) for m in ("swd", "gmp") for p in ("paper", "authors")]
    made.append(record(80.0, method="han", epochs=3))
    named = {(group.method, group.note) for group in group_runs(section(made))}
    assert named == {
        ("swd", "preset paper"),
        ("swd", "preset authors"),
        ("gmp", "preset paper"),
        ("gmp", "preset authors"),
        ("han", ""),
    }


def test_held_out_data_are_named():
    assert [g.note for g in group_runs(section([record(80.0, validation=True)]))] == [
        "tested on held-out training data"
    ]
    both = section([record(80.0, validation=True), record(80.0, validation=False)])
    assert sorted(g.note for g in group_runs(both)) == ["", "tested on held-out training data"]


def test_change_is_what_removal_did_before_any_fine_tuning():
    (group,) = group_runs(section([{**record(80.0, 82.0), "removed": 30.0}]))
    assert group.estimates["change"].mean == -52.0


def test_strengths_belong_to_the_methods_that_have_them():
    made = [record(80.0, method=method, a_min=0.1, a_max=1e4) for method in ("swd", "gmp", "auto")]
    assert {g.method: g.strengths for g in group_runs(section(made))} == {
        "swd": (0.1, 1e4),
        "gmp": (None, None),
        "auto": (None, None),
    }


# The paper's values


def test_published_values_stand_beside_ours():
    made = [record(80.0, seed=0, sparsity=0.9), record(81.0, seed=1, sparsity=0.9)]
    published = [
        printed("swd", 0.1 + 0.8, 79.0),
        printed("swd", 0.9, -0.5, "change"),
        printed("han", 0.9, 77.0),
    ]
    ours, theirs = sorted(group_runs(section(made, published)), key=lambda group: not group.records)
    assert ours.published == {"after": 79.0, "change": -0.5}
    assert ours.difference("after") == 1.5
    assert ours.difference("change") == 0.5
    assert (theirs.method, theirs.published, theirs.difference("after")) == ("han", {"after": 77.0}, None)
    assert theirs.setup == ours.setup


def test_all_that_a_published_value_says_must_agree():
    run = {"method": "swd", "width": 64, "a_min": 0.1, "a_max": 1e4}
    fitting = printed("swd", 0.9, 79.0, width=64, a_min=0.1, a_max=1e4)
    for value in (fitting, replace(fitting, width=None), replace(fitting, a_min=None, a_max=None)):
        assert len(group_runs(section([record(80.0, **run)], [value]))) == 1
    for other in (
        {"width": 16},
        {"a_max": 1e5},
        {"data": "mnist"},
        {"structure": "channels"},
        {"sparsity": 0.8},
    ):
        assert len(group_runs(section([record(80.0, **run)], [replace(fitting, **other)]))) == 2


def test_the_more_exact_value_counts():
    values = [printed("swd", 0.9, 70.0), printed("swd", 0.9, 79.0, a_min=0.1, a_max=1e4)]
    (group,) = group_runs(section([record(80.0, a_min=0.1, a_max=1e4)], values))
    assert group.published == {"after": 79.0}


def test_a_table_counts_more_than_its_figure():
    figure, exact = printed("swd", 0.9, 79.0), replace(printed("swd", 0.9, 79.04), source="Table 3")
    for values in ([figure, exact], [exact, figure]):
        (group,) = group_runs(section([record(80.0)], values))
        assert group.published == {"after": 79.04}


def test_what_a_published_value_leaves_open():
    cost = printed("swd", None, 40.0, "increase")  # of any target
    dense = printed("dense", None, 81.0, structure="none")
    made = [record(80.0), record(82.0, method="dense")]
    found = {group.method: group for group in group_runs(section(made, [cost, dense]))}
    assert found["swd"].published == {"increase": 40.0}
    assert found["dense"].published == {"after": 81.0}
    assert found["dense"].sparsity == 0  # whatever its run says
    shown = table(list(found.values()))
    assert "increase, paper" in shown


def test_seconds_are_shown_beside_the_papers_only():
    made = [record(80.0, epochs=100, epochs_scale=0.1)]
    assert "seconds an epoch" not in table(group_runs(section(made)))
    shown = table(group_runs(section(made, [printed("swd", 0.9, 77.0, "seconds")])))
    assert [cell.text for cell in shown["seconds an epoch"]] == ["1.23"]
    assert [cell.text for cell in shown["seconds an epoch, difference"]] == ["-75.77"]
    assert group_runs(section([record(80.0, steps=3)]))[0].estimates.get("seconds") is None
    assert "seconds an epoch</text>" in page([section(made, [printed("swd", 0.9, 77.0, "seconds")])])


def test_a_hole_in_the_paper():
    (group,) = group_runs(section([record(80.0)], [printed("swd", 0.9, None)]))
    assert (group.published, group.difference("after")) == ({"after": None}, None)
    shown = table([group])
    assert shown["after, paper"][0].text == "none"
