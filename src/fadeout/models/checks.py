"""What the networks' arguments may be: one wording for all of them."""

from typing import Literal, get_args

Stem = Literal["cifar", "imagenet"]


def positive(**arguments: int) -> None:
    """Refuse anything but whole numbers from 1 up, naming the argument.

    >>> positive(width=0)
    Traceback (most recent call last):
    ValueError: width is a whole number from 1 up, got 0
    """
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a whole number from 1 up, got {value!r}")


def known_stem(stem: str) -> None:
    """Refuse a stem that does not exist.

    >>> known_stem("mnist")
    Traceback (most recent call last):
    ValueError: stem is 'cifar' (small images) or 'imagenet' (large ones), got 'mnist'
    """
    if stem not in get_args(Stem):
        raise ValueError(f"stem is 'cifar' (small images) or 'imagenet' (large ones), got {stem!r}")
