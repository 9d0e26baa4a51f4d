"""Pruners are built on all processes or on none."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fadeout.torch_bridge.description import describe
from fadeout.torch_bridge.parameters import partners
from fadeout.torch_bridge.rank_agreement import excuse, meet


def built_together(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that ends on all processes or on none, and leaves no hook behind where it fails.

    All that a pruner is built from is compared before anything is done.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_begun:  # the constructor of a base class
            return init(self, *args, **kwargs)
        self._is_begun = True
        ranks = partners(args[0] if args else kwargs.get("model"))
        try:
            if ranks:
                given = signature.bind(self, *args, **kwargs)
                given.apply_defaults()
                _, *arguments = given.arguments.items()
                settings = {name: describe(value) for name, value in arguments}
                meet(ranks, {"methods": type(self).__qualname__, **settings})
            init(self, *args, **kwargs)
        except Exception as error:
            self.detach()
            excuse(ranks, error)
            raise
        meet(ranks, {})

    return build
