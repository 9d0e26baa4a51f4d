"""What is to be had as ``fadeout.models``."""

import inspect

from fadeout import models


def test_every_exported_network_is_a_documented_function():
    for name in models.__all__:
        assert inspect.isfunction(getattr(models, name))
        assert inspect.getdoc(getattr(models, name))
