"""Lightning's Trainer prunes: every way of stepping, stopped and resumed bit for bit, on two processes."""

import copy
import doctest
import importlib
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.torchrun import torchrun
from torch import nn
from torch.multiprocessing import ProcessRaisedException

import fadeout

pytest.importorskip("lightning")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Lightning has advice for everything

EPOCHS, BATCHES, LEFT = 6, 10, 64  # of 512 + 128 weights


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def either(request):
    return pytest.importorskip(request.param)


@pytest.fixture
def pl():
    return importlib.import_module("lightning.pytorch")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8 * BATCHES, 16, generator=generator)
    y = x[:, :4].argmax(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)


def module(pl, *, manual=False, optimizers=1, optimizer=None, norm=False):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            middle = [nn.BatchNorm1d(32)] if norm else []
            self.net = nn.Sequential(nn.Linear(16, 32), *middle, nn.ReLU(), nn.Linear(32, 4))
            self.automatic_optimization = not manual
            self.data = data().dataset.tensors

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            # by the step, since Lightning takes up a plain loader where an epoch begins
            first = 8 * (self.trainer.global_step + 3 * self.global_rank)
            now = (first + torch.arange(8)) % (8 * BATCHES)
            loss = F.cross_entropy(self(self.data[0][now]), self.data[1][now])
            if manual:
                several = self.optimizers()
                for one in several if isinstance(several, list) else [several]:
                    one.zero_grad()
                self.manual_backward(loss)
                for one in several if isinstance(several, list) else [several]:
                    one.step()
            return loss

        def validation_step(self, batch, number):
            self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            build = optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2))
            if optimizers == 1:
                return build(self.parameters())
            return [build(self.net[0].parameters()), build(self.net[-1].parameters())]

    return Module()


@pytest.fixture
def fit(tmp_path):
    def run(pl, network, callback, *others, ckpt_path=None, validate=False, **settings):
        quiet = {
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": EPOCHS,
            "default_root_dir": tmp_path,
            "limit_val_batches": 2 if validate else 0,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
        }
        trainer = pl.Trainer(callbacks=[callback, *others], **quiet | settings)
        trainer.fit(network, data(), data() if validate else None, ckpt_path=ckpt_path)
        return trainer

    return run


def build(**arguments):
    return fadeout.integrations.lightning.Fadeout(sparsity=0.9, **arguments)


def left(model):
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {}),
        ({}, {"accumulate_grad_batches": 3}),
        ({}, {"gradient_clip_val": 0.1}),
        ({}, {"precision": "bf16-mixed"}),
        ({}, {"max_epochs": -1, "max_steps": 50}),
        ({"manual": True}, {}),
        ({"manual": True, "optimizers": 2}, {}),
        ({"optimizer": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2)}, {}),
    ],
    ids=["plain", "accumulated", "clipped", "mixed", "max_steps", "manual", "several", "closures"],
)
def test_every_way_of_stepping(pl, fit, how, settings):
    network, callback = module(pl, **how), build()
    fit(pl, network, callback, **settings)
    assert callback.pruner.progress == 1
    assert callback.masks.left == left(network) == LEFT
    assert list(callback.masks) == ["net.0.weight", "net.2.weight"]


def test_both_packages(either, fit):
    network, callback = module(either), build()
    fit(either, network, callback)
    assert left(network) == LEFT


class KilledError(Exception):
    pass


