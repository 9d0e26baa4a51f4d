"""Prune whole channels, cut them out, and export the smaller network to ONNX.

    python examples/channels.py small.onnx

Needs scikit-learn, for its handwritten digits, and the extra "export". Takes some seconds.
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fadeout

EPOCHS, BATCH = 20, 64

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
train_x, train_y, test_x, test_y = x[~test], y[~test], x[test], y[test]
example = test_x[:1]

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    *(nn.Flatten(), nn.Linear(64, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
steps = EPOCHS * -(-len(train_x) // BATCH)
# 75 % of all parameters go, counted after the channels are cut out
pruner = fadeout.SelectiveWeightDecay(
    model, optimizer, sparsity=0.75, steps=steps, structure=fadeout.Channels(example)
)
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train_x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()
pruner.remove()

small = fadeout.compact(model.eval(), example).eval()
for name, network in (("whole", model), ("small", small)):
    with torch.no_grad():
        right = (network(test_x).argmax(1) == test_y).float().mean()
    size = fadeout.measure(network, example).total
    print(f"{name}: {right:.2%} right, {size.parameters:,} parameters, {size.operations_output:,} operations")
print(fadeout.export.onnx(small, sys.argv[1] if len(sys.argv) > 1 else "small.onnx", example))
