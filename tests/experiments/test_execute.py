"""A run in its folder: what it writes, how it stops and goes on, and what bad folders get."""

import json
import resource
import signal

import pytest
import torch
from support.covering import covering

import fadeout
from fadeout.experiments.build import build_model
from fadeout.experiments.disk.record_file import read_record
from fadeout.experiments.disk.run_folder import BusyError, NewerError, alone
from fadeout.experiments.execute import Execution, Stopped, execute
from fadeout.experiments.run import Run
from fadeout.methods.registry import METHODS

STRENGTHS = {"a_min": 1.0, "a_max": 100.0}
SHORT = {"epochs": 1, "fine_tune": 1, "last_fine_tune": 1, **STRENGTHS}
SMALL = Run(method="gmp", epochs=2, steps=4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return execute(SMALL, folder), folder / SMALL.hash


def contents(folder):
    """All files but the one that says how far it is: on a slow machine it is written between two steps."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "progress.json"}


def same_as(undisturbed, record, folder):
    wanted, whole = undisturbed
    assert {**record, "seconds": 0} == {**wanted, "seconds": 0}
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    mine, theirs = (torch.load(place / "checkpoint")["model"] for place in (folder, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_folder_holds_all_that_is_needed(undisturbed):
    record, folder = undisturbed
    assert sorted(contents(folder)) == ["checkpoint", "config.json", "lock", "metrics.jsonl", "result.json"]
    assert json.loads((folder / "config.json").read_text()) == {"version": 2, "run": SMALL.to_dict()}
    assert read_record(folder / "result.json") == record
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert record["hash"] == folder.name == SMALL.hash
    assert record["run"] == SMALL.to_dict()
    assert record["parameters"] == sum(p.numel() for p in build_model(SMALL, 10).parameters())
    assert record["parameters_left"] < 0.11 * record["parameters"]
    assert 0 < record["operations_left"] <= record["operations"]
    assert 0 <= record["after"] <= record["top5"] <= 100
    assert record["seconds"] > 0
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["fadeout"] == fadeout.__version__
    assert record["machine"].endswith("threads")


def test_a_dense_run_that_diverges_has_no_result(tmp_path):
    run = Run(method="dense", epochs=1, steps=4, lr=1e30)
    with pytest.raises(ValueError, match=r"the loss is NaN in epoch 1, step \d: training has diverged"):
        execute(run, tmp_path)
    assert not (tmp_path / run.hash / "result.json").exists()


def test_a_finished_run_is_read_not_repeated(undisturbed, monkeypatch):
    record, folder = undisturbed
    before = contents(folder)
    monkeypatch.setattr("fadeout.experiments.execute.Execution", None)
    assert execute(SMALL, folder.parent) == record
    assert contents(folder) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("last", [1, 4, 8])  # in an epoch, at its end, at the end of all
def test_a_signal_saves_and_stops_and_the_next_call_goes_on(tmp_path, undisturbed, number, last):
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    seen = []

    def watch(now):
        seen.append(now["step"])
        if now["step"] == last:
            signal.raise_signal(number)

    with pytest.raises(Stopped):
        execute(SMALL, tmp_path, watch=watch)
    assert seen == list(range(1, last + 1))
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    folder = tmp_path / SMALL.hash
    assert not (folder / "result.json").exists()
    same_as(undisturbed, execute(SMALL, tmp_path, watch=watch), folder)
    assert seen == list(range(1, 9))  # nothing twice


def test_a_signal_too_late_for_the_run_still_stops_what_follows(tmp_path, monkeypatch):
    real = Execution._record
    monkeypatch.setattr(Execution, "_record", lambda self: (signal.raise_signal(15), real(self))[1])
    with pytest.raises(Stopped):
        execute(SMALL, tmp_path)
    assert execute(SMALL, tmp_path)["status"] == "done"


def test_the_second_signal_stops_at_once(tmp_path):
    def watch(now):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        execute(SMALL, tmp_path, watch=watch)
    assert not isinstance(caught.value, Stopped)


def test_checkpoints_come_at_the_interval_asked_for(tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr(
        "fadeout.experiments.execute.write_checkpoint", lambda folder, state: times.append("checkpoint")
    )
    execute(SMALL, tmp_path / "often", checkpoint_every=0)
    assert times == ["checkpoint"] * 9  # eight steps, and the end
    times.clear()
    execute(SMALL, tmp_path / "never", checkpoint_every=1e9)
    assert times == ["checkpoint"]


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, undisturbed):
    folder, limits, before = tmp_path / SMALL.hash, resource.getrlimit(resource.RLIMIT_FSIZE), {}

    def watch(now):
        if now["step"] == 4:
            before.update(contents(folder))
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))

    try:
        with pytest.raises(OSError, match="the one before is intact: make room") as caught:
            execute(SMALL, tmp_path, checkpoint_every=0, watch=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(folder) in str(caught.value)
    assert contents(folder) == before
    same_as(undisturbed, execute(SMALL, tmp_path), folder)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_folder_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path, name):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    (folder / name).write_text('{"version": 3, "what": "ever"}')
    with pytest.raises(NewerError, match="is of version 3, this fadeout reads 2"):
        execute(SMALL, tmp_path)
    assert contents(folder) == {name: b'{"version": 3, "what": "ever"}'}


@pytest.mark.parametrize("name", ["config.json", "result.json", "checkpoint"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        execute(SMALL, tmp_path)
    assert str(folder / name) in str(caught.value)


def test_a_folder_that_is_in_use(tmp_path):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    with alone(folder), pytest.raises(BusyError, match="another process is at"):
        execute(SMALL, tmp_path)
    assert execute(SMALL, tmp_path)["status"] == "done"


def test_an_unknown_device(tmp_path):
    with pytest.raises(ValueError, match="no device 'tpu' here"):
        execute(SMALL, tmp_path, device="tpu")
    assert not list(tmp_path.iterdir())


def test_the_largest_seed(tmp_path):
    assert execute(Run(seed=2**32 - 1, epochs=1, steps=1), tmp_path)["status"] == "done"


def test_a_target_out_of_reach_is_said_before_it_trains(tmp_path):
    fields = {"method": "one_shot", "structure": "channels", "epochs": 1, "steps": 2, "min_channels": 0}
    with pytest.raises(ValueError, match=r"0\.999 of the parameters cannot be reached"):
        execute(Run(sparsity=0.999, **fields), tmp_path, watch=lambda now: pytest.fail("it trains"))
    record = execute(Run(sparsity=0.998, **fields), tmp_path)
    assert record["parameters_left"] <= 0.002 * record["parameters"]


# Methods --------------------------------------------------------------------------------------------------


def run(tmp_path, **fields):
    """The record, and the weights in the checkpoint."""
    one = Run(**fields)
    record = execute(one, tmp_path)
    return record, torch.load(tmp_path / one.hash / "checkpoint")["model"]


PRUNABLE = 16 * 9 + 32 * 16 * 9 + 64 * 512 + 10 * 64


def zeros(weights):
    return sum(int((w == 0).sum()) for name, w in weights.items() if name.endswith("weight") and w.dim() > 1)


OPTIONAL = {"pat": "torchao", "depgraph": "torch_pruning"}  # methods that are another package's
UNDEFINED = (
    *((method, "elements") for method in ("greg", "hesso", "liu", "depgraph")),
    *((method, "channels") for method in ("rigl", "st3", "st3_lamp", "pat")),
)


@pytest.mark.filterwarnings("ignore:at step .* SGD overshoots")
@pytest.mark.parametrize(
    ("method", "structure"),
    [(m, s) for m in METHODS for s in ("elements", "channels") if (m, s) not in UNDEFINED],
)
def test_every_method_ends_at_its_target(tmp_path, method, structure):
    if method in OPTIONAL:
        pytest.importorskip(OPTIONAL[method])
    length = {"epochs": 8} if method == "latent" else {}  # scales just above their threshold learn slowly
    record, weights = run(tmp_path, method=method, structure=structure, sparsity=0.8, **SHORT | length)
    assert record["status"] == "done"
    left = record["parameters_left"] / record["parameters"]
    if method == "dense":
        assert left > 0.999
        assert record["before"] == record["removed"] == record["after"]
    elif structure == "elements":
        assert zeros(weights) == round(0.8 * PRUNABLE)
    else:
        # what is left is physically there, and no more than asked; the largest channel is 3.1 % of all
        assert 0.2 - 0.031 < left <= 0.2
        assert record["operations_left"] < 0.8 * record["operations"]
    # chance is 10; so mild a decay as this leaves much for the removal to destroy
    assert record["before" if method == "swd" else "after"] > 20


@pytest.mark.filterwarnings("ignore:at step .* SGD overshoots", "ignore:no weight is left")
@pytest.mark.parametrize(
    ("method", "structure"),
    covering(2, ["auto", "latent", "swd", "gmp", "han", "one_shot"], ["blocks", "nm"]),
)
def test_blocks_and_groups_end_at_their_target(tmp_path, method, structure):
    sizes = {"rows": 4, "columns": 5} if structure == "blocks" else {"n": 1, "m": 4}
    record, weights = run(tmp_path, method=method, structure=structure, sparsity=0.75, **SHORT, **sizes)
    assert record["status"] == "done"
    if structure == "blocks":
        assert abs(zeros(weights) - round(0.75 * PRUNABLE)) <= 10
    else:
        matrices = [w for w in weights.values() if w.dim() > 1]
        grouped = [w[:, : w.shape[1] // 4 * 4].unflatten(1, (-1, 4)) for w in matrices if w.shape[1] >= 4]
        assert all((each.count_nonzero(2) == 1).all() for each in grouped)
        assert grouped


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
