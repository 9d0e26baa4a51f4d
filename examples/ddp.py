"""Prune in several processes: DistributedDataParallel, and the same two lines.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

Needs scikit-learn, for its handwritten digits. Every rank ends with the same masks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fadeout

EPOCHS, BATCH = 20, 64

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
train_x, train_y, test_x, test_y = x[~test], y[~test], x[test], y[test]

torch.manual_seed(0)  # the same on every rank, for the weights and for the order of the data
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches = len(train_x) // BATCH
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=EPOCHS * batches)
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train_x)).split(BATCH)[:batches]:
        mine = batch[rank::size]
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[mine]), train_y[mine]).backward()
        optimizer.step()
masks = pruner.remove()

left = sum(int((mask * torch.arange(mask.numel()).view(mask.shape)).sum()) for mask in masks.values())
sums: list[int | None] = [None] * size
dist.all_gather_object(sums, left)
if rank == 0:
    with torch.no_grad():
        right = (model.module(test_x).argmax(1) == test_y).float().mean()
    print(f"{right:.2%} right, {masks}, the same on all {size} ranks: {len(set(sums)) == 1}")
dist.destroy_process_group()
