"""Pictures in a folder for each class, decoded by threads while they are needed."""

import os
import random
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fadeout.experiments.data.dataset import epoch_order, held_out, step_generator, steps
from fadeout.experiments.data.images import normalise
from fadeout.experiments.data.jpeg import centre_crop, random_crop

_PREPARE = normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_AHEAD = 2  # batches that are decoded while the network works
_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class PictureFolder:
    """Files of pictures and their labels, for training and test; batches are as those of a ``Dataset``.

    Args:
        train_files: for training.
        train_y: their labels.
        test_files: for the test.
        test_y: their labels.
        classes: the names of the classes; a label is a number in this list.
        size: of the pictures that a network gets, in pixels.
        part: (r, n) decodes only every n-th picture of a batch, from number r on: the share of one of n
            processes. The others are black.
    """

    train_files: list[str]
    train_y: Tensor
    test_files: list[str]
    test_y: Tensor
    classes: list[str]
    size: int = 224
    part: tuple[int, int] = (0, 1)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def example(self) -> Tensor:
        """A batch of one test picture, as a network takes it, for tracing."""
        return _PREPARE(centre_crop(self.test_files[0], self.size).unsqueeze(0))

    def steps(self, batch_size: int) -> int:
        """The batches in an epoch; the incomplete last one is left out."""
        return steps(len(self.train_files), batch_size)

    def batches(
        self, batch_size: int, *, epoch: int, seed: int, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of training batches: a random part of each picture, resized, mirrored or not.

        A batch depends on the seed, the epoch and its own number alone, so that a resumed run sees the same.

        Args:
            batch_size: of each.
            epoch: its number.
            seed: of the order, and of the crops.
            first: the number of the batch to begin with; those before it cost nothing.
        """
        order = epoch_order(len(self.train_files), epoch, seed)

        def jobs() -> Iterator[_Job]:
            for step in range(first, self.steps(batch_size)):
                chosen = order[step * batch_size : (step + 1) * batch_size]
                seeds = torch.randint(2**62, (batch_size,), generator=step_generator(seed, epoch, step))
                tasks = [
                    partial(random_crop, self.train_files[index], self.size, random.Random(number))
                    for index, number in zip(chosen.tolist(), seeds.tolist(), strict=True)
                ]
                yield tasks, self.train_y[chosen]

        yield from self._decoded(jobs())

    def tests(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The centres of the test pictures in their order; the last batch may be smaller."""

        def jobs() -> Iterator[_Job]:
            for start in range(0, len(self.test_files), batch_size):
                part = slice(start, start + batch_size)
                tasks = [partial(centre_crop, file, self.size) for file in self.test_files[part]]
                yield tasks, self.test_y[part]

        yield from self._decoded(jobs())

    def validation(self, fraction: float = 0.1) -> "PictureFolder":
        """The data set for choosing settings: its test part is a fixed share of the training part.

        Args:
            fraction: of each class that is held out of training, always the same pictures.
        """
        out = held_out(self.train_y, fraction)
        parts: dict[bool, list[str]] = {True: [], False: []}
        for file, is_out in zip(self.train_files, out.tolist(), strict=True):
            parts[is_out].append(file)
        return replace(
            self,
            train_files=parts[False],
            train_y=self.train_y[~out],
            test_files=parts[True],
            test_y=self.train_y[out],
        )

    def _decoded(self, jobs: "Iterable[_Job]") -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in their order, of which a few are always under way."""
        first, every = self.part
        pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="fadeout-pictures")
        waiting: deque[tuple[list[Future[Tensor]], Tensor]] = deque()
        try:
            for tasks, labels in jobs:
                waiting.append(([pool.submit(task) for task in tasks[first::every]], labels))
                if len(waiting) > _AHEAD:
                    yield self._collected(*waiting.popleft())
            while waiting:
                yield self._collected(*waiting.popleft())
        finally:
            # also when the loop is left early: what has not begun is dropped
            pool.shutdown(wait=True, cancel_futures=True)

    def _collected(self, pictures: list[Future[Tensor]], labels: Tensor) -> tuple[Tensor, Tensor]:
        first, every = self.part
        decoded = [picture.result() for picture in pictures]
        if every == 1:
            return _PREPARE(torch.stack(decoded)), labels
        x = torch.zeros(len(labels), 3, self.size, self.size)
        if decoded:
            x[first::every] = _PREPARE(torch.stack(decoded))
        return x, labels


_Job = tuple[list[partial[Tensor]], Tensor]


def read_folder(folder: Path, size: int) -> PictureFolder:
    """The pictures in ``folder/train/<class>`` and ``folder/val/<class>``.

    Args:
        folder: of the data set.
        size: of the pictures that a network gets, in pixels.
    """
    if size < 1:
        raise ValueError(f"pictures of {size} pixels: take 1 or more, such as 224")
    classes = _subfolders(folder / "train")
    unknown = sorted(set(_subfolders(folder / "val")) - set(classes))
    if unknown:
        raise ValueError(
            f"{folder / 'val'} has classes that {folder / 'train'} lacks: {', '.join(unknown[:5])}"
        )
    train_files, train_y = _files(folder / "train", classes)
    test_files, test_y = _files(folder / "val", classes)
    return PictureFolder(train_files, train_y, test_files, test_y, classes, size)


def _subfolders(part: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(part) if entry.is_dir())
    if not names:
        raise ValueError(
            f"{part} has no folders: sort its pictures into one for each class, named by its wnid"
        )
    return names


def _files(part: Path, classes: list[str]) -> tuple[list[str], Tensor]:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = part / name
        entries = sorted(os.listdir(folder)) if folder.is_dir() else []
        found = [str(folder / entry) for entry in entries if entry.lower().endswith(_SUFFIXES)]
        files += found
        labels += [label] * len(found)
    if not files:
        raise ValueError(f"{part} has no pictures ({', '.join(_SUFFIXES)}) in its folders")
    return files, torch.tensor(labels)
