"""Where processes meet before they go on together: all of them the same, or an error on all of them.

They meet over the store that connected them, not in a collective operation: a process that never comes, or
that comes with an error, leaves nobody waiting for longer than :data:`PATIENCE`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

PATIENCE = timedelta(minutes=5)
"""How long a process waits for the others."""

_met: Counter[tuple[int, ...]] = Counter()  # how often these ranks have met


class ApartError(ValueError):
    """The processes are not of one mind; all of them raise it."""


def ranks_of(group: Any = None) -> tuple[int, ...]:
    """The ranks of a group, by default of all processes; none where there is only this one."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_backend() == "fake":
        return ()
    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    return ranks if len(ranks) > 1 else ()


def meet(ranks: tuple[int, ...], settings: Mapping[str, str]) -> None:
    """Wait for the others, and raise where one of them has other settings, or an error.

    Args:
        ranks: of all that meet; none where there is nobody to meet.
        settings: what must be the same, by name.

    Raises:
        ApartError: on all processes alike.
        TimeoutError: where one of them does not come.
    """
    if not ranks:
        return
    store = _store()
    _post(ranks, dict(settings))
    keys = {rank: _key(ranks, rank) for rank in ranks}
    try:
        store.wait(list(keys.values()), PATIENCE)
    except RuntimeError as error:  # torch's own error of a store says too little
        missing = [rank for rank, key in keys.items() if not store.check([key])]
        store.delete_key(keys[dist.get_rank()])  # so that they can still meet another time
        _met[ranks] -= 1
        raise TimeoutError(
            f"no pruner on {_listed(missing)} after {PATIENCE.total_seconds():g} seconds: all processes must "
            "build the same one, at the same point of the program. Look whether one of them has failed, or "
            "skips it"
        ) from error
    found = {rank: json.loads(store.get(key)) for rank, key in keys.items()}
    for rank, said in found.items():
        if "error" in said:
            raise ApartError(f"the pruner cannot be built on {_listed([rank])}: {said['error']}")
    for name in dict.fromkeys(name for said in found.values() for name in said):
        texts = {rank: said.get(name, "none") for rank, said in found.items()}
        first = texts[ranks[0]]
        other = next((rank for rank, text in texts.items() if text != first), None)
        if other is not None:
            raise ApartError(
                f"the processes have different {name}: {first} on process {ranks[0]}, {texts[other]} on "
                f"process {other}. Give all of them the same"
            )


def excuse(ranks: tuple[int, ...], error: BaseException) -> None:
    """Tell the others, who wait at the next meeting or will, that this process has failed."""
    if ranks and not isinstance(error, ApartError | TimeoutError):
        _post(ranks, {"error": f"{type(error).__name__}: {error}"})


def _post(ranks: tuple[int, ...], said: dict[str, str]) -> None:
    _met[ranks] += 1
    _store().set(_key(ranks, dist.get_rank()), json.dumps(said))


def _key(ranks: tuple[int, ...], rank: int) -> str:
    together = "all" if len(ranks) == dist.get_world_size() else "-".join(map(str, ranks))
    return f"fadeout/{together}/{_met[ranks]}/{rank}"


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _listed(ranks: Iterable[int]) -> str:
    return f"process {', '.join(map(str, ranks))}"
