"""Damage to files, as disks, cables and people do it: seeded, and every reader gets the same."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAGE = 4096


def damaged(content: bytes, count: int, seed: int = 0, part: slice = slice(None)) -> Iterator[bytes]:
    """So many versions of a file, each of which differs from it, and only within a part of it."""
    chance = random.Random(seed)
    start, stop, _ = part.indices(len(content))
    while count:
        inner = chance.choice([flip, cut, zero, swap])(bytearray(content[start:stop]), chance)
        if inner != content[start:stop]:
            count -= 1
            yield content[:start] + bytes(inner) + content[stop:]


def flip(content: bytearray, chance: random.Random) -> bytearray:
    """One bit, or a few."""
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def cut(content: bytearray, chance: random.Random) -> bytearray:
    """Truncated, anywhere or by a little."""
    return content[: chance.choice([chance.randrange(len(content)), len(content) - chance.randrange(1, 80)])]


def zero(content: bytearray, chance: random.Random) -> bytearray:
    """A page of zeros, where it is on a disk, or a few bytes anywhere."""
    if chance.random() < 0.5:
        start, length = chance.randrange(-(-len(content) // PAGE)) * PAGE, PAGE
    else:
        start, length = chance.randrange(len(content)), chance.randrange(1, 64)
    length = min(length, len(content) - start)
    content[start : start + length] = bytes(length)
    return content


def swap(content: bytearray, chance: random.Random) -> bytearray:
    """Two blocks, each in the place of the other."""
    size = min(chance.choice([1, 4, 16, 64, 512, PAGE]), len(content) // 2)
    one, other = (chance.randrange(len(content) // size) * size for _ in range(2))
    first, second = content[one : one + size], content[other : other + size]
    content[one : one + size], content[other : other + size] = second, first
    return content


def attack(
    path: Path,
    read: Callable[[], Any],
    same: Callable[[Any], bool],
    count: int,
    *,
    part: slice = slice(None),
    seed: int = 0,
) -> Counter[str]:
    """Damage a file again and again; what was read each time is the same as ever, or refused with its name.

    Returns:
        how often it was "refused", and how often the "same".
    """
    content, outcome = path.read_bytes(), Counter[str]()
    for number, version in enumerate(damaged(content, count, seed, part)):
        path.write_bytes(version)
        try:
            found = read()
        except ValueError as error:
            if path.name not in str(error):
                raise
            outcome["refused"] += 1
        else:
            assert same(found), f"number {number} is taken for something else"
            outcome["same"] += 1
    path.write_bytes(content)
    assert same(read())
    assert outcome.total() == count
    return outcome
