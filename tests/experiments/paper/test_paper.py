"""Published values: by hand, and against each other; test_paper_source.py compares all with the source."""

import re
from collections import Counter

import pytest

from fadeout import models
from fadeout.experiments.paper import TITLES, VALUES, _read, published

COUNTS = {
    "Table 1": 23 * 3,
    "Table 2": 7 * 6,
    "Table 3": 22 * 6 + 22 * 12 + 2,  # and the two of the caption
    "Table 4": 2 * 2 * 16,
    "Table 5": 2 * 50,
    "Table 6": 2 * 2 * 30,
    "Table 7": 3 * 2 * 25,
    "Table 8": 3 * 2 * 36,
    "Table 9": 22 * 4,
    "Table 10": 2 * 2 * 3,
    "Figure 2": 22 * 6 - 1,  # its hole
    "Figure 3": 22 * 6,
    "Figure 4": 22 * 4,
    "Figure 5": 22 * 2,
    "Figure 6": 4 + 4 + 13,
}


def one(source, experiment, **conditions):
    (value,) = published(experiment, source=source, **conditions)
    return value.value


def test_counts_of_every_table_and_figure():
    assert Counter(value.source for value in VALUES) == COUNTS


def test_every_experiment_has_a_title_that_names_its_sources():
    assert {value.experiment for value in VALUES} == set(TITLES)
    for name, title in TITLES.items():
        for source in {value.source for value in published(name)}:
            kind, number = source.split()
            assert re.search(rf"{kind}s? ([0-9]+ and )?{number}\b", title), (title, source)


# Read off the paper by hand: corners, and places where rows and columns could be swapped.
COMPARISON = {
    ("Liu et al. 2018", "AlexNet", None, "elements", 0.9558): (22.6, 56.82, 0.24),
    ("Zhu et al. 2017", "MobileNet", None, "elements", 0.9): (10, 61.8, -8.8),
    ("swd", "resnet50", None, "elements", 0.975): (40, 67.8, -7.1),
    ("liu", "resnet50", None, "channels", 0.5): (2, 63.6, -12.1),
    ("Luo et al. 2017", "resnet50", None, "channels", 0.661): (2.95, 68.17, -7.13),
    ("swd", "resnet50", None, "channels", 0.25): (1.33, 74.7, -1.0),
    ("Liu et al. 2017", "densenet40", None, "channels", 0.6516): (2.87, 94.35, 0.46),
    ("Ye et al. 2018", "resnet20", 16, "channels", 0.6774): (3.1, 88.8, -3.2),
    ("swd", "resnet20", 16, "channels", 0.3): (1.42, 91.22, -1.15),
    ("swd", "resnet20", 64, "channels", 0.98): (50, 89.07, -6.5),
}


@pytest.mark.parametrize("line", COMPARISON)
def test_comparison_by_hand(line):
    named = dict(zip(("method", "network", "width", "structure", "sparsity"), line, strict=True))
    found = {value.metric: value.value for value in published("comparison", **named)}
    assert found == dict(zip(("compression", "after", "against_dense"), COMPARISON[line], strict=True))


@pytest.mark.parametrize(
    ("structure", "sparsity", "method", "metric", "expected"),
    [
        ("elements", 0.5, "han", "after", 74.9),
        ("elements", 0.975, "rewinding", "top5", 61.54),
        ("elements", 0.9, "swd", "after", 73.1),
        ("channels", 0.1, "liu", "top5", 92.2),
        ("channels", 0.8, "liu", "after", 0.1),
        ("channels", 0.25, "swd", "after", 73.5),
        ("channels", 0.8, "swd", "top5", 88.7),
    ],
)
def test_imagenet_by_hand(structure, sparsity, method, metric, expected):
    named = {"structure": structure, "sparsity": sparsity, "method": method, "metric": metric}
    assert one("Table 2", "imagenet", **named) == expected


@pytest.mark.parametrize(
    ("source", "width", "structure", "sparsity", "method", "metric", "expected"),
    [
        ("Table 3", 64, "elements", 0.1, "han", "after", 95.45),
        ("Table 3", 64, "elements", 0.999, "swd", "after", 81.32),
        ("Table 3", 16, "elements", 0.3, "rewinding", "after", 92.57),
        ("Table 3", 16, "elements", 0.925, "swd", "after", 89.88),
        ("Table 3", 64, "channels", 0.9, "liu", "after", 71.01),
        ("Table 3", 64, "channels", 0.9, "liu", "operations", 8.04),
        ("Table 3", 64, "channels", 0.985, "rewinding", "operations", 2.73),
        ("Table 3", 16, "channels", 0.95, "liu", "after", 64.23),
        ("Table 3", 16, "channels", 0.998, "swd", "operations", 0.53),
        ("Figure 2", 64, "elements", 0.1, "han", "after", 95.45),
        ("Figure 2", 64, "elements", 0.995, "rewinding", "after", 82.21),
        ("Figure 2", 64, "channels", 0.2, "swd", "after", 95.38),
        ("Figure 2", 64, "channels", 0.9, "liu", "after", 71.01),
        ("Figure 3", 16, "elements", 0.999, "swd", "after", 11.11),
        ("Figure 3", 16, "elements", 0.9, "han", "after", 85.26),
        ("Figure 3", 16, "channels", 0.97, "rewinding", "after", 39.3),
        ("Figure 3", 16, "channels", 0.1, "liu", "after", 91.96),
    ],
)
def test_tradeoff_by_hand(source, width, structure, sparsity, method, metric, expected):
    named = {"width": width, "structure": structure, "sparsity": sparsity, "method": method, "metric": metric}
    assert one(source, "cifar10-tradeoff", **named) == expected


