"""The facts of each recipe, and every method through to its target on the digits."""

import json

import pytest
import torch

import fadeout
from fadeout.experiments.execute import Execution, execute
from fadeout.experiments.recipes import METHODS
from fadeout.experiments.run import Run
from fadeout.methods import GradualMagnitudePruning
from fadeout.methods.slimming import Slimming

STRENGTHS = {"a_min": 1.0, "a_max": 100.0}
SHORT = {"epochs": 1, "fine_tune": 1, "last_fine_tune": 1, **STRENGTHS}


def phases(**fields):
    return [(phase.name, phase.epochs, phase.remove, phase.restart) for phase in Run(**fields).phases()]


def run(tmp_path, **fields):
    """The record, and the weights in the checkpoint."""
    one = Run(**fields)
    record = execute(one, tmp_path)
    return record, torch.load(tmp_path / one.hash / "checkpoint")["model"]


# Phases ---------------------------------------------------------------------------------------------------


def test_training_alone():
    assert phases(method="dense", epochs=7) == [("train", 7, None, True)]
    assert phases(method="one_shot", epochs=7) == [("train", 7, None, True), ("pruned", 0, 0.9, False)]
    for method in ("gmp", "swd", "auto", "growing_decay"):
        assert phases(method=method, epochs=7, **STRENGTHS) == [("train", 7, None, True)]


def test_han_removes_in_equal_parts_and_fine_tunes_longest_at_last():
    found = phases(method="han", epochs=300, sparsity=0.5, fine_tune=15, last_fine_tune=50)
    assert found == [
        ("train", 300, None, True),
        ("fine-tune 1", 15, 0.1, False),
        ("fine-tune 2", 15, 0.2, False),
        ("fine-tune 3", 15, pytest.approx(0.3), False),
        ("fine-tune 4", 15, 0.4, False),
        ("fine-tune 5", 50, 0.5, False),
    ]


def test_liu_removes_once():
    found = phases(method="liu", structure="channels", epochs=90, last_fine_tune=40)
    assert found == [("train", 90, None, True), ("fine-tune", 40, 0.9, False)]


def test_rewinding_trains_twice_as_long():
    found = phases(method="rewinding", epochs=90)
    assert found == [("train", 90, None, True), ("train again", 90, 0.9, True)]


def built(**fields):
    """The pruner of the first phase, on the small network."""
    one = Run(**fields)
    model, example = one.build_model(10), torch.zeros(1, 1, 8, 8)
    pruner = one.phases()[0].pruner
    structure = one.build_structure(example)
    return pruner and pruner(model, one.build_optimizer(model), steps=10, structure=structure)


def test_what_acts_during_training():
    assert built(method="dense") is None
    assert built(method="han") is None
    assert built(method="rewinding") is None
    assert isinstance(built(method="gmp"), GradualMagnitudePruning)
    auto = built(method="auto", sparsity=0.7)
    assert (auto.sparsity, auto._fade) == (0.7, fadeout.Progressive())
    for selective, method in ((True, "swd"), (False, "growing_decay")):
        fade = built(method=method, a_min=0.1, a_max=10.0, mu=2.0)._fade
        assert (fade.selective, fade.weight_decay, fade.mode, fade.penalty) == (
            selective,
            2.0,
            "gradient",
            "l2",
        )
        assert [fade.strength(p) for p in (0, 0.5, 1)] == pytest.approx([0.1, 1, 10])
    for method in ("liu", "rewinding"):
        for preset in ("paper", "authors"):
            slimming = built(method=method, structure="channels", smooth_l1=0.25, preset=preset)
            assert isinstance(slimming, Slimming)
            assert (slimming.strength, slimming._authors) == (0.25, preset == "authors")


def test_extra_epochs_come_last_and_all_lengths_scale():
    found = phases(method="han", epochs=30, rounds=2, fine_tune=1, last_fine_tune=4, extra_epochs=9)
    assert found[-1] == ("extra", 9, None, False)
    scaled = Run(
        method="han", epochs=30, rounds=2, fine_tune=1, last_fine_tune=4, extra_epochs=9, epochs_scale=0.1
    )
    assert [phase.epochs for phase in scaled.phases()] == [3, 1, 1, 1]  # never none where there was one
    assert scaled.shortened
    assert phases(method="one_shot", epochs=30, epochs_scale=0.1)[-1][1] == 0


# Carried out ----------------------------------------------------------------------------------------------

PRUNABLE = 16 * 9 + 32 * 16 * 9 + 64 * 512 + 10 * 64


def zeros(weights):
    return sum(int((w == 0).sum()) for name, w in weights.items() if name.endswith("weight") and w.dim() > 1)


