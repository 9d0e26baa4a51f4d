"""How methods stand to fadeout: under equal conditions, paired by seed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

from fadeout.experiments.report.formatting import joined
from fadeout.experiments.report.groups import Group, alike
from fadeout.experiments.report.statistics import Margin, paired_margin
from fadeout.experiments.run import DEFAULTS, Common, Run

_OURS = "auto"
_NO_RIVAL = "dense"  # it removes nothing, whatever target its settings have
_CONDITIONS = [each.name for each in fields(Common) if each.name not in ("method", "seed")]


class Standing(NamedTuple):
    """What became of a method in one setup, over all targets that it shares with fadeout.

    Attributes:
        budget: its epochs over fadeout's, fine-tuning included.
        rank: the mean over targets, 1 being the best, among methods of fadeout's budget; None for others.
        margins: one for each target.
    """

    name: str
    budget: float
    rank: float | None
    margins: tuple[Margin, ...]

    def count(self, verdict: str) -> int:
        """At how many targets it is ahead, level or behind, or has one seed only."""
        return sum(margin.verdict == verdict for margin in self.margins)


def add_margins(groups: Iterable[Group]) -> list[Group]:
    """The groups, each with its margin over fadeout's runs under the same conditions, where there are any."""
    groups = list(groups)
    ours = {_conditions(group): group for group in groups if group.method == _OURS}
    pairs = ((group, ours.get(_conditions(group))) for group in groups)
    return [
        group
        if own is None or group.method in (_OURS, _NO_RIVAL)
        else replace(group, margin=_margin(group, own))
        for group, own in pairs
    ]


def find_standings(groups: Sequence[Group]) -> dict[str, list[Standing]]:
    """The methods by mean rank, for each setup in which fadeout has a rival."""
    found = {}
    compared = [group for group in groups if group.margin or (group.method == _OURS and group.done)]
    for where, members in alike(compared, lambda group: joined(group.where, group.mark)).items():
        cells = [cell for cell in alike(members, _conditions).values() if any(group.margin for group in cell)]
        ranks = [_rank(cell) for cell in cells]
        standings = []
        for name, runs in alike(chain.from_iterable(cells), _name).items():
            own = [rank[name] for rank in ranks if name in rank]
            margins = tuple(group.margin for group in runs if group.margin)
            standings.append(Standing(name, _budget(runs[0]), fmean(own) if own else None, margins))
        if standings:
            found[where] = sorted(standings, key=lambda one: math.inf if one.rank is None else one.rank)
    return found


def _name(group: Group) -> str:
    """A method with its options: what competes."""
    return group.title.replace(f", {group.removed}", "", 1)


def _conditions(group: Group) -> tuple[Any, ...]:
    """All settings of a run but its seed, its method and what only this method has."""
    return tuple(repr(group.settings.get(name, DEFAULTS[name])) for name in _CONDITIONS)


def _accuracies(group: Group) -> dict[Any, float]:
    return {record["run"].get("seed"): record["after"] for record in group.done}


def _margin(group: Group, own: Group) -> Margin | None:
    """Over the seeds that both have."""
    theirs, ours = _accuracies(group), _accuracies(own)
    differences = [theirs[seed] - ours[seed] for seed in theirs if seed in ours]
    return paired_margin(differences) if differences else None


def _budget(group: Group) -> float:
    """Epochs in all, over those of fadeout; 1 where the settings are of an unknown method."""
    try:
        run = Run(**group.settings)
    except (TypeError, ValueError):
        return 1.0
    return run.total_epochs / replace(run, method=_OURS).total_epochs


def _rank(cell: Sequence[Group]) -> dict[str, float]:
    """By name, from 1 for the best; those that are level share the mean of their ranks."""
    means = {_name(group): group.estimates["after"].mean for group in cell if _budget(group) == 1}
    values = list(means.values())
    return {
        name: 1 + sum(other > mean for other in values) + (values.count(mean) - 1) / 2
        for name, mean in means.items()
    }
