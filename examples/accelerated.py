"""Prune with Hugging Face Accelerate: the same two lines, and the pruner in its checkpoints.

    accelerate launch examples/accelerated.py        # or python examples/accelerated.py

Needs scikit-learn, for its handwritten digits, and the extra "accelerate".
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fadeout

EPOCHS, BATCH = 20, 64

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0

torch.manual_seed(0)
accelerator = Accelerator()
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batches = DataLoader(TensorDataset(x[~test], y[~test]), BATCH, shuffle=True)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

# before or after prepare(); one step of the pruner is one of the optimizer's, whatever is accumulated
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=EPOCHS * len(batches))
accelerator.register_for_checkpointing(pruner)

with tempfile.TemporaryDirectory() as folder:
    for epoch in range(EPOCHS):
        for inputs, wanted in batches:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(inputs), wanted))
            optimizer.step()
        if epoch == EPOCHS // 2:
            accelerator.save_state(folder)
            accelerator.load_state(folder)  # as a new process would
masks = pruner.remove()

if accelerator.is_main_process:
    with torch.no_grad():
        right = (accelerator.unwrap_model(model)(x[test]).argmax(1) == y[test]).float().mean()
    print(f"{right:.2%} right, {masks}, saved and taken up again at step {pruner.steps // 2}")
