"""Prune in a loop like that of torchvision's reference scripts: warm-up, averaged weights, checkpoints.

    python examples/torchvision_training.py

Needs torchvision, and scikit-learn for its handwritten digits. Takes about a minute on a CPU.
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from sklearn.datasets import load_digits
from torch import nn

import fadeout

EPOCHS, WARMUP, BATCH = 10, 2, 64
EMA_STEPS, EMA_DECAY = 4, 0.9

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
x = F.interpolate(x, size=32).expand(-1, 3, -1, -1)
test = torch.arange(len(x)) % 5 == 0
data_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x[~test], y[~test]), BATCH, shuffle=True, drop_last=True
)

torch.manual_seed(0)
model = torchvision.models.shufflenet_v2_x0_5(num_classes=10)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
lr_scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS - WARMUP),
    ],
    milestones=[WARMUP],
)
model_ema = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA_DECAY), use_buffers=True
)
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=EPOCHS * len(data_loader))


def train_one_epoch():
    model.train()
    for number, (image, target) in enumerate(data_loader):
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # the pruner acts here
        if number % EMA_STEPS == 0:
            model_ema.update_parameters(model)


@torch.inference_mode()
def evaluate(network):
    return (network.eval()(x[test]).argmax(1) == y[test]).float().mean()


with tempfile.TemporaryDirectory() as output_dir:
    for epoch in range(EPOCHS):
        train_one_epoch()
        lr_scheduler.step()
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "model_ema": model_ema.state_dict(),
            "pruner": pruner.state_dict(),  # the one line more; load_state_dict() with the others
            "epoch": epoch,
        }
        torch.save(checkpoint, Path(output_dir, "checkpoint.pth"))

masks = pruner.remove()
masks.apply(model_ema)
for name, network in (("trained", model), ("averaged", model_ema.module)):
    left = sum(int(p.count_nonzero()) for n, p in network.named_parameters() if n in masks)
    print(f"{name}: {evaluate(network):.2%} right, {left} of {masks.total} weights left")
