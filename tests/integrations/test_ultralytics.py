"""Ultralytics trains a small classifier: its average is sparse, too, and a resumption is exact."""

import doctest

import pytest
import torch
from support.small_yolo import SETTINGS, seed_epoch, write_task

import fadeout

pytest.importorskip("cv2")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WEIGHTS = 8 * 3 * 9 + 16 * 8 * 9 + 1280 * 16 + 2 * 1280
LEFT = WEIGHTS - round(0.9 * WEIGHTS)


@pytest.fixture(scope="module")
def ultralytics(tmp_path_factory):
    """The package, which writes its settings where it is told, and asks nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
        patch.setenv("YOLO_OFFLINE", "true")
        patch.setenv("YOLO_AUTOINSTALL", "false")
        yield pytest.importorskip("ultralytics")


@pytest.fixture
def train(ultralytics, tmp_path):
    write_task(tmp_path)

    def run(fading, name, resume=False, stop=None, **settings):
        def kill(trainer):
            if trainer.epoch == stop:
                raise KeyboardInterrupt

        network = tmp_path / name / "weights" / "last.pt" if resume else tmp_path / "small-cls.yaml"
        yolo = ultralytics.YOLO(str(network), task="classify", verbose=False)
        fading.add_to(yolo)
        yolo.add_callback("on_train_epoch_start", seed_epoch)
        yolo.add_callback("on_train_epoch_start", kill)
        if resume:
            yolo.train(resume=True)
            return yolo
        where = {"data": str(tmp_path / "data"), "project": str(tmp_path), "name": name, "exist_ok": True}
        yolo.train(**where, **SETTINGS | settings)
        return yolo

    return run


def build(**arguments):
    return fadeout.integrations.ultralytics.Fadeout(sparsity=0.9, **arguments)


def left(model):
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize("settings", [{}, {"nbs": 24}, {"warmup_epochs": 0}], ids=str)
def test_what_is_trained_and_saved_is_sparse(train, ultralytics, tmp_path, settings):
    fading = build()
    yolo = train(fading, "run", **settings)
    assert fading.pruner.progress == 1
    assert fading.masks.left == left(yolo.trainer.model) == left(yolo.trainer.ema.ema) == LEFT
    for file in ("best.pt", "last.pt"):
        saved = ultralytics.YOLO(str(tmp_path / "run" / "weights" / file)).model
        assert left(saved) <= LEFT  # in half precision more may be zero


def test_killed_and_resumed_bit_for_bit(train, same_bits):
    whole = train(build(), "whole")
    with pytest.raises(KeyboardInterrupt):
        train(build(), "killed", stop=3)
    fading = build()
    resumed = train(fading, "killed", resume=True)
    same_bits(resumed.trainer.model, whole.trainer.model)
    same_bits(resumed.trainer.ema.ema, whole.trainer.ema.ema)
    assert fading.masks.left == left(resumed.trainer.ema.ema) == LEFT


def test_resuming_a_training_without_it(train, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(build(), "killed", stop=3)
    (tmp_path / "killed" / "weights" / "fadeout.pt").unlink()
    with pytest.raises(ValueError, match=r"fadeout.pt is missing: the training that is resumed"):
        train(build(), "killed", resume=True)


def test_steps_that_contradict(train):
    with pytest.raises(ValueError, match="steps=5, but the trainer will take 24 optimizer steps"):
        train(build(steps=5), "run")
    with pytest.raises(ValueError, match="a fade needs a number of steps"):
        train(build(), "run", time=0.1)


def test_stopped_early(train):
    class Early(fadeout.integrations.ultralytics.Fadeout):
        def on_train_epoch_end(self, trainer):
            super().on_train_epoch_end(trainer)
            trainer.stop = trainer.epoch == 1

    fading = Early(sparsity=0.9)
    with pytest.warns(UserWarning, match="nothing was removed: training ended after 25%"):
        train(fading, "run")
    assert fading.masks is None


def test_channels_of_a_classifier(train):
    images = torch.randn(2, 3, 32, 32)
    structure = fadeout.Channels(images)
    fading = fadeout.integrations.ultralytics.Fadeout(sparsity=0.5, structure=structure, compact=True)
    average = train(fading, "run").trainer.ema.ema.float().eval()
    small = fading.compacted
    left, whole = (sum(p.numel() for p in each.parameters()) for each in (small, average))
    assert left <= whole / 2
    with torch.no_grad():
        torch.testing.assert_close(small(images)[0], average(images)[0])


def test_docstrings(ultralytics):
    assert doctest.testmod(fadeout.integrations.ultralytics).failed == 0
