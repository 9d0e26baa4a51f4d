"""A program for test_killed.py: a small training with one of the trainers of others, three times.

    python killed_trainings.py TRAINER PACKAGE FOLDER

Once it is whole, once it is killed (SIGKILL) at some step, and once it goes on from there. To import a
trainer takes seconds, so that this process does it once, and each training is a fork of it. The first and the
last write into FOLDER what the network is in the end.
"""

import importlib
import os
import signal
import sys
import time
from pathlib import Path

import support.torchvision_stubs  # noqa: F401
import torch
import torch.nn.functional as F
from torch import nn

import fadeout

STEPS, LAST = 40, 23  # a checkpoint after every 5
HERE = Path("here")


def wait_for_the_end() -> None:
    HERE.touch()
    time.sleep(600)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    return x, x[:, :4].argmax(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def lightning(folder: Path, how: str) -> nn.Module:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, number):
            step = self.trainer.global_step
            torch.manual_seed(step)
            x, y = globals()["batch"](step)
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Wait(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            if how == "killed" and trainer.global_step == LAST:
                wait_for_the_end()

    saving = pl.callbacks.ModelCheckpoint(folder / how, every_n_train_steps=5, save_last=True)
    callback = fadeout.integrations.lightning.Fadeout(sparsity=0.9)
    trainer = pl.Trainer(
        callbacks=[callback, saving, Wait()],
        **{"max_epochs": 4, "accelerator": "cpu", "devices": 1, "logger": False},
        **{"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder},
    )
    module = Module()
    data = torch.utils.data.DataLoader(torch.zeros(10, 1), batch_size=1)
    trainer.fit(module, data, ckpt_path=folder / "killed" / "last.ckpt" if how == "resumed" else None)
    return module.net


def transformers(folder: Path, how: str) -> nn.Module:
    import transformers

    class Wait(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if how == "killed" and state.global_step == LAST:
                wait_for_the_end()

    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
        **{"vocab_size": 20, "max_position_embeddings": 8},
    )
    model = transformers.BertForSequenceClassification(config)
    words = torch.randint(20, (8 * STEPS, 6), generator=torch.Generator().manual_seed(0))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / ("whole" if how == "whole" else "killed")),
        **{"max_steps": STEPS, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "use_cpu": True},
        **{"save_strategy": "steps", "save_steps": 5, "report_to": "none", "disable_tqdm": True},
    )
    callback = fadeout.integrations.transformers.FadeoutCallback(sparsity=0.9)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": int(row[0] < 10)} for row in words],  # pyright: ignore
        callbacks=[callback, Wait()],
    )
    trainer.train(resume_from_checkpoint=how == "resumed")
    assert callback.masks is not None
    inside = set(callback.masks)
    return nn.ParameterDict({n.replace(".", "-"): p for n, p in model.named_parameters() if n in inside})


def accelerate(folder: Path, how: str) -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=STEPS)
    accelerator.register_for_checkpointing(pruner)
    first = 0
    if how == "resumed":
        first = max(int(path.name) for path in (folder / "killed").iterdir())
        accelerator.load_state(str(folder / "killed" / str(first)))
    for step in range(first, STEPS):
        if how == "killed" and step == LAST:
            wait_for_the_end()
        x, y = batch(step)
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        if how == "killed" and step % 5 == 4:
            accelerator.save_state(str(folder / "killed" / str(step + 1)))
    pruner.remove()
    return accelerator.unwrap_model(model)


def ultralytics(folder: Path, how: str, between: bool = False) -> nn.Module:
    from support.small_yolo import SETTINGS, seed_epoch, write_task
    from ultralytics import YOLO

    if not (folder / "data").exists():
        write_task(folder)

    def wait(trainer):
        if how == "killed" and trainer.epoch == 4:
            wait_for_the_end()

    source = folder / ("killed/weights/last.pt" if how == "resumed" else "small-cls.yaml")
    yolo = YOLO(str(source), task="classify", verbose=False)
    yolo.add_callback("on_train_epoch_start", seed_epoch)
    if between:
        yolo.add_callback("on_model_save", wait)  # before the callback writes its own
    fading = fadeout.integrations.ultralytics.Fadeout(sparsity=0.9).add_to(yolo)
    if not between:
        yolo.add_callback("on_train_batch_end", wait)
    if how == "resumed":
        yolo.train(resume=True)
    else:
        where = {"data": str(folder / "data"), "project": str(folder), "name": how, "exist_ok": True}
        yolo.train(**where, **SETTINGS)
    assert fading.masks is not None
    return nn.ModuleList([yolo.trainer.model, yolo.trainer.ema.ema])  # pyright: ignore


def ultralytics_between(folder: Path, how: str) -> nn.Module:
    return ultralytics(folder, how, between=True)


def begin(trainer: str, folder: Path, how: str) -> int:
    """Train in a fork; returns its number."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        end = globals()[trainer](folder, how)
        torch.save(end.state_dict(), folder / f"{how}.pt")
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(trainer: str, folder: Path, how: str) -> None:
    assert os.waitpid(begin(trainer, folder, how), 0)[1] == 0, how


def kill(trainer: str, folder: Path) -> None:
    number = begin(trainer, folder, "killed")
    while not HERE.exists():
        assert os.waitpid(number, os.WNOHANG) == (0, 0), "it has ended before"
        time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    assert os.waitpid(number, 0)[1] == signal.SIGKILL
    assert not (folder / "killed.pt").exists()


def main(trainer: str, package: str, place: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"YOLO_CONFIG_DIR": place, "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    loaded_late = {"lightning": "lightning.pytorch", "transformers": "transformers.trainer"}
    importlib.import_module(loaded_late.get(package, package))
    finish(trainer, Path(place), "whole")
    kill(trainer, Path(place))
    finish(trainer, Path(place), "resumed")


if __name__ == "__main__":
    main(*sys.argv[1:])
