"""Shared set-up and helpers: small deterministic tasks, a training loop, and the reference algorithm."""

import os
import re
import shutil
import sys

# Large bfloat16 products die of an illegal instruction on some virtual machines; read when torch loads.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from support.fresh import Fresh
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import cli

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None, max_examples=60
)
hypothesis.settings.load_profile("deterministic")

torch.set_num_threads(1)

# Tests start many processes, of which each would compile the whole library anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_ignore_collect(collection_path, config):
    """Files that are slow as a whole import trainers of others, for seconds: not for the fast suite."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return True if re.search(r"^pytestmark = .*mark\.slow", collection_path.read_text(), re.M) else None
    return None


@pytest.fixture(autouse=True)
def _deterministic():
    torch.manual_seed(0)


@pytest.fixture
def run(capsys):
    """Run a command; its exit code, what it printed, and what it complained about."""

    def call(*arguments: Any) -> tuple[Any, str, str]:
        try:
            cli.main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code
        output, complaint = capsys.readouterr()
        assert "Traceback" not in complaint
        return code, output, complaint

    return call


@pytest.fixture(scope="session")
def fresh():
    """Run a program in a process that has imported torch alone: ``fresh("import fadeout").returncode``."""
    process = Fresh()
    yield process
    process.close()


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, through playwright; who asks for it is skipped where one of them is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on the path")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


class Task:
    """A small network and the loss of each step: the same numbers in every run, whatever came before."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.float64, seed: int = 0):
        self.kind, self.dtype = kind, dtype
        torch.manual_seed(seed)
        self.model: Any = _NETWORKS[kind]().to(dtype)

    def batch(self, step: int, size: int = 8) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + step)
        if self.kind == "embedding":
            inputs = torch.randint(10, (size,), generator=generator)
        else:
            shape = {"conv": (1, 5, 5), "gru": (4, 6)}.get(self.kind, (6,))
            inputs = torch.randn(size, *shape, generator=generator).to(self.dtype)
        return inputs, torch.randn(size, 3, generator=generator).to(self.dtype)

    def loss(self, step: int, model: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        inputs, wanted = self.batch(step)
        return ((model or self.model)(inputs) - wanted).square().mean()


class _LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "matrices": lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)),
    # No bias before the norm: its gradient would be mere rounding, which Adam blows up to full size.
    "conv": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ),
    "gru": _LastState,
    "embedding": lambda: nn.Embedding(10, 3, sparse=True),
}


@pytest.fixture
def make_task() -> type[Task]:
    return Task


@pytest.fixture
def train() -> Callable[..., None]:
    """The user's loop: ``train(task, optimizer, 50)``, from one step to another, perhaps with closures."""

    def run(
        task: Task,
        optimizer: Optimizer | list[Optimizer],
        stop: int,
        *,
        start: int = 0,
        closure: bool = False,
        loss: Callable[[int], Tensor] | None = None,
        before: Callable[[int], object] = lambda step: None,
        after: Callable[[int], object] = lambda step: None,
    ) -> None:
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer

        def evaluate(step: int) -> Tensor:
            for each in optimizers:
                each.zero_grad()
            value = (loss or task.loss)(step)
            value.backward()
            return value

        for step in range(start, stop):
            before(step)
            if closure:
                for each in optimizers:
                    each.step(lambda step=step: evaluate(step))
            else:
                evaluate(step)
                for each in optimizers:
                    each.step()
            after(step)

    return run


@pytest.fixture
def bare() -> Callable[..., Any]:
    """A module of given parameters, in the order given: ``bare(a=[[1.0, 2.0]], b=tensor)``."""

    def build(**values: Any) -> nn.Module:
        module = nn.Module()
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(torch.as_tensor(value)))
        return module

    return build


@pytest.fixture
def push() -> Callable[..., None]:
    """One optimizer step with gradients given by hand; parameters that are not named get none."""

    def run(model: nn.Module, optimizer: Optimizer, **gradients: Any) -> None:
        for name, parameter in model.named_parameters():
            value = gradients.get(name)
            parameter.grad = None if value is None else torch.as_tensor(value).to(parameter.dtype)
        optimizer.step()

    return run


@pytest.fixture
def snapshot() -> Callable[[nn.Module], dict[str, Tensor]]:
    """The values of all parameters, copied."""
    return lambda model: {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture
def same_bits() -> Callable[..., None]:
    """Assert that two sets of values, or two modules, are equal to the last bit."""

    def check(one: Any, other: Any) -> None:
        one, other = (x.state_dict() if isinstance(x, nn.Module) else x for x in (one, other))
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert torch.equal(one[name], other[name]), name

    return check


@pytest.fixture
def close() -> Callable[..., None]:
    """Assert that two modules have the same weights to float64 precision."""

    def check(one: nn.Module, other: nn.Module, rtol: float = 1e-9, atol: float = 1e-12) -> None:
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)

    return check


@pytest.fixture
def hooks_on() -> Callable[[Optimizer], int]:
    """How many step hooks an optimizer carries."""
    return lambda o: len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks)


@pytest.fixture
def train_reference(train) -> Callable[..., None]:
    """Train with selective weight decay as in the paper's Algorithm 1, by a sort and autograd.

    ``mode="implicit"`` is the same penalty as a division after the step. ``mu`` is by default the decay of
    the weight's own group.
    """

    def run(task, optimizer, steps, sparsity, strength, *, mode="gradient", mu=None, after=None, **kwargs):
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
        groups = {p: g for o in optimizers for g in o.param_groups for p in g["params"] if p.dim() >= 2}
        targeted: dict[Tensor, Tensor] = {}

        def select():
            scores = torch.cat([w.detach().abs().flatten() for w in groups])
            threshold = scores.sort().values[round(sparsity * len(scores)) - 1]
            targeted.update({w: w.detach().abs() <= threshold for w in groups})

        def coefficient(step, w):
            return strength(step / steps) * (groups[w]["weight_decay"] if mu is None else mu)

        def penalised(step):
            terms = [coefficient(step, w) / 2 * w[chosen].square().sum() for w, chosen in targeted.items()]
            return task.loss(step) + sum(terms)

        def shrink(step):
            select()
            with torch.no_grad():
                for w, chosen in targeted.items():
                    w[chosen] /= 1 + coefficient(step, w) * groups[w]["lr"]

        explicit = mode == "gradient"
        train(
            task,
            optimizer,
            steps,
            loss=penalised if explicit else None,
            before=lambda step: select() if explicit else None,  # once in a step, however often it evaluates
            after=lambda step: (explicit or shrink(step), after and after(step)),
            **kwargs,
        )

    return run
