"""Hugging Face's Trainer prunes: stopped and resumed bit for bit, logged, saved, best checkpoints guarded."""

import doctest
import os
import shutil
import socket

import pytest
import torch
import torch.multiprocessing
from torch import nn

import fadeout

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # about pinned memory, and so on

STEPS = 40
WEIGHTS = 4 * 16 * 16 + 2 * 16 * 32 + 16 * 16  # attention, the two layers after it, the pooler
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def model():
    def build():
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **SIZES, **DROPOUT)
        return transformers.BertForSequenceClassification(config)

    return build


class Sentences(torch.utils.data.Dataset):
    """The label is whether the first word is among the first ten."""

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, number):
        words = torch.randint(20, (6,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": words, "labels": int(words[0] < 10)}


class KilledError(Exception):
    pass


class Stop(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KilledError


class Finish(Stop):
    def on_step_begin(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.fixture
def trainer(tmp_path):
    def build(model, callback, *others, **settings):
        args = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": STEPS,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_steps": 10,
        }
        return transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**args | settings),
            train_dataset=Sentences(),
            eval_dataset=torch.utils.data.Subset(Sentences(), range(8)),
            callbacks=[callback, *others],
        )

    return build


def build(**arguments):
    return fadeout.integrations.transformers.FadeoutCallback(sparsity=0.9, **arguments)


def left(model, masks):
    return {name: int(p.count_nonzero()) for name, p in model.named_parameters() if name in masks}


def test_a_structure_may_say_the_sparsity(model, trainer):
    callback = fadeout.integrations.transformers.FadeoutCallback(structure=fadeout.NM(2, 4))
    trainer(model(), callback).train()
    assert callback.masks.sparsity == 0.5
    with pytest.raises(ValueError, match=r"got None. Only NM"):
        fadeout.integrations.transformers.FadeoutCallback()


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation_steps": 2}, {"max_steps": -1, "num_train_epochs": 1.0}, {"bf16": True}],
    ids=["plain", "accumulated", "epochs", "mixed"],
)
def test_pruned_and_saved(model, trainer, tmp_path, settings):
    network, callback = model(), build()
    one = trainer(network, callback, **settings)
    one.train()
    masks = callback.masks
    assert callback.pruner.progress == 1
    assert masks.total - masks.left == round(0.9 * masks.total)
    assert sum(left(network, masks).values()) == masks.left
    assert not [name for name in masks if "embed" in name or "classifier" in name]
    assert "bert.encoder.layer.0.attention.self.query.weight" in masks
    one.save_model(tmp_path / "saved")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert left(again, masks) == left(network, masks)


@pytest.mark.parametrize("optim", ["adamw_torch", "schedule_free_adamw"])
def test_killed_and_resumed_bit_for_bit(model, trainer, tmp_path, same_bits, optim):
    if optim == "schedule_free_adamw":
        pytest.importorskip("schedulefree")
    settings = {"save_strategy": "steps", "save_steps": 5, "optim": optim, "lr_scheduler_type": "constant"}
    whole, callback = model(), build()
    undisturbed = trainer(whole, callback, **settings)
    undisturbed.train()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(KilledError):
        trainer(model(), build(), Stop(23), **settings).train()
    moved = tmp_path / "elsewhere"  # the state goes with the folder
    shutil.move(tmp_path / "run" / "checkpoint-20", moved)
    resumed, its_callback = model(), build()
    one = trainer(resumed, its_callback, **settings)
    one.train(resume_from_checkpoint=str(moved))
    same_bits(resumed, whole)
    if optim == "schedule_free_adamw":
        one.optimizer.eval()
    assert sum(left(resumed, its_callback.masks).values()) == callback.masks.left


def test_logs(model, trainer):
    one = trainer(model(), build())
    one.train()
    rows = [row for row in one.state.log_history if "fadeout_sparsity" in row]
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert rows[-1]["fadeout_sparsity"] == pytest.approx(0.9)
    assert rows[-1]["fadeout_fade"] == 0
    assert rows[0]["fadeout_fade"] > 0


def test_reporters_get_what_is_logged(model, trainer, tmp_path, monkeypatch):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    one = trainer(model(), transformers.TrainerCallback(), report_to="tensorboard")
    callback = build().add_to(one)
    one.train()
    (file,) = (tmp_path / "board").rglob("events.*")
    board = reading.EventAccumulator(str(file)).Reload()
    points = board.Scalars("train/fadeout_sparsity")
    assert [point.step for point in points] == [10, 20, 30, 40]
    assert points[-1].value == pytest.approx(0.9)
    assert {"train/fadeout_factor", "train/fadeout_fade", "train/loss"} <= set(board.Tags()["scalars"])
    assert callback.masks is not None


