"""Images in a folder for each class, decoded by threads while they are needed."""

import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Generator, Tensor

from fadeout.experiments.data.dataset import Dataset
from fadeout.experiments.data.images import normalise, read_centre_crop, read_random_crop

_NORMALISE = normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_AHEAD = 2  # batches that are decoded while the network works
_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """Images that stay in their files: ``train_x`` and ``test_x`` are numbers in the list of files.

    Training batches are random parts of the images, resized, mirrored or not; test batches their centres.

    Args:
        files: of all images.
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
        """The number of classes."""
        return len(self.classes)

    @property
    def example(self) -> Tensor:
        """A batch of one test image, as a network takes it, for tracing."""
        return replace(self, part=(0, 1))._test_inputs(self.test_x[:1])

    def batches(
        self, batch_size: int, *, epoch: int, seed: int, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of training batches; see :meth:`Dataset.batches`."""
        return _work_ahead(super().batches(batch_size, epoch=epoch, seed=seed, first=first))

    def tests(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test part in its order; the last batch may be smaller."""
        return _work_ahead(super().tests(batch_size))

    def _training_inputs(self, x: Tensor, generator: Generator) -> Tensor:
        seeds = torch.randint(2**62, (len(x),), generator=generator)
        pairs = zip(x.tolist(), seeds.tolist(), strict=True)
        return self._decode(
            [partial(read_random_crop, self.files[n], self.size, random.Random(seed)) for n, seed in pairs]
        )

    def _test_inputs(self, x: Tensor) -> Tensor:
        return self._decode([partial(read_centre_crop, self.files[n], self.size) for n in x.tolist()])

    def _decode(self, reads: list[Callable[[], Tensor]]) -> Tensor:
        first, every = self.part
        x = torch.zeros(len(reads), 3, self.size, self.size)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1), "fadeout-images") as pool:
            decoded = list(pool.map(lambda read: read(), reads[first::every]))
        if decoded:
            x[first::every] = self.prepare(torch.stack(decoded))
        return x


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
    """The images in ``folder/train/<class>`` and ``folder/val/<class>``.

    Args:
        folder: of the data set.
        size: of the images that a network gets, in pixels.
    """
    if size < 1:
        raise ValueError(f"images of {size} pixels: take 1 or more, such as 224")
    classes = _subfolders(folder / "train")
    unknown = sorted(set(_subfolders(folder / "val")) - set(classes))
    if unknown:
        raise ValueError(
            f"{folder / 'val'} has classes that {folder / 'train'} lacks: {', '.join(unknown[:5])}"
        )
    train, train_y = _list_files(folder / "train", classes)
    test, test_y = _list_files(folder / "val", classes)
    train_x, test_x = torch.arange(len(train) + len(test)).split([len(train), len(test)])
    return ImageFolder(
        train_x, train_y, test_x, test_y, _NORMALISE, files=train + test, classes=classes, size=size
    )


def _subfolders(part: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(part) if entry.is_dir())
    if not names:
        raise ValueError(f"{part} has no folders: sort its images into one for each class, named by its wnid")
    return names


def _list_files(part: Path, classes: list[str]) -> tuple[list[str], Tensor]:
    found = [
        (str(part / name / entry), label)
        for label, name in enumerate(classes)
        if (part / name).is_dir()
        for entry in sorted(os.listdir(part / name))
        if entry.lower().endswith(_SUFFIXES)
    ]
    if not found:
        raise ValueError(f"{part} has no images ({', '.join(_SUFFIXES)}) in its folders")
    return [file for file, _ in found], torch.tensor([label for _, label in found])
