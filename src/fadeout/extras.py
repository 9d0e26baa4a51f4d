"""Optional packages: where one is missing, the message names the extra that brings it."""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """A package of an extra is not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import optional packages inside, and a missing one raises a :class:`MissingExtraError`.

    Args:
        name: the extra that brings them.

    >>> with extra("experiments"):
    ...     import no_such_package
    Traceback (most recent call last):
    fadeout.extras.MissingExtraError: no_such_package is not installed: pip install "fadeout[experiments]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        if package == "fadeout":  # a broken installation, which no extra would mend
            raise
        raise MissingExtraError(
            f'{package} is not installed: pip install "fadeout[{name}]"', name=package
        ) from error
