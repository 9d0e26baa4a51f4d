"""Numbers and names as the reader sees them, in all formats."""

import math
from collections.abc import Iterable

from fadeout.experiments.drawing import power
from fadeout.experiments.report.groups import METHODS, Estimate, Group, Place

_FRACTIONS = {
    0.5: "half the length",
    0.25: "a quarter of the length",
    0.2: "a fifth of the length",
    0.1: "a tenth of the length",
    0.05: "a twentieth of the length",
    0.02: "a fiftieth of the length",
    0.01: "a hundredth of the length",
}
_NETWORKS = {
    "densenet40": "DenseNet-40",
    "gcn": "GCN",
    "lenet5": "LeNet-5",
    "mobilenetv2": "MobileNetV2",
    "vit": "ViT",
}
_DATA = {
    "cora": "Cora",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}


def badge(scale: float) -> str:
    """The mark of runs that were not of the full length; nothing for those that were.

    >>> badge(0.1), badge(0.3), badge(2.0), badge(1.0)
    ('a tenth of the length', '30 % of the length', '2 times the length', '')
    """
    if scale == 1:
        return ""
    if scale > 1:
        return f"{scale:g} times the length"
    return _FRACTIONS.get(scale, f"{100 * scale:.3g} % of the length")


def mark(group: Group) -> str:
    """The mark of a group's runs.

    >>> mark(Group(Place(), "swd", 0.9, scale=0.5, steps=10))
    'half the length, at most 10 steps an epoch'
    """
    steps = "" if group.steps is None else f"at most {group.steps} steps an epoch"
    return ", ".join(part for part in (badge(group.scale), steps) if part)


def badges(groups: Iterable[Group]) -> str:
    """The mark of a plot: of all its runs, or of a part of them."""
    marks = sorted({mark(group) for group in groups if group.records})
    short = [text for text in marks if text]
    if not short:
        return ""
    return ("in part " if len(marks) > len(short) else "") + " or ".join(short)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or nothing.

    >>> number(-0.5), number(None), number(float("nan")), number(-0.001)
    ('-0.50', '', 'not a number', '0.00')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return "not a number"
    value = round(value, digits) + 0.0  # a zero without sign
    return f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference.

    >>> signed(0.5), signed(-0.5), signed(0.001)
    ('+0.50', '-0.50', '0.00')
    """
    text = number(value)
    return f"+{text}" if value is not None and value > 0 and text not in ("0.00", "not a number") else text


def spread(estimate: Estimate | None) -> str:
    """Mean and standard deviation.

    >>> spread(Estimate(98.5, 0.25, 3)), spread(Estimate(98.5, None, 1))
    ('98.50 ± 0.25', '98.50')
    """
    if estimate is None:
        return ""
    if estimate.deviation is None:
        return number(estimate.mean)
    return f"{number(estimate.mean)} ± {number(estimate.deviation)}"


def percent(fraction: float) -> str:
    """A fraction in percent, without needless digits.

    >>> percent(0.9), percent(1 - 0.999)
    ('90 %', '0.1 %')
    """
    return f"{100 * fraction:.4g} %"


def strength(a: float | None) -> str:
    """A value of the paper's a.

    >>> strength(1e-1), strength(1e4), strength(5e3), strength(None)
    ('0.1', '10⁴', '5000', '')
    """
    if a is None:
        return ""
    exponent = round(math.log10(a)) if a > 0 and math.isfinite(a) else 0
    return power(exponent) if abs(exponent) > 2 and math.isclose(a, 10.0**exponent) else f"{a:g}"


def method(name: str) -> str:
    return METHODS.get(name, name)


def network(place: Place) -> str:
    """The network, and its width if that is not the usual one.

    >>> network(Place(network="resnet20", width=64))
    'ResNet-20, 64 maps'
    """
    name = place.network or ""
    if name not in _NETWORKS and name.startswith("resnet"):
        name = f"ResNet-{name.removeprefix('resnet')}"
    name = _NETWORKS.get(name, name)
    return f"{name}, {place.width} maps" if place.width else name


def data(place: Place) -> str:
    return _DATA.get(place.data or "", place.data or "")


def where(place: Place) -> str:
    """What is pruned, and how.

    >>> where(Place("cora", "gcn", None, "elements"))
    'GCN on Cora, elements'
    """
    first = " on ".join(part for part in (network(place), data(place)) if part)
    return ", ".join(part for part in (first, place.structure) if part)


def what(group: Group) -> str:
    """A group in a line, without its place.

    >>> what(Group(Place(), "swd", 0.9, 0.1, 1e4, note="preset authors"))
    'SWD, a 0.1 to 10⁴, 90 % removed, preset authors'
    """
    strengths = f"a {strength(group.a_min)} to {strength(group.a_max)}" if any(group.strengths) else ""
    removed = f"{percent(group.sparsity)} removed" if group.sparsity else ""
    return ", ".join(part for part in (method(group.method), strengths, removed, group.note) if part)


def last_line(traceback: str | None) -> str:
    """Of a traceback: the error itself.

    >>> last_line("Traceback (most recent call last):\\n  File ...\\nValueError: too large\\n")
    'ValueError: too large'
    """
    lines = [line.strip() for line in (traceback or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was recorded"
