"""Numbers and names as the reader sees them, in all formats."""

import math

_FRACTIONS = {
    0.5: "half",
    0.25: "a quarter of",
    0.2: "a fifth of",
    0.1: "a tenth of",
    0.05: "a twentieth of",
    0.02: "a fiftieth of",
    0.01: "a hundredth of",
}
_NAMES = {
    "densenet40": "DenseNet-40",
    "gcn": "GCN",
    "lenet5": "LeNet-5",
    "mobilenetv2": "MobileNetV2",
    "vit": "ViT",
    "cora": "Cora",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}


def joined(*parts: str, by: str = ", ") -> str:
    """The parts that say something.

    >>> joined("SWD", "", "90 % removed")
    'SWD, 90 % removed'
    """
    return by.join(part for part in parts if part)


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def length(scale: float, steps: int | None = None) -> str:
    """The mark of runs that were not of the full length; nothing for those that were.

    >>> length(0.1), length(0.3), length(2.0), length(1.0)
    ('a tenth of the length', '30 % of the length', '2 times the length', '')
    >>> length(0.5, steps=10)
    'half the length, at most 10 steps an epoch'
    """
    part = f"{scale:g} times" if scale > 1 else _FRACTIONS.get(scale, f"{100 * scale:.3g} % of")
    return joined(
        "" if scale == 1 else f"{part} the length",
        "" if steps is None else f"at most {steps} steps an epoch",
    )


def number(value: float | str | None, digits: int = 2, *, signed: bool = False) -> str:
    """A number, or nothing; a difference has its sign.

    >>> number(-0.5), number(None), number(float("nan")), number(-0.001)
    ('-0.50', '', 'not a number', '0.00')
    >>> number(0.5, signed=True), number(0.001, signed=True)
    ('+0.50', '0.00')
    """
    if not isinstance(value, (int, float)):  # a template has "" for what is not there
        return ""
    if not math.isfinite(value):
        return "not a number"
    value = round(value, digits) + 0.0  # a zero without sign
    return f"{value:{'+' if signed and value else ''}.{digits}f}"


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
    if abs(exponent) > 2 and math.isclose(a, 10.0**exponent):
        return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{a:g}"


def printed_name(name: str | None) -> str:
    """A network or data set as it is written in print.

    >>> printed_name("resnet20"), printed_name("cifar10"), printed_name("mine"), printed_name(None)
    ('ResNet-20', 'CIFAR-10', 'mine', '')
    """
    name = name or ""
    return _NAMES.get(name, f"ResNet-{name[6:]}" if name.startswith("resnet") else name)


def last_line(traceback: str | None) -> str:
    """Of a traceback: the error itself.

    >>> last_line("Traceback (most recent call last):\\n  File ...\\nValueError: too large\\n")
    'ValueError: too large'
    """
    return (traceback or "").strip().rpartition("\n")[2].strip() or "no reason was recorded"