def stop_at(pl, step):
    class Stop(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            if trainer.global_step == step:
                raise KilledError

    return Stop()


def checkpoints(pl, tmp_path, **settings):
    return pl.callbacks.ModelCheckpoint(tmp_path, filename="{step}", **settings)


@pytest.mark.parametrize("fade", [None, fadeout.Progressive()], ids=["latent", "progressive"])
@pytest.mark.parametrize("stop", [14, 37, 55])
def test_killed_and_resumed_bit_for_bit(pl, fit, tmp_path, same_bits, fade, stop):
    whole = module(pl)
    fit(pl, whole, build(fade=fade))

    saving = checkpoints(pl, tmp_path, every_n_train_steps=5, save_top_k=-1)
    with pytest.raises(KilledError):
        fit(pl, module(pl), build(fade=fade), saving, stop_at(pl, stop), enable_checkpointing=True)
    path = tmp_path / f"step={stop // 5 * 5}.ckpt"
    resumed, callback = module(pl), build(fade=fade)
    fit(pl, resumed, callback, ckpt_path=path)
    same_bits(resumed, whole)
    assert left(resumed) == LEFT


def test_resuming_with_other_epochs_is_clear(pl, fit, tmp_path):
    saving = checkpoints(pl, tmp_path, every_n_train_steps=20, save_top_k=-1)
    with pytest.raises(KilledError):
        fit(pl, module(pl), build(), saving, stop_at(pl, 25), enable_checkpointing=True)
    with pytest.raises(ValueError, match=r"fade runs over 60 optimizer steps, and this trainer will take 80"):
        fit(pl, module(pl), build(), ckpt_path=tmp_path / "step=20.ckpt", max_epochs=8)


def test_resuming_a_training_without_it(pl, fit, tmp_path):
    saving = checkpoints(pl, tmp_path, every_n_train_steps=20, save_top_k=-1)
    with pytest.raises(KilledError):
        fit(pl, module(pl), stop_at(pl, 25), saving, enable_checkpointing=True)
    with pytest.raises(ValueError, match="a checkpoint that has no state of Fadeout"):
        fit(pl, module(pl), build(), ckpt_path=tmp_path / "step=20.ckpt")


def test_early_stopping_removes_nothing_and_says_so(pl, fit):
    class Early(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch == 1

    network, callback = module(pl), build()
    with pytest.warns(UserWarning, match="nothing was removed: training ended after 33% of the pruner's 60"):
        fit(pl, network, callback, Early())
    assert callback.masks is None
    with pytest.warns(UserWarning, match="the fade was not complete"):
        callback.pruner.remove()
    assert left(network) == LEFT


def test_stopping_when_the_fade_is_complete_removes(pl, fit):
    class Early(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch == EPOCHS - 2

    network, callback = module(pl), build()
    fit(pl, network, callback, Early())
    assert callback.masks.left == left(network) == LEFT


def test_best_is_a_sparse_network(pl, fit, tmp_path):
    """Later epochs are made worse: the best of all is an early one, and the best that counts a late one."""
    network = module(pl)
    values = iter([0.1, 0.2, 0.3, 0.4, 0.45, 0.5])
    network.on_validation_epoch_start = lambda: setattr(network, "value", next(values))
    network.validation_step = lambda batch: network.log("val_loss", network.value)
    saving = checkpoints(pl, tmp_path, monitor="fadeout/val_loss", mode="min")
    fit(pl, network, build(), saving, enable_checkpointing=True, validate=True)
    assert saving.best_model_score == pytest.approx(0.3)  # from half of the training on
    state = torch.load(saving.best_model_path, weights_only=True)["state_dict"]
    assert sum(int(w.count_nonzero()) for n, w in state.items() if w.dim() > 1) == LEFT


def test_a_monitor_that_does_not_know_is_warned_of(pl, fit, tmp_path):
    saving = checkpoints(pl, tmp_path, monitor="val_loss")
    with pytest.warns(UserWarning, match=r"not sparse yet: pass monitor='fadeout/val_loss'"):
        fit(pl, module(pl), build(), saving, enable_checkpointing=True, validate=True, max_epochs=1)


def test_logs(pl, fit, tmp_path):
    logger = importlib.import_module("lightning.pytorch.loggers").CSVLogger(tmp_path)
    trainer = fit(pl, module(pl), build(), logger=logger, log_every_n_steps=1)
    logger.save()
    rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    columns = rows[0].split(",")
    assert {"fadeout/sparsity", "fadeout/factor", "fadeout/fade"} <= set(columns)
    sparsities = [float(v) for r in rows[1:] if (v := r.split(",")[columns.index("fadeout/sparsity")])]
    assert len(sparsities) == EPOCHS * BATCHES
    assert sparsities == sorted(sparsities)
    assert sparsities[-1] == pytest.approx(0.9)
    assert "fadeout/fade" in trainer.progress_bar_metrics


def test_tensorboard(pl, fit, tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = importlib.import_module("lightning.pytorch.loggers").TensorBoardLogger(tmp_path / "board")
    fit(pl, module(pl), build(), logger=logger, log_every_n_steps=5)
    board = reading.EventAccumulator(logger.log_dir).Reload()
    points = board.Scalars("fadeout/sparsity")
    assert [point.step for point in points] == list(range(4, EPOCHS * BATCHES, 5))
    assert points[-1].value == pytest.approx(0.9)
    assert {"fadeout/factor", "fadeout/fade"} <= set(board.Tags()["scalars"])


def test_a_further_fit_keeps_the_zeros(pl, fit):
    network, callback = module(pl), build()
    fit(pl, network, callback)
    before = copy.deepcopy(network.state_dict())
    fit(pl, network, callback, max_epochs=1)
    assert left(network) == LEFT
    assert not torch.equal(network.state_dict()["net.0.weight"], before["net.0.weight"])


def test_another_network_is_pruned_anew(pl, fit):
    callback = build()
    fit(pl, module(pl), callback)
    before, pruner = callback.masks, callback.pruner
    other = module(pl)
    torch.nn.init.normal_(other.net[0].weight)  # as in a cross-validation
    fit(pl, other, callback)
    assert callback.pruner is not pruner
    assert callback.masks != before
    assert left(other) == LEFT


def test_compacted(pl, fit):
    network = module(pl, norm=True)
    structure = fadeout.Channels(torch.zeros(2, 16))
    callback = fadeout.integrations.lightning.Fadeout(sparsity=0.5, structure=structure, compact=True)
    fit(pl, network, callback)
    x = torch.randn(5, 16)
    small = callback.compacted.eval()
    torch.testing.assert_close(small(x), network.eval()(x))
    before, after = (sum(p.numel() for p in m.parameters()) for m in (network, small))
    assert before // 2 - 22 < after <= before / 2  # a channel has 22 parameters


def test_averaged_weights_get_the_masks(pl, fit):
    averaging = pytest.importorskip("lightning.pytorch.callbacks.weight_averaging").EMAWeightAveraging
    network, callback = module(pl), build()
    fit(pl, network, callback, averaging(decay=0.9))
    assert callback.masks.left == left(network) == LEFT


def test_a_structure_may_say_the_sparsity(pl, fit):
    callback = fadeout.integrations.lightning.Fadeout(structure=fadeout.NM(2, 4))
    fit(pl, module(pl), callback)
    assert callback.masks.left == 320
    with pytest.raises(ValueError, match=r"got None. Only NM"):
        fadeout.integrations.lightning.Fadeout()


def test_compact_needs_an_example(pl, fit):
    with pytest.raises(ValueError, match=r"set self.example_input_array"):
        fit(pl, module(pl), build(compact=True))


def test_steps_that_contradict_the_trainer(pl, fit):
    with pytest.raises(ValueError, match=r"steps=50, but the trainer will take 60 optimizer steps"):
        fit(pl, module(pl), build(steps=50))


def test_a_training_without_end(pl, fit):
    with pytest.raises(ValueError, match=r"does not know how many optimizer steps it will take"):
        fit(pl, module(pl), build(), max_epochs=-1)


def test_several_optimizers_and_max_steps(pl, fit):
    settings = {"max_steps": 2 * EPOCHS * BATCHES, "max_epochs": -1}
    with pytest.raises(ValueError, match=r"pass steps="):
        fit(pl, module(pl, manual=True, optimizers=2), build(), **settings)
    network = module(pl, manual=True, optimizers=2)
    fit(pl, network, build(steps=EPOCHS * BATCHES), **settings)
    assert left(network) == LEFT


def test_another_method(pl, fit):
    network, callback = module(pl), build(method=fadeout.methods.GradualMagnitudePruning)
    fit(pl, network, callback)
    assert left(network) == LEFT


def test_a_dense_run_is_resumed_and_ends(pl, fit, tmp_path):
    saving = checkpoints(pl, tmp_path, every_n_train_steps=20, save_top_k=-1)
    with pytest.raises(KilledError):
        fit(
            pl,
            module(pl),
            build(method=fadeout.NoPruning),
            saving,
            stop_at(pl, 25),
            enable_checkpointing=True,
        )
    callback = build(method=fadeout.NoPruning)
    fit(pl, module(pl), callback, ckpt_path=tmp_path / "step=20.ckpt")
    assert callback.masks == fadeout.Masks({})


def test_fabric(pl):
    """Its wrappers of networks and optimizers are seen through."""
    fabric = importlib.import_module("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1))
    example = torch.zeros(2, 16)
    pruner = fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=20, structure=fadeout.Channels(example)
    )
    assert set(pruner.parameters) == {"1.weight", "1.bias"}
    for _ in range(20):
        optimizer.zero_grad()
        fabric.backward(model(torch.randn(8, 16)).square().mean())
        optimizer.step()
    assert pruner.progress == 1
    pruner.remove()
    small = fadeout.compact(model, example).eval()
    x = torch.randn(3, 16)
    torch.testing.assert_close(small(x), network.eval()(x))
    assert sum(p.numel() for p in small.parameters()) <= sum(p.numel() for p in network.parameters()) / 2


def test_two_processes(pl, fit, tmp_path):
    """DDP: the same masks on both, also after they were killed and resumed."""

    class Keep(pl.Callback):
        def __init__(self, name):
            self.name = name

        def on_train_end(self, trainer, pl_module):
            torch.save(pl_module.state_dict(), tmp_path / f"{self.name}.{trainer.global_rank}")

    together = {"strategy": "ddp_fork", "devices": 2, "use_distributed_sampler": False}
    fit(pl, module(pl), build(), Keep("whole"), **together)
    saving = checkpoints(pl, tmp_path, every_n_train_steps=5, save_top_k=-1)
    with pytest.raises(ProcessRaisedException, match="KilledError"):
        fit(pl, module(pl), build(), saving, stop_at(pl, 37), enable_checkpointing=True, **together)
    path = tmp_path / "step=35.ckpt"
    fit(pl, module(pl), build(), Keep("resumed"), ckpt_path=path, **together)
    outcomes = [
        torch.load(tmp_path / f"{name}.{rank}", weights_only=True)
        for name in ("whole", "resumed")
        for rank in range(2)
    ]
    for outcome in outcomes:
        assert sum(int(w.count_nonzero()) for w in outcome.values() if w.dim() > 1) == LEFT
        assert all(torch.equal(weight, outcomes[0][name]) for name, weight in outcome.items())


@pytest.mark.parametrize("parts", ["file", "folder"])
def test_shards(tmp_path, parts):
    """FSDP2, from a checkpoint that the first process writes for all."""
    tests = Path(__file__).parents[1]
    program = torchrun(tests / "support" / "sharded_lightning.py", str(tmp_path))
    paths = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for how in ("whole", "killed", "resumed"):
        done = subprocess.run(
            [*program, how, parts], env=environment, capture_output=True, text=True, timeout=240
        )
        assert (done.returncode == 0) == (how != "killed"), done.stderr
    assert (tmp_path / "killed" / "step=20.ckpt").is_dir() == (parts == "folder")
    ends = [
        torch.load(tmp_path / f"{how}.{rank}.pt", weights_only=True)
        for how in ("whole", "resumed")
        for rank in range(2)
    ]
    for end in ends:
        assert sum(int(w.count_nonzero()) for w in end.values() if w.dim() > 1) == LEFT
        assert all(torch.equal(weight, ends[0][name]) for name, weight in end.items())


def test_docstrings(pl):
    assert doctest.testmod(fadeout.integrations.lightning).failed == 0
