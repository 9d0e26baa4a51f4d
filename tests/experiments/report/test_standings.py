"""Standings by hand: differences paired by seed, their intervals, and ranks."""

import pytest
from support.reports import record, section

from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.page import markdown, page
from fadeout.experiments.report.standings import find_standings
from fadeout.experiments.report.tables import standings_table, table

WHERE = "GCN on Cora, elements"


def runs(method, *accuracies, first=0, **settings):
    return [record(after, method=method, seed=first + n, **settings) for n, after in enumerate(accuracies)]


def standings(*records):
    found = find_standings(group_runs(section([one for made in records for one in made])))
    return {where: {one.name: one for one in methods} for where, methods in found.items()}


def test_margins_are_paired_by_seed():
    ours, theirs = runs("auto", 80.0, 70.0, 75.0), runs("gmp", 79.0, 68.0, 72.0, 99.0)  # -1, -2 and -3
    gmp, auto = group_runs(section(ours + theirs))
    assert auto.margin is None
    assert gmp.margin is not None
    assert gmp.margin.mean == -2.0
    t = 4.3027  # Student's, for two degrees of freedom
    assert gmp.margin.half == pytest.approx(t / 3**0.5, abs=1e-4)
    assert gmp.margin.verdict == "level"
    assert table([gmp, auto])["against fadeout"][0].text == "-2.00 ± 2.48"


def test_one_seed_has_no_interval():
    gmp, _ = group_runs(section(runs("auto", 80.0) + runs("gmp", 79.0)))
    assert gmp.margin is not None
    assert (str(gmp.margin), gmp.margin.verdict) == ("-1.00", "one seed")


def test_without_a_seed_in_common_nothing_is_said():
    groups = group_runs(section(runs("auto", 80.0) + runs("gmp", 79.0, first=1)))
    assert all(group.margin is None for group in groups)
    assert find_standings(groups) == {}
    assert "against fadeout" not in table(groups)


def test_a_dense_network_is_no_rival():
    """Its settings have a target, which it ignores."""
    assert standings(runs("auto", 80.0), runs("dense", 90.0)) == {}
    assert "dense" not in standings(runs("auto", 80.0), runs("dense", 90.0), runs("gmp", 79.0))[WHERE]


@pytest.mark.parametrize("condition", [{"epochs": 5}, {"lr": 0.2}, {"epochs_scale": 0.5}, {"sparsity": 0.8}])
def test_only_equal_conditions_are_compared(condition):
    assert standings(runs("auto", 80.0), runs("gmp", 79.0, **condition)) == {}


def test_a_record_of_an_earlier_version_has_the_defaults():
    old, new = record(79.0, method="gmp", seed=0), record(78.0, method="gmp", seed=1, compile=False)
    groups = group_runs(section([*runs("auto", 80.0, 80.0), old, new]))
    assert [(group.label, group.note, len(group.done)) for group in groups] == [
        ("GMP", "", 2),
        ("fadeout", "", 2),
    ]
    assert groups[0].margin is not None
    assert groups[0].margin.mean == -1.5


def test_ranks_by_hand():
    accuracies = {"auto": (80.0, 70.0), "gmp": (79.0, 71.0), "swd": (79.0, 60.0)}
    made = [
        runs(method, after, sparsity=target)
        for method, pair in accuracies.items()
        for after, target in zip(pair, (0.9, 0.99), strict=True)
    ]
    found = standings(*made)[WHERE]
    assert {name: one.rank for name, one in found.items()} == {"fadeout": 1.5, "GMP": 1.75, "SWD": 2.75}
    assert list(found) == ["fadeout", "GMP", "SWD"]
    assert [margin.mean for margin in found["GMP"].margins] == [-1.0, 1.0]
    assert (found["GMP"].count("one seed"), found["GMP"].count("level")) == (2, 0)


def test_who_trains_longer_has_no_rank():
    longer = {"rounds": 5, "fine_tune": 200, "last_fine_tune": 2000}
    found = standings(runs("auto", 80.0), runs("gmp", 79.0), runs("han", 90.0, **longer))[WHERE]
    assert {name: one.rank for name, one in found.items()} == {"fadeout": 1, "GMP": 2, "Han et al.": None}
    assert found["Han et al."].budget == (2000 + 4 * 200 + 2000) / 2000
    shown = standings_table(list(found.values()))
    assert [cell.text for cell in shown["epochs"]] == ["", "", "2.4 times"]


def test_a_method_with_other_options_is_a_rival_of_its_own():
    strong = runs("swd", 79.0, a_min=1.0, a_max=10.0), runs("swd", 70.0, a_min=1.0, a_max=100.0)
    assert list(standings(runs("auto", 80.0), *strong)[WHERE]) == [
        "fadeout",
        "SWD, a 1 to 10",
        "SWD, a 1 to 100",
    ]


def test_an_unknown_method_is_ranked_too():
    assert standings(runs("auto", 80.0), runs("mine", 81.0))[WHERE]["mine"].rank == 1


def test_both_formats_show_them():
    made = section(runs("auto", 80.0, 81.0) + runs("gmp", 79.0, 80.0))
    text = markdown([made])
    assert f"Against fadeout, paired by seed: {WHERE}" in text
    assert "| method | mean rank | mean difference | behind |" in text
    assert "| GMP | 2.00 | -1.00 at 1 target | 1 |" in text
    assert f"Against fadeout, paired by seed: {WHERE}" in page([made])
    assert "Against fadeout" not in markdown([section(runs("gmp", 79.0))])
