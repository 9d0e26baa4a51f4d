"""The counting script: what it counts as a hop, and against the layers."""

import importlib.util
from pathlib import Path

import pytest

import fadeout

SCRIPT = Path(__file__).parents[1] / "tools" / "count.py"


@pytest.fixture(scope="module")
def count():
    spec = importlib.util.spec_from_file_location("count", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_and_lines(count):
    folder, width = count.widest()
    assert folder.is_relative_to(count.ROOT)
    assert width == len([p for p in folder.glob("*.py") if p.stem not in ("__init__", "__main__")])
    assert count.lines() > 100 * width
    assert "schedules" not in count.untested()


def test_a_hop_goes_from_one_file_to_another(count):
    walk = count.Walk()
    with walk:
        fadeout.schedules.cubic(0.9)(0.5)  # within one file, whoever calls
    assert [file for file in walk.files if file != "_arguments"] == ["schedules"]
    assert not [hop for hop in walk.hops if "_arguments" not in "".join(hop)]
    with walk:
        fadeout.Progressive().target(0.5, 100)
    assert [file for file in walk.files if file != "_arguments"] == ["schedules", "fades"]
    hops = [hop for hop in walk.hops if "_arguments" not in "".join(hop)]
    assert hops
    assert all(a.startswith("fades:") and b.startswith("schedules:") for a, b in hops)


def test_the_step_visits_the_hooks_the_method_and_the_fade(count):
    walk = count.walk_step()
    assert {"torch_bridge/step_hooks", "methods/swd", "fades"} <= set(walk.files)
    assert 0 < len(walk.hops) <= walk.hops.total()


def test_imports_against_the_layers_are_found(count):
    assert count.against_the_layers(["fades", "schedules"]) == []
    assert "fades imports fadeout.schedules" in count.against_the_layers(["schedules", "fades"])
    assert "fades imports fadeout.schedules" in count.against_the_layers(["schedules | fades"])
    assert "pruners | storage" in count.declared_layers()
