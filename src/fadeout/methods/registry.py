"""All methods that an experiment can name, found by looking through this folder."""

import importlib
import pkgutil

from fadeout import methods
from fadeout.methods.method import Method, Option


def find_methods() -> dict[str, Method]:
    """What the modules of this folder declare, by name, in the order in which to list it.

    >>> list(find_methods())[:3]
    ['dense', 'one_shot', 'han']
    """
    found = {
        value.name: value
        for module in pkgutil.walk_packages(methods.__path__, f"{methods.__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Method)
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def merge_options(found: dict[str, Method]) -> dict[str, Option]:
    """The options of all methods; each help text begins with the methods that have the option.

    >>> merge_options(METHODS)["rounds"]
    Option(type=<class 'int'>, default=5, help='han: removals')
    """
    merged: dict[str, Option] = {}
    users: dict[str, list[str]] = {}
    for method in found.values():
        for name, option in method.options.items():
            if merged.setdefault(name, option) != option:
                raise ValueError(f"the methods {users[name][0]} and {method.name} disagree about {name}")
            users.setdefault(name, []).append(method.name)
    return {n: o._replace(help=f"{', '.join(users[n])}: {o.help}") for n, o in merged.items()}


METHODS = find_methods()
OPTIONS = merge_options(METHODS)
