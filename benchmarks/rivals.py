"""What other tools that prune while a network trains add to a step of the same network.

    python benchmarks/rivals.py

ResNet-20 with 64 maps. All contestants work on the weights alone, so what they add does not depend on the
batch: it is a small one of small images, in which the addition is not lost. A tool that is not installed is
left out: ``pip install "fadeout[bench]"``.
"""

from typing import Any

import trainings
from contestants import CONTESTANTS, SPARSITY, Contestant, Step, plain
from harness import means, peak_bytes, quartiles, take_turns
from rows import Part, Row, table
from trainings import Training
from weights import fade

QUICK = {"width": 4, "rounds": 2, "settle": 1}


def measure(
    width: int = 64,
    rounds: int = 28,
    settle: int = 20,
    contestants: dict[str, Contestant] = CONTESTANTS,
) -> Part:
    """Time steps with and without each contestant, and count what it allocates.

    Args:
        width: of the network.
        rounds: of each contestant.
        settle: steps before these.
        contestants: make a training step of a network and its optimizer.
    """
    steps: dict[str, Step] = {}
    bytes_: dict[str, int] = {}
    notices = []
    for name, build in {"plain": plain, **contestants}.items():
        try:
            steps[name], bytes_[name] = _prepare(build, width, settle)
        except ModuleNotFoundError as error:
            notices.append(f"{name} is left out: {error.name} is not installed")
            print(notices[-1])
    seconds = take_turns(steps, rounds, warm_up=2)
    rows, lines = [], []
    facts: dict[str, Any] = {"plain": {"seconds": quartiles(seconds["plain"])}}
    for name in list(steps)[1:]:
        pairs = zip(seconds[name], seconds["plain"], strict=True)
        added = quartiles(means([1e3 * (with_ - without) for with_, without in pairs]))
        more = (bytes_[name] - bytes_["plain"]) / 1e6
        facts[name] = {"milliseconds added": added, "MB added": more}
        pair = Row(f"{name}: time", added, "ms"), Row(f"{name}: memory", [more] * 3, "MB")
        rows += pair
        lines.append([name, *pair[0].cells()[1:3], pair[1].cells()[1]])
    size = sum(p.numel() for p in trainings.resnet20(width, 1, 8).model.parameters()) * 4 / 1e6
    about = (
        f"What each adds to a training step of ResNet-20 with {width} maps ({size:.3g} MB of weights): "
        "milliseconds, and memory at its peak, with what is held between the steps. The time does not depend "
        "on the batch, which is small, so that its own memory does not hide the rest."
    )
    facts = {"contestants": facts, "left out": notices, "width": width, "rounds": rounds}
    headers = ["", "time added to a step", "quartiles", "memory added"]
    return Part("Other tools", about, rows, facts, table(headers, lines))


def _prepare(build: Contestant, width: int, settle: int) -> tuple[Step, int]:
    """A step, warm, and the bytes that it takes at its peak, with all that is held for it."""

    def start() -> tuple[Training, Step]:
        training = trainings.resnet20(width, batch=2, size=8)
        fade(training.model.parameters(), SPARSITY["elements"])  # all begin in the middle of it
        step = build(training)
        for _ in range(2):
            step()
        return training, step

    start()  # what is compiled, cached or imported once belongs to no step
    kept = []
    peak = peak_bytes(lambda: kept[0][1](), prepare=lambda: kept.append(start()))
    step = kept[0][1]
    for _ in range(settle):
        step()
    return step, peak


if __name__ == "__main__":
    print(measure().text())