def test_best_is_a_sparse_network(model, trainer):
    """Every evaluation is worse than the last: the best that counts is the first of a sparse network."""
    values = iter(range(100))
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_strategy": "steps",
        "save_steps": 5,
        "load_best_model_at_end": True,
        "metric_for_best_model": "made_up",
        "greater_is_better": False,
    }
    network, callback = model(), build()
    one = trainer(network, callback, **settings)
    one.compute_metrics = lambda _: {"made_up": float(next(values))}
    one.train()
    assert one.state.best_global_step == STEPS // 2  # when its target is reached
    assert sum(left(network, callback.masks).values()) == callback.masks.left
    assert callback.pruner.progress == 0.5  # the masks are those of that moment


def test_best_without_the_state_to_it(model, trainer):
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    with pytest.raises(ValueError, match="save_only_model=True leaves out"):
        trainer(model(), build(), save_only_model=True, **settings).train()


def test_stopped_early(model, trainer):
    network, callback = model(), build()
    with pytest.warns(UserWarning, match="nothing was removed: training ended after 28%"):
        trainer(network, callback, Finish(10)).train()
    assert callback.masks is None


def test_resuming_with_other_steps_is_clear(model, trainer):
    settings = {"save_strategy": "steps", "save_steps": 5}
    with pytest.raises(KilledError):
        trainer(model(), build(), Stop(12), **settings).train()
    with pytest.raises(ValueError, match="fade runs over 40 optimizer steps, and this trainer will take 60"):
        trainer(model(), build(), max_steps=60).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="steps=50, but the trainer will take 40"):
        trainer(model(), build(steps=50)).train()


def test_a_further_training_keeps_the_zeros(model, trainer):
    network, callback = model(), build()
    trainer(network, callback).train()
    trainer(network, callback, max_steps=5).train()
    assert sum(left(network, callback.masks).values()) == callback.masks.left


def test_another_network_is_pruned_anew(model, trainer):
    callback = build()
    trainer(model(), callback).train()
    before, pruner = callback.masks, callback.pruner
    trainer(other := model(), callback, learning_rate=0.1).train()  # as in a search of hyperparameters
    assert callback.pruner is not pruner
    assert callback.masks != before
    assert sum(left(other, callback.masks).values()) == callback.masks.left


def _on_rank(rank, port, folder, model, trainer):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    )
    settings = {"save_strategy": "steps", "save_steps": 5, "ddp_backend": "gloo", "max_steps": STEPS // 2}
    whole, callback = model(), build()
    one = trainer(whole, callback, output_dir=str(folder / "whole"), **settings)
    assert one.args.world_size == 2
    one.train()
    killed = settings | {"output_dir": str(folder / "killed")}
    with pytest.raises(KilledError):
        trainer(model(), build(), Stop(13), **killed).train()
    resumed, its_callback = model(), build()
    trainer(resumed, its_callback, **killed).train(resume_from_checkpoint=True)
    lefts = callback.masks.left, its_callback.masks.left
    torch.save([lefts, whole.state_dict(), resumed.state_dict()], folder / f"{rank}.pt")


def test_two_processes(tmp_path, model, trainer):
    """DDP: the same weights on both, also after they were stopped and resumed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments = (port, tmp_path, model, trainer)
    torch.multiprocessing.start_processes(_on_rank, arguments, nprocs=2, start_method="fork")
    ends = []
    for rank in range(2):
        lefts, *states = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert lefts[0] == lefts[1] == round(0.1 * WEIGHTS)
        ends += states
    for end in ends:
        assert all(torch.equal(weight, ends[0][name]) for name, weight in end.items())
    inside = [weight for name, weight in ends[0].items() if weight.dim() > 1 and "embed" not in name]
    assert sum(int(w.count_nonzero()) for w in inside) == round(0.1 * WEIGHTS) + 2 * 16  # and the head


class Config(transformers.PretrainedConfig):
    model_type = "fadeout-test"
    width = 8


class Small(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.first, self.norm = nn.Linear(4, config.width), nn.BatchNorm1d(config.width)
        self.last = nn.Linear(config.width, 2)
        self.post_init()

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def test_a_compacted_network_is_saved_with_its_config(tmp_path):
    network = Small(Config(width=12)).eval()
    network.norm.weight.data[:9] = 0
    small = fadeout.compact(network, torch.zeros(2, 4))
    fadeout.integrations.transformers.save(small, tmp_path / "small", network.config)
    again = fadeout.integrations.transformers.load(tmp_path / "small", Small).eval()
    assert again.first.out_features == 3
    x = torch.randn(5, 4)
    torch.testing.assert_close(again(x), network(x))


def test_docstrings():
    assert doctest.testmod(fadeout.integrations.transformers).failed == 0
