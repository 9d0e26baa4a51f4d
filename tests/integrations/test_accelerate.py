"""Accelerate prepares network and optimizer, before the pruner or after, and keeps the pruner's state."""

import os
import socket

import pytest
import torch
import torch.multiprocessing
from torch import nn

import fadeout

accelerate = pytest.importorskip("accelerate")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS, LEFT = 40, 64  # of 512 + 128 weights


class KilledError(Exception):
    pass


class Training:
    """A few steps with Accelerate, on data that rank and step decide."""

    def __init__(self, first="prepare", accumulation=1, fade=None):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if first == "prepare":
            self._prepare()
        self.pruner = fadeout.SelectiveWeightDecay(
            self.model, self.optimizer, sparsity=0.9, steps=STEPS, fade=fade
        )
        if first != "prepare":
            self._prepare()
        self.accelerator.register_for_checkpointing(self.pruner)

    def _prepare(self):
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def train(self, start=0, stop=STEPS, folder=None, killed=None):
        accumulation = self.accelerator.gradient_accumulation_steps
        for number in range(start * accumulation, stop * accumulation):
            if number == killed:
                raise KilledError
            with self.accelerator.accumulate(self.model):
                seed = 2 * number + self.accelerator.process_index
                x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
                self.accelerator.backward(nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1)))
                self.optimizer.step()
                self.optimizer.zero_grad()
            if folder is not None and number % 5 == 4:
                self.accelerator.save_state(str(folder / str(number + 1)))

    @property
    def network(self):
        return self.accelerator.unwrap_model(self.model)


def left(network):
    return sum(int(p.count_nonzero()) for p in network.parameters() if p.dim() > 1)


@pytest.mark.parametrize("first", ["prepare", "pruner"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_before_and_after(first, accumulation):
    training = Training(first, accumulation)
    training.train()
    assert training.pruner.progress == 1
    assert training.pruner.remove().left == left(training.network) == LEFT


@pytest.mark.parametrize("fade", [None, fadeout.Progressive()], ids=["latent", "progressive"])
@pytest.mark.parametrize("first", ["prepare", "pruner"])
def test_killed_and_resumed_bit_for_bit(tmp_path, same_bits, first, fade):
    whole = Training(first, fade=fade)
    whole.train()
    whole.pruner.remove()
    with pytest.raises(KilledError):
        Training(first, fade=fade).train(folder=tmp_path, killed=23)
    resumed = Training(first, fade=fade)
    resumed.accelerator.load_state(str(tmp_path / "20"))
    resumed.train(start=20)
    resumed.pruner.remove()
    same_bits(resumed.network, whole.network)
    assert left(resumed.network) == LEFT


def test_masks_hold(tmp_path):
    training = Training()
    training.train()
    masks = training.pruner.remove()
    masks.hold(training.model, training.optimizer)
    training.train(stop=3)
    assert left(training.network) == LEFT


def _on_rank(rank, port, folder):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    )
    whole = Training()
    assert whole.accelerator.num_processes == 2
    whole.train()
    whole.pruner.remove()
    with pytest.raises(KilledError):
        Training().train(folder=folder, killed=23)
    whole.accelerator.wait_for_everyone()
    resumed = Training("pruner")
    resumed.accelerator.load_state(str(folder / "20"))
    resumed.train(start=20)
    resumed.pruner.remove()
    torch.save([whole.network.state_dict(), resumed.network.state_dict()], folder / f"{rank}.pt")


def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.start_processes(_on_rank, (port, tmp_path), nprocs=2, start_method="fork")
    ends = [end for rank in range(2) for end in torch.load(tmp_path / f"{rank}.pt", weights_only=True)]
    for end in ends:
        assert sum(int(w.count_nonzero()) for w in end.values() if w.dim() > 1) == LEFT
        assert all(torch.equal(weight, ends[0][name]) for name, weight in end.items())
