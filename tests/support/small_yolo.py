"""A small training for Ultralytics: a classifier, images of two classes, and settings."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

NETWORK = """
nc: 2
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
head:
  - [-1, 1, Classify, [nc]]
"""
SETTINGS: dict[str, Any] = {
    "epochs": 8,
    "batch": 8,
    "nbs": 8,
    "imgsz": 32,
    "workers": 0,
    "device": "cpu",
    "amp": False,
    "plots": False,
    "close_mosaic": 0,  # it would make a new loader at the first epoch of every run
    "verbose": False,
    "optimizer": "SGD",
    "lr0": 0.05,
}


def write_task(folder: Path) -> Path:
    """Write the images to ``data``, and the network; returns the network's file."""
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for label in range(2):
            images = folder / "data" / part / str(label)
            images.mkdir(parents=True)
            for number in range(12):
                pixels = generator.integers(0, 128, (32, 32, 3)) + 100 * label
                Image.fromarray(pixels.astype(np.uint8)).save(images / f"{number}.png")
    network = folder / "small-cls.yaml"
    network.write_text(NETWORK)
    return network


def seed_epoch(trainer: Any) -> None:
    """Each epoch's order and augmentation are its own, whatever came before."""
    trainer.train_loader.reset()
    loader = trainer.train_loader.generator
    for start in (random.seed, np.random.seed, torch.manual_seed, loader.manual_seed):
        start(trainer.epoch)
