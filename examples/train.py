"""Prune a network while it trains: two lines in a plain training loop.

    python examples/train.py

Needs scikit-learn, for its handwritten digits. Takes some seconds.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fadeout

EPOCHS, BATCH = 30, 64

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
train_x, train_y, test_x, test_y = x[~test], y[~test], x[test], y[test]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = EPOCHS * -(-len(train_x) // BATCH)
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=steps)  # the first line


def accuracy() -> float:
    with torch.no_grad():
        return 100 * float((model(test_x).argmax(1) == test_y).float().mean())


for epoch in range(EPOCHS):
    for batch in torch.randperm(len(train_x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()  # the pruner acts here
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1}: {accuracy():.1f} %, the fade is {pruner.fade:.0e}")

before = accuracy()
masks = pruner.remove()  # the second line
print(f"{before:.2f} % before removal, {accuracy():.2f} % after it: {masks}")
