"""Images in a folder for each class, decoded by threads while they are needed."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path

import torch
from torch import Generator, Tensor

from fadeout.experiments.data.dataset import Dataset
from fadeout.experiments.data.images import normalise, read_crop

_NORMALISE = normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_AHEAD = 2  # batches that are decoded while the network works
_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """Images that stay in their files: ``train_x`` and ``test_x`` are numbers in the list of files.

    Training batches are random parts of the images, resized, flipped or not; test batches their centres.

    Args:
        classes: the names of the classes; a label is a number in this list.
        size: of the images that a network gets, in pixels.
        part: (r, n) decodes only every n-th image of a batch, from number r on: the share of one of n
            processes. The others are black.
    """

    files: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    size: int = 224
    part: tuple[int, int] = (0, 1)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def example(self) -> Tensor:
        return replace(self, part=(0, 1))._inputs(self.test_x[:1])

    def batches(
        self, batch_size: int, *, epoch: int, seed: int, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return _work_ahead(super().batches(batch_size, epoch=epoch, seed=seed, first=first))

    def tests(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return _work_ahead(super().tests(batch_size))

    def _inputs(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        seeds: list[int | None] = [None] * len(x)
        if generator is not None:
            seeds = torch.randint(2**62, (len(x),), generator=generator).tolist()
        share = slice(self.part[0], None, self.part[1])
        files = [self.files[n] for n in x[share].tolist()]
        inputs = torch.zeros(len(x), 3, self.size, self.size)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1), "fadeout-images") as pool:
            decoded = list(pool.map(read_crop, files, repeat(self.size), seeds[share]))
        if decoded:
            inputs[share] = self.prepare(torch.stack(decoded))
        return inputs


def _work_ahead(batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches, of which a few are made before they are asked for."""
    worker = ThreadPoolExecutor(1, "fadeout-images")
    try:
        waiting = deque(worker.submit(next, batches, None) for _ in range(_AHEAD))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(worker.submit(next, batches, None))
            yield batch
    finally:
        # also when the loop is left early: what has not begun is dropped
        worker.shutdown(wait=True, cancel_futures=True)


def read_folder(folder: Path, size: int) -> ImageFolder:
    """The images in ``folder/train/<class>`` and ``folder/val/<class>``."""
    if size < 1:
        raise ValueError(f"images of {size} pixels: take 1 or more, such as 224")
    train, test = _files_by_class(folder / "train"), _files_by_class(folder / "val")
    if unknown := sorted(test.keys() - train.keys()):
        raise ValueError(
            f"{folder / 'val'} has classes that {folder / 'train'} lacks: {', '.join(unknown[:5])}"
        )
    label = {name: number for number, name in enumerate(train)}
    found = [(file, label[name]) for part in (train, test) for name in part for file in part[name]]
    x, y = torch.arange(len(found)), torch.tensor([number for _, number in found])
    count, files = sum(map(len, train.values())), [file for file, _ in found]
    return ImageFolder(
        x[:count], y[:count], x[count:], y[count:], _NORMALISE, files=files, classes=list(train), size=size
    )


def _files_by_class(part: Path) -> dict[str, list[str]]:
    names = sorted(entry.name for entry in os.scandir(part) if entry.is_dir())
    if not names:
        raise ValueError(f"{part} has no folders: sort its images into one for each class, named by its wnid")
    listed = {name: sorted(os.listdir(part / name)) for name in names}
    files = {
        name: [str(part / name / entry) for entry in entries if entry.lower().endswith(_SUFFIXES)]
        for name, entries in listed.items()
    }
    if not any(files.values()):
        raise ValueError(f"{part} has no images ({', '.join(_SUFFIXES)}) in its folders")
    return files
