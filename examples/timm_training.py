"""Prune in timm's training loop: its optimizer, its schedule in updates, and its averaged weights.

    python examples/timm_training.py

Needs timm, and scikit-learn for its handwritten digits. Takes about a minute on a CPU.
"""

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]
from timm.scheduler import create_scheduler_v2  # pyright: ignore[reportPrivateImportUsage]
from timm.utils import ModelEmaV3  # pyright: ignore[reportPrivateImportUsage]

import fadeout

EPOCHS, BATCH = 8, 64

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
x = F.interpolate(x, size=32)
test = torch.arange(len(x)) % 5 == 0
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x[~test], y[~test]), BATCH, shuffle=True, drop_last=True
)

torch.manual_seed(0)
model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
scheduler, _ = create_scheduler_v2(
    optimizer,
    sched="cosine",
    num_epochs=EPOCHS,
    warmup_epochs=1,
    step_on_epochs=False,
    updates_per_epoch=len(loader),
)
assert scheduler is not None
model_ema = ModelEmaV3(model, decay=0.99, use_warmup=True)
# timm counts updates of the optimizer, and so does the pruner: with --grad-accum-steps, divide
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=EPOCHS * len(loader))

num_updates = 0
for epoch in range(EPOCHS):
    model.train()
    for inputs, target in loader:
        loss = F.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        num_updates += 1
        model_ema.update(model, step=num_updates)
        scheduler.step_update(num_updates=num_updates)
    scheduler.step(epoch + 1)

masks = pruner.remove()
masks.apply(model_ema.module)  # an average lags behind: what goes is merely small in it

with torch.no_grad():
    for name, network in (("trained", model), ("averaged", model_ema.module)):
        right = (network.eval()(x[test]).argmax(1) == y[test]).float().mean()
        left = sum(int(p.count_nonzero()) for n, p in network.named_parameters() if n in masks)
        print(f"{name}: {right:.2%} right, {left} of {masks.total} weights left")
