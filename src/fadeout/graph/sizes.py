"""Numbers that know where they come from, while a network is recorded.

A size of a tensor, ``x.shape[1]``, and an attribute of a module, ``self.num_heads``, are plain integers to
the network's code. To the graph they are more: the one is asked again for every input, the other can be
changed when heads are cut.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import fx


class Asked(NamedTuple):
    """The size of a value along a dimension."""

    node: fx.Node
    dim: int


class Attribute(NamedTuple):
    """A number that a module keeps."""

    module: str
    name: str


class Computed(NamedTuple):
    """Arithmetic with such numbers."""

    operation: Callable[..., int]
    operands: tuple[Any, ...]


class Size(int):
    """An integer with its origin.

    >>> heads = Size(4, Attribute("attention", "num_heads"))
    >>> heads, heads * 2, (heads * 2).origin.operation.__name__
    (4, 8, 'mul')
    """

    origin: Asked | Attribute | Computed

    def __new__(cls, value: int, origin: Asked | Attribute | Computed) -> "Size":
        self = super().__new__(cls, value)
        self.origin = origin
        return self

    def __deepcopy__(self, memo: Any) -> int:
        return int(self)

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _arithmetic(operation: Callable[..., int], reverse: bool) -> Callable[..., Any]:
    def compute(self: Size, *others: Any) -> Any:
        operands = (*others, self) if reverse else (self, *others)
        if not all(isinstance(one, int) for one in operands):
            return NotImplemented
        return Size(operation(*map(int, operands)), Computed(operation, operands))

    return compute


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Size, f"__{_name}__", _arithmetic(getattr(operator, _name), reverse=False))
    setattr(Size, f"__r{_name}__", _arithmetic(getattr(operator, _name), reverse=True))


def attribute_of(number: Any) -> Attribute | None:
    """The module's attribute that a number is, as it stands."""
    return number.origin if isinstance(number, Size) and isinstance(number.origin, Attribute) else None


def is_asked(number: Any) -> bool:
    """Whether a number depends on the size of a value."""
    origin = getattr(number, "origin", None)
    return isinstance(origin, Asked) or (isinstance(origin, Computed) and any(map(is_asked, origin.operands)))
