"""What is kept of a run, and what is said of it in a line."""

import traceback
from pathlib import Path

import torch

from fadeout.experiments.build import build_data, build_model
from fadeout.experiments.result import describe_record, make_failure, make_record
from fadeout.experiments.run import Run

RUN = Run(method="one_shot", sparsity=0.8)


def record_of(run, **figures):
    model = build_model(run, 10)
    figures = {"after": 90.123456, "top5": 99.0, **figures}
    return make_record(run, model, model.state_dict(), build_data(run).example, figures, 12.345)


def test_without_a_removal_all_accuracies_are_the_last():
    record = record_of(RUN)
    assert record["before"] == record["removed"] == record["after"] == 90.1235
    assert record["top5_before"] == record["top5"] == 99.0
    assert (record["hash"], record["run"]) == (RUN.hash, RUN.to_dict())


def test_channels_count_what_is_there_and_weights_what_is_not_zero():
    left = {}
    for structure in ("elements", "channels"):
        run = Run(structure=structure)
        model = build_model(run, 10)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        state["norm1.weight"][3] = state["norm1.bias"][3] = 0  # a dead channel
        state["fc2.weight"][0, 0] = 0  # and a single weight
        figures = {"after": 1.0, "top5": 1.0}
        record = make_record(run, model, state, build_data(run).example, figures, 0.0)
        left[structure] = record["parameters"] - record["parameters_left"]
        assert record["operations_left"] < record["operations"]
    assert left["channels"] == 9 + 1 + 2 + 32 * 9  # its filter, the bias, the norm, and what read it
    assert left["elements"] > left["channels"]


def test_coupled_sums_keep_what_one_of_them_keeps():
    left = {}
    for couple in (False, True):
        run = Run(model="resnet20", data="cifar10", width=8, structure="channels", couple=couple)
        model = build_model(run, 10)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        state["layer1.1.post.weight"][3] = state["layer1.1.post.bias"][3] = 0  # of one sum of its stage alone
        figures = {"after": 1.0, "top5": 1.0}
        record = make_record(run, model, state, torch.zeros(1, 3, 8, 8), figures, 0.0)
        left[couple] = record["parameters_left"]
    assert left[False] < left[True]


def test_a_target_in_time_is_measured():
    assert "milliseconds" not in record_of(Run(structure="channels"))
    record = record_of(Run(structure="channels", of="time", time_batch=2))
    assert record["milliseconds"] > 0
    assert record["milliseconds_left"] > 0


def test_lines():
    line = describe_record(record_of(RUN, before=95.0, removed=80.0))
    assert line.startswith(
        "smallcnn on digits: one_shot 80 % of weights seed 0: 90.12 %, 95.00 before and 80.00"
    )
    assert line.endswith("of the parameters left, 12 s")
    failed = make_failure(RUN, "Traceback\nValueError: too large\n")
    assert describe_record(failed).endswith("one_shot 80 % of weights seed 0: failed: ValueError: too large")
    assert describe_record(failed | {"error": ""}).endswith("seed 0: failed: no reason was recorded")


def test_a_failure_names_modules_and_no_folder_of_this_machine():
    try:
        torch.zeros(2).view(3)
    except RuntimeError:
        text = traceback.format_exc()
    try:
        make_record(None, None, None, None, None, None)
    except Exception:
        text += traceback.format_exc()
    error = make_failure(RUN, text)["error"]
    assert 'File "fadeout/experiments/result.py", line' in error
    assert str(Path(make_failure.__code__.co_filename).parents[2]) not in error
    assert "Error: " in error
