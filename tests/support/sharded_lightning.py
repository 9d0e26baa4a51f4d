"""A program for test_lightning.py, under torchrun: Lightning trains a network in shards (FSDP2).

torchrun --nproc-per-node 2 sharded_lightning.py FOLDER whole|killed|resumed [FOLDER|FILE]
"""

import sys
from pathlib import Path

import support.torchvision_stubs  # noqa: F401  before lightning imports torchvision

# isort: split
import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

import fadeout

LAST = 23


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def configure_model(self):
        assert self.device_mesh is not None
        if not isinstance(self.net[0].weight, torch.distributed.tensor.DTensor):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, number):
        seed = 2 * self.trainer.global_step + self.global_rank
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        return F.cross_entropy(self.net(x), x[:, :4].argmax(1))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Stop(pl.Callback):
    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == LAST:
            raise SystemExit(3)


def main(place: str, how: str, parts: str) -> None:
    folder = Path(place)
    callback = fadeout.integrations.lightning.Fadeout(sparsity=0.9)
    saving = pl.callbacks.ModelCheckpoint(
        folder / how, filename="{step}", every_n_train_steps=5, save_top_k=-1
    )
    strategy = ModelParallelStrategy(
        data_parallel_size=2,
        tensor_parallel_size=1,
        save_distributed_checkpoint=parts == "folder",
        process_group_backend="gloo",
    )
    trainer = pl.Trainer(
        strategy=strategy,
        callbacks=[callback, saving, *([Stop()] if how == "killed" else [])],
        **{"max_epochs": 4, "accelerator": "cpu", "devices": 2, "logger": False},
        **{"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder},
    )
    module = Module()
    data = torch.utils.data.DataLoader(torch.zeros(20, 1), batch_size=1)
    trainer.fit(module, data, ckpt_path=str(folder / "killed" / "step=20.ckpt") if how == "resumed" else None)
    end = {name: p.full_tensor() for name, p in module.named_parameters()}  # pyright: ignore
    assert callback.masks is not None
    torch.save(end, folder / f"{how}.{trainer.global_rank}.pt")
    torch.distributed.barrier()  # neither leaves while the other still needs it
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
