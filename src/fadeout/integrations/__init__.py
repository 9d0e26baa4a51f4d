"""Thin adapters to the trainers of others; each is imported, with its package, when it is first used."""

import importlib
from typing import Any

_ADAPTERS = ("lightning", "transformers", "ultralytics")


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"there is fadeout.integrations.{', '.join(_ADAPTERS)}; not {name!r}")