@pytest.mark.parametrize(
    ("source", "experiment", "network", "sparsity", "a_min", "a_max", "after", "change"),
    [
        ("Table 4", "lenet-grid", "lenet5", 0.9, 1e-4, 1e1, 95.64, -3.01),
        ("Table 4", "lenet-grid", "lenet5", 0.9, 1e-1, 1e4, 98.95, 0),
        ("Table 4", "lenet-grid", "lenet5", 0.99, 1e-2, 1e4, 93.52, 0.28),
        ("Table 5", "extended-grid", "resnet20", 0.9, 1e4, 1e1, 94.44, -0.1),
        ("Table 5", "extended-grid", "resnet20", 0.9, 1e-5, 1e1, 67.07, -28.36),
        ("Table 5", "extended-grid", "resnet20", 0.9, 1e-2, 1e4, 95.37, 0.02),
        ("Table 6", "structured-grid", "resnet20", 0.75, 1e0, 1e1, 57.11, -37.68),
        ("Table 6", "structured-grid", "resnet20", 0.75, 1e-4, 1e6, 94.71, 0.01),
        ("Table 6", "structured-grid", "resnet20", 0.9, 1e-3, 1e4, 51.28, -40.7),
        ("Table 7", "unstructured-grids", "resnet18", 0.9, 1e-5, 1e2, 29.18, -65.73),
        ("Table 7", "unstructured-grids", "resnet20", 0.9, 1e-3, 1e1, 53.68, -41.72),
        ("Table 7", "unstructured-grids", "resnet34", 0.9, 1e-1, 1e1, 73.15, 2.5),
        ("Table 8", "structured-grids", "resnet18", 0.9, 1e0, 1e2, 65.74, -28.58),
        ("Table 8", "structured-grids", "resnet20", 0.9, 1e-4, 1e1, 7.16, -88.22),
        ("Table 8", "structured-grids", "resnet34", 0.9, 1e-1, 1e2, 51.33, 0),
        ("Table 8", "structured-grids", "resnet34", 0.9, 1e-5, 1e6, 5.69, -34.76),
    ],
)
def test_grids_by_hand(source, experiment, network, sparsity, a_min, a_max, after, change):
    named = {"network": network, "sparsity": sparsity, "a_min": a_min, "a_max": a_max}
    assert one(source, experiment, metric="after", **named) == after
    assert one(source, experiment, metric="change", **named) == change


@pytest.mark.parametrize("source", ["Table 9", "Figure 4"])
def test_strengths_by_hand(source):
    def after(a_min, a_max, sparsity):
        return one(source, "strengths", a_min=a_min, a_max=a_max, sparsity=sparsity)

    assert (after(0.1, 1e4, 0.1), after(0.1, 5e4, 0.999), after(1, 1e4, 0.99)) == (92.38, 16.39, 75.89)
    assert (after(1, 5e4, 0.995), after(0.1, 1e4, 0.985)) == (64.01, 75.47)


def test_cora_by_hand():
    def after(method, sparsity):
        return one("Figure 5", "cora", method=method, sparsity=sparsity)

    assert (after("han", 0.1), after("han", 0.995), after("han", 0.998)) == (83.6, 65.2, 14.7)
    assert (after("swd", 0.1), after("swd", 0.995), after("swd", 0.999)) == (82.9, 74.9, 59.3)


def test_ablation_by_hand():
    def curve(method):
        return {v.sparsity: v.value for v in published("ablation", method=method)}

    assert curve("one_shot") == {0.25: 95.61, 0.5: 95.54, 0.8: 90.5, 0.95: 19.4}
    assert curve("growing_decay") == dict.fromkeys((0.25, 0.5, 0.8, 0.95), 10)
    assert curve("swd")[0.95] == 94.4
    assert 0.25 not in curve("swd")


