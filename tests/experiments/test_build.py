"""What is built from the settings of a run."""

import pytest
import torch

from fadeout.experiments.build import build_data, build_fitting, build_model, build_structure
from fadeout.experiments.run import Run
from fadeout.experiments.tasks import task


def test_the_network_depends_on_the_seed_alone(same_bits):
    one = build_model(Run(seed=5), 10)
    torch.rand(3)
    same_bits(one, build_model(Run(seed=5, method="gmp", epochs=3), 10))
    assert not torch.equal(one.conv1.weight, build_model(Run(seed=6), 10).conv1.weight)


def test_the_network_has_the_width_and_the_stem_of_its_task():
    assert build_model(task("resnet20-16-cifar10"), 10).fc.in_features == 64
    assert build_model(task("resnet20-cifar10"), 10).fc.in_features == 256
    first = next(build_model(task("resnet50-imagenet", width=8), 10).parameters())
    assert first.shape[-1] == 7
    with pytest.raises(ValueError, match="lenet5 has no width to choose, got 8"):
        build_model(Run(model="lenet5", data="mnist", width=8), 10)


def test_residual_branches():
    branches = {
        kind: build_model(task("resnet20-16-cifar10", residual=kind), 10) for kind in ("plain", "zero")
    }
    names = dict(branches["plain"].named_parameters())
    assert "layer1.0.post.weight" not in names
    for name, other in branches["zero"].named_parameters():
        expected = torch.zeros_like(other) if name.endswith("bn2.weight") else names[name]
        assert torch.equal(other, expected), name
    with pytest.raises(ValueError, match="smallcnn has no residual blocks to choose, got residual='zero'"):
        build_model(Run(residual="zero"), 10)


def test_validation_holds_out_a_part_of_the_training_data():
    whole, held_out = build_data(Run()), build_data(Run(validation=True))
    assert len(held_out.train_y) + len(held_out.test_y) == len(whole.train_y)


def test_missing_data_says_what_to_place_where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setattr("fadeout.experiments.data.download.fetch", _no_network)
    with pytest.raises(ValueError, match="place train-images-idx3-ubyte") as caught:
        build_data(Run(data="mnist", model="lenet5"), tmp_path / "mine")
    assert str(tmp_path / "mine" / "MNIST" / "raw") in str(caught.value)


def _no_network(*arguments):
    from fadeout.experiments.data.download import DownloadError

    raise DownloadError("no network")


@pytest.mark.parametrize(
    ("changes", "of", "multiple"),
    [
        ({}, "parameters", 1),
        ({"of": "operations", "multiple_of": 4}, "operations", 4),
        ({"multiple_of": 0}, "parameters", "auto"),
        ({"of": "time", "engine": "channels_last"}, "time", "auto"),
        ({"of": "time", "multiple_of": 1}, "time", 1),
        ({"couple": True}, "parameters", 1),
    ],
)
def test_what_the_target_of_channels_counts(changes, of, multiple):
    run = Run(structure="channels", **changes)
    built = build_structure(run, torch.zeros(1, 1, 8, 8))
    assert (built.of, built.multiple_of, built.engine) == (of, multiple, run.engine)
    assert built.couple is run.couple
    assert f"90 % of {of}" in str(run)


def test_time_is_that_of_as_many_examples_as_asked_for():
    run = Run(structure="channels", of="time", time_batch=3)
    assert build_structure(run, torch.ones(1, 1, 8, 8)).example_input.shape == (3, 1, 8, 8)
    with pytest.raises(ValueError, match="digits is one example, got time_batch=3"):
        build_structure(run, (torch.ones(4, 2), torch.ones(2, 5)))


def test_channels_are_ranked_by_batch_norms():
    example = torch.zeros(1, 1, 28, 28)
    with pytest.raises(ValueError, match="scales of batch-norms, and lenet5 has none: pass --structure"):
        build_fitting(Run(model="lenet5", structure="channels"), 10, example)
    assert build_fitting(Run(model="lenet5", structure="channels", method="dense"), 10, example)