@pytest.mark.filterwarnings("ignore:at step .* SGD overshoots")
@pytest.mark.parametrize(
    ("method", "structure"),
    [(m, s) for m in METHODS for s in ("elements", "channels") if (m, s) != ("liu", "elements")],
)
def test_every_method_ends_at_its_target(tmp_path, method, structure):
    record, weights = run(tmp_path, method=method, structure=structure, sparsity=0.8, **SHORT)
    assert record["status"] == "done"
    left = record["parameters_left"] / record["parameters"]
    if method == "dense":
        assert left > 0.999
        assert record["before"] == record["removed"] == record["after"]
    elif structure == "elements":
        assert zeros(weights) == round(0.8 * PRUNABLE)
    else:
        assert 0.2 - 0.02 < left <= 0.2  # what is left is physically there, and no more than asked
        assert record["operations_left"] < 0.8 * record["operations"]
    assert record["after"] > 20  # chance is 10


def test_fine_tuning_goes_on_with_the_last_learning_rate_and_the_state_of_the_optimizer(tmp_path):
    one = Run(method="han", epochs=3, rounds=1, last_fine_tune=1, steps=3)
    execution, seen = execution_of(one, tmp_path), []

    def watch(now):
        state = next(iter(execution.optimizer.state.values()))["momentum_buffer"]
        seen.append((now["phase"], execution.optimizer, execution.optimizer.param_groups[0]["lr"], state))

    execution.watch = watch
    execution.carry_out()
    assert len({id(optimizer) for _, optimizer, _, _ in seen}) == 1
    rates = [rate for phase, _, rate, _ in seen if phase == "fine-tune 1"]
    assert rates == pytest.approx([0.001] * 3)
    assert len({id(state) for _, _, _, state in seen}) == 1


def test_rewinding_begins_with_a_new_optimizer_and_the_first_learning_rate(tmp_path):
    execution, seen = execution_of(Run(method="rewinding", epochs=3, steps=2), tmp_path), {}
    execution.watch = lambda now: seen.setdefault(now["phase"], []).append(
        (id(execution.optimizer), execution.optimizer.param_groups[0]["lr"])
    )
    held = []
    enter = execution._enter

    def entering(phase):
        before = execution.optimizer
        enter(phase)
        held.append((before, bool(execution.optimizer.state)))

    execution._enter = entering
    execution.carry_out()
    first, again = ([rate for _, rate in seen[name]] for name in ("train", "train again"))
    assert first == again
    assert seen["train"][0][0] != seen["train again"][0][0]
    assert [state for _, state in held] == [False, False]  # no momentum to begin with


def execution_of(one, tmp_path):
    return Execution(one, tmp_path, None, "cpu", 1e9, None)


def test_what_is_removed_stays_so_and_each_removal_has_its_target(tmp_path):
    one = Run(method="han", epochs=1, fine_tune=1, last_fine_tune=1, steps=3, sparsity=0.5, extra_epochs=1)
    execution, counts, gone = execution_of(one, tmp_path), {}, {}

    def watch(now):
        flat = torch.cat([p.detach().flatten() for p in execution.model.parameters() if p.dim() > 1]) == 0
        counts.setdefault(now["phase"], set()).add(int(flat.sum()))
        if now["phase"] != "train":
            assert bool(flat[gone.get("last", flat)].all())  # zeros stay zeros
            gone["last"] = flat

    execution.watch = watch
    execution.carry_out()
    wanted = [round(0.5 * k / 5 * PRUNABLE) for k in range(1, 6)]
    for k, target in enumerate(wanted, 1):
        assert counts[f"fine-tune {k}"] == {target}
    assert counts["extra"] == {wanted[-1]}


def test_extra_epochs_keep_the_accuracy_before_removal(tmp_path):
    fields = {"method": "one_shot", "epochs": 1, "sparsity": 0.97}
    plain, _ = run(tmp_path, **fields)
    longer, weights = run(tmp_path, **fields, extra_epochs=1)
    assert (longer["before"], longer["removed"]) == (plain["before"], plain["removed"])
    assert longer["before"] > longer["removed"] + 10
    assert longer["after"] > longer["removed"] + 10
    assert zeros(weights) == round(0.97 * PRUNABLE)


def test_soft_pruning_sets_the_lowest_weights_to_zero_at_each_epoch_and_they_grow_again(tmp_path):
    execution, seen = execution_of(Run(method="swd", soft=True, epochs=2, steps=2, **STRENGTHS), tmp_path), []
    begin = execution._begin_epoch

    def beginning(epoch):
        begin(epoch)
        seen.append((epoch, zeros(execution.model.state_dict())))

    execution._begin_epoch = beginning
    execution.watch = lambda now: seen.append(("step", zeros(execution.model.state_dict())))
    execution.carry_out()
    target = round(0.9 * PRUNABLE)
    assert [count for when, count in seen if when != "step"] == [target, target]
    assert all(count < target / 2 for when, count in seen if when == "step")


def test_the_metrics_say_phase_epoch_and_rate_and_tests_come_as_often_as_asked(tmp_path):
    one = Run(method="rewinding", epochs=3, steps=2, evaluate_every=2)
    execute(one, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / one.hash / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["epoch"]) for line in lines] == [
        ("train", 1),
        ("train", 2),  # the last of a phase
        ("train again", 3),
        ("train again", 5),
    ]
    assert [line["sparsity"] for line in lines] == pytest.approx([0, 0, 0.9, 0.9], abs=1e-4)