def test_cost_by_hand():
    def costs(network, metric):
        return [v.value for v in published("cost", network=network, metric=metric)]

    assert [v.structure for v in published("cost", metric="seconds")] == ["none", "elements", "channels"] * 2
    assert (costs("resnet50", "seconds"), costs("resnet50", "increase")) == ([2936, 4352, 4143], [0, 48, 41])
    assert (costs("resnet20", "seconds"), costs("resnet20", "increase")) == ([55, 77, 78], [0, 40, 41])


def test_the_hole_of_the_structured_tradeoff():
    holes = [value for value in VALUES if value.value is None]
    assert {v.metric for v in holes} == {"after", "operations"}
    assert {(v.source, v.width, v.structure, v.method, v.sparsity, v.a_max) for v in holes} == {
        ("Table 3", 64, "channels", "swd", 0.1, 1e7)
    }
    instead = published("cifar10-tradeoff", width=64, structure="channels", a_max=1e6)
    assert {v.metric: v.value for v in instead} == {"after": 95.19, "operations": 82.21}


def test_no_value_stands_twice():
    assert len(set(VALUES)) == len(VALUES)


def test_values_are_possible():
    for v in VALUES:
        assert v.sparsity is None or 0 < v.sparsity < 1, v
        assert v.structure in ("elements", "channels") or v.method == "dense", v
        if v.metric in ("after", "top5", "operations") and v.value is not None:
            assert 0 <= v.value <= 100, v
        if v.metric == "change" and v.value is not None:
            after = one(
                v.source,
                v.experiment,
                network=v.network,
                sparsity=v.sparsity,
                metric="after",
                a_min=v.a_min,
                a_max=v.a_max,
            )
            assert 0 <= after - v.value <= 100, v


def test_networks_are_ours_or_named_as_in_the_comparison():
    quoted = {"AlexNet", "InceptionV3", "MobileNet", "ResNet164"}
    ours = {v.network for v in VALUES} - quoted
    assert {v.method for v in VALUES if v.network in quoted} <= {
        v.method for v in VALUES if "et al." in v.method
    }
    assert ours - {"gcn"} <= set(models.__all__)


def points(source, experiment, **conditions):
    return {
        (v.width, v.structure, v.method, v.sparsity, v.a_min, v.a_max): v.value
        for v in published(experiment, source=source, metric="after", **conditions)
        if v.value is not None
    }


def test_figures_agree_with_their_tables():
    table = points("Table 3", "cifar10-tradeoff")
    figures = points("Figure 2", "cifar10-tradeoff") | points("Figure 3", "cifar10-tradeoff")
    assert figures.items() < table.items()
    assert len(table) == len(figures) + 1  # the point of the caption
    assert points("Figure 4", "strengths") == points("Table 9", "strengths")
    assert points("Figure 6", "ablation", method="swd").items() < table.items()
    assert points("Table 9", "strengths", a_min=1, a_max=1e4).items() < table.items()


def grid(source, experiment, **conditions):
    found = published(experiment, source=source, **conditions)
    return {(v.metric, v.a_min, v.a_max): v.value for v in found}


def test_grids_agree_where_they_overlap():
    extended, second = (
        grid("Table 5", "extended-grid"),
        grid("Table 7", "unstructured-grids", network="resnet20"),
    )
    assert second.items() < extended.items()
    first = grid("Table 6", "structured-grid", sparsity=0.9)
    second = grid("Table 8", "structured-grids", network="resnet20")
    assert first.items() - second.items() == {(("after", 1e-4, 1e1), 7.19)}  # 7.16 in Table 8


def test_comparison_agrees_with_the_other_tables():
    own = published("comparison", metric="after", method="swd") + published(
        "comparison", metric="after", method="liu"
    )
    for v in own:
        named = {"metric": "after", "method": v.method, "structure": v.structure, "sparsity": v.sparsity}
        if v.data == "imagenet":
            (other,) = published("imagenet", **named)
        else:
            (other,) = published("cifar10-tradeoff", source="Table 3", width=v.width, **named)
        longer = v.data == "imagenet" and v.structure == "channels" and v.method == "swd"
        assert (other.value == v.value) != longer
    for v in published("comparison", metric="compression"):
        assert 1 - 1 / v.value == pytest.approx(v.sparsity, abs=0.005)


def test_conditions_forgive_rounding_and_accept_none():
    assert published("lenet-grid", sparsity=1 - 0.1) == published("lenet-grid", sparsity=0.9) != []
    assert published("comparison", width=None, data="cifar10", method="Liu et al. 2017")
    assert published("imagenet", sparsity=0.123) == []


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no experiment 'cifar'.*cifar10-tradeoff"):
        published("cifar")
    with pytest.raises(ValueError, match=r"no field target.*sparsity"):
        published("cora", target=0.9)


def test_a_file_whose_lines_differ_in_length_is_refused():
    text = "experiment,cora\nlines,left\nmethod,han,swd\n90,1.0,2.0,3.0\n"
    with pytest.raises(ValueError, match=r"Table 0.*method.*'90'"):
        list(_read("Table 0", text))
