"""Networks: plain modules built by plain functions, ignorant of pruning."""

from fadeout.models.lenet import lenet5

__all__ = ["lenet5"]
