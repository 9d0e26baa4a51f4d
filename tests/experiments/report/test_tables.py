"""The tables, by hand."""

from support.reports import printed, record, section

from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.tables import table


def test_a_table_by_hand():
    made = [record(80.0, 82.0, seed=0), record(81.0, 83.0, seed=1), record(79.0, method="gmp")]
    shown = table(group_runs(section(made, [printed("swd", 0.9, 81.0)])))
    assert list(shown)[:6] == ["method", "removed", "seeds", "after", "after, paper", "after, difference"]
    texts = [[cell.text for cell in row] for row in zip(*shown.values(), strict=True)]
    assert texts[0][:7] == ["GMP", "90 %", "1", "79.00", "", "", "0.00"]
    assert texts[1][:7] == ["SWD", "90 %", "2", "80.50 ± 0.71", "81.00", "-0.50", "-2.00 ± 0.00"]
    assert shown["change"][1].mark == "fell"
    assert "weights left, %" not in shown  # exactly as many as were asked for


def test_weights_left_are_shown_where_they_are_not_the_target():
    shown = table(group_runs(section([{**record(80.0), "parameters_left": 7000}])))
    assert shown["weights left, %"][0].text == "11.3"
