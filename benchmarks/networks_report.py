"""The records of :mod:`networks` as a page: a summary, tables, and what was said where it failed."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rows import table

Record = dict[str, Any]

NEAR = 1e-3
"""A relative difference of outputs below this is rounding."""

_HEADS = [
    *("network", "parameters", "can go", "asked", "gone", "difference", "bind", "compact"),
    *("Torch-Pruning: gone", "its difference"),
]
_ABOUT = """# Networks of others

What becomes of {count} networks of other packages, in small sizes and with random weights (scales of norms
between 0.5 and 1.5): how much of the parameters can go, 40 % asked for (or what can go, if that is less), how
much is gone after `fadeout.compact`, and the largest difference between its outputs and those of the network
whose channels are zero, over the largest output, on three inputs, one of another batch size. Seconds are
those of a busy machine with two cores. `python benchmarks/networks.py` makes it again.

Channels are ranked by magnitude, `Channels(example, by="norm")`. A star: ranked within their layers, because
by the magnitudes of its random weights the network would have been cut in two, and its outputs would have
been constant. (!): not what it should be.

**Fadeout**: {bound} of {count} bind; {good} of these lose what was asked, with equal outputs; {forty} lose
40 %.

**Torch-Pruning** {version}, `BasePruner` with `MagnitudeImportance` and `pruning_ratio=0.225` (of channels;
where inputs and outputs of all layers lose it, 40 % of the weights go), layers that make outputs ignored,
attentions named with their heads: {ran} of {tried} run and are smaller afterwards; of {equal} the outputs are
those of the original with the same channels set to zero. Why the others differ was not looked into; most
have layer-norms, whose statistics without some channels are not those with zeros. One call serves all: its
examples rewrite some networks first (YOLO's blocks, for one), and that was not done. An empty cell: not
comparable. "More than so many seconds" is the limit of this benchmark, on a busy machine.
"""


def is_bound(record: Record) -> bool:
    return "error" not in record


def is_good(record: Record) -> bool:
    """Whether what was asked is gone, with outputs that are equal and not trivially so."""
    if not is_bound(record):
        return False
    delivered = record["gone"] >= record["asked"] - 1e-9
    return delivered and record["difference"] < NEAR and record.get("varies", False)


def _is_equal(record: Record) -> bool:
    return record["difference"] is not None and record["difference"] < NEAR


def page(ours: Sequence[Record], theirs: Mapping[tuple[str, str], Record], version: str) -> str:
    """The whole text."""
    rivals = [one for record in ours if (one := theirs.get((record["package"], record["network"])))]
    smaller = [one for one in rivals if is_bound(one) and one["gone"] > 0]
    text = _ABOUT.format(
        count=len(ours),
        bound=sum(map(is_bound, ours)),
        good=sum(map(is_good, ours)),
        forty=sum(is_good(record) and record["asked"] >= 0.4 for record in ours),
        version=version,
        tried=len(rivals),
        ran=len(smaller),
        equal=sum(_is_equal(one) for one in smaller),
    )
    parts = [text]
    for package, several in groupby(ours, lambda record: record["package"]):
        rows = [_row(record, theirs.get((package, record["network"]))) for record in several]
        parts.append(f"## {package}\n\n{table(_HEADS, rows)}\n")
    for title, records in (("Fadeout", ours), ("Torch-Pruning", rivals)):
        said = [f"- {one['network']}: {_short(one['error'])}" for one in records if not is_bound(one)]
        if said:
            parts.append(f"## Where {title} does not, and what it says\n\n" + "\n".join(said) + "\n")
    return "\n".join(parts)


def _row(record: Record, rival: Record | None) -> list[str]:
    if rival is None:
        beside = ["", ""]
    elif not is_bound(rival):
        beside = ["error", ""]
    else:
        tested = rival["gone"] > 0 and rival["difference"] is not None
        beside = [f"{rival['gone']:.1%}", f"{rival['difference']:.0e}" if tested else ""]
    if not is_bound(record):
        return [record["network"], "", "", "", "error", "", "", "", *beside]
    star = "" if record.get("criterion", "magnitude") == "magnitude" else " *"
    seconds = (f"{record[f'seconds_to_{what}']:.1f} s" for what in ("bind", "compact"))
    shares = (f"{record[share]:.1%}" for share in ("can_go", "asked", "gone"))
    difference = f"{record['difference']:.0e}" if record["difference"] else "0"
    wrong = "" if is_good(record) else " (!)"
    return [
        record["network"] + star + wrong,
        f"{record['parameters']:,}",
        *shares,
        difference,
        *seconds,
        *beside,
    ]


def _short(message: str) -> str:
    """A message on one line, without the folders of this machine."""
    words = [
        "..." + word[word.index("site-packages") + 13 :] if "site-packages" in word else word
        for word in message.replace("|", "/").split()
    ]
    line = " ".join(words)
    return line if len(line) < 500 else line[:500] + " ..."
