"""Prune with a schedule-free optimizer: what it evaluates is as sparse as what it trains.

    python examples/schedule_free.py

Needs scikit-learn, for its handwritten digits, and schedulefree. Takes some seconds.
"""

import schedulefree
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fadeout

EPOCHS, BATCH = 20, 64

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
train_x, train_y, test_x, test_y = x[~test], y[~test], x[test], y[test]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2)
steps = EPOCHS * -(-len(train_x) // BATCH)
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=steps)
optimizer.train()
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train_x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()
masks = pruner.remove()

optimizer.eval()  # the averaged weights, of which those that are removed are exactly zero, too
with torch.no_grad():
    right = (model(test_x).argmax(1) == test_y).float().mean()
left = sum(int(weight.count_nonzero()) for weight in model.parameters() if weight.dim() > 1)
print(f"{right:.2%} right, {masks}, {left} in evaluation mode")
