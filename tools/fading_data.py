"""The data of the figure in ``docs/concepts/fade.md``: latent weights and the accuracy, epoch by epoch.

    python tools/fading_data.py > docs/assets/fading.json

A small network on scikit-learn's handwritten digits; it takes some ten seconds.
"""

import json

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fadeout

EPOCHS, BATCH, SPARSITY, BINS = 40, 32, 0.9, 64

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
train_x, train_y, test_x, test_y = x[~test], y[~test], x[test], y[test]

model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
steps = EPOCHS * -(-len(train_x) // BATCH)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=SPARSITY, steps=steps)

frames = []


def note() -> None:
    """What the network's weights, and the latents behind them, are now."""
    weights = torch.cat([p.detach().flatten() for p in pruner.parameters.values()])
    values = pruner._bound_fade.values
    latents = torch.cat(
        [values.get(name, p.detach()).flatten() for name, p in pruner.parameters.items()]
    ).abs()
    with torch.no_grad():
        right = float((model(test_x).argmax(1) == test_y).float().mean())
    zero = weights == 0
    frames.append((pruner.progress, 100 * right, float(zero.float().mean()), latents, zero))


note()
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train_x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()
        scheduler.step()
    note()

highest = float(torch.stack([latents.quantile(0.998) for *_, latents, _ in frames]).max())
edges = np.linspace(0, highest, BINS + 1)
print(
    json.dumps(
        {
            "sparsity": SPARSITY,
            "highest": round(highest, 4),
            "frames": [
                {
                    "progress": round(progress, 4),
                    "accuracy": round(accuracy, 2),
                    "zero": round(share, 4),
                    "goes": np.histogram(latents[zero].clamp(max=highest).numpy(), edges)[0].tolist(),
                    "stays": np.histogram(latents[~zero].clamp(max=highest).numpy(), edges)[0].tolist(),
                }
                for progress, accuracy, share, latents, zero in frames
            ],
        },
        separators=(",", ":"),
    )
)
