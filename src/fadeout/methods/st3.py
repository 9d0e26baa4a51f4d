"""ST-3: straight-through gradients and soft thresholds (Vanderschueren and De Vleeschouwer, 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import checked
from fadeout.criteria import Criterion
from fadeout.fades import Fade, Latent
from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.methods.swd import SelectiveWeightDecay
from fadeout.pruners.latents import Latents
from fadeout.schedules import Sparsity, Steps, cubic
from fadeout.structures.base import Structure
from fadeout.structures.elements import Elements
from fadeout.structures.scores import widened
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions
from fadeout.torch_bridge.sharding import is_split

_GROWTH = cubic(1.0, window=(0.05, 0.5))


@dataclass(frozen=True)
class SoftThreshold(Latent):
    """Latent weights ``u`` under a soft threshold: ``w = sign(u) (|u| - T)`` above ``T``, and zero below.

    The target grows with a cube in the window from 0.05 to 0.5 of the training.

    >>> import torch
    >>> SoftThreshold().sparse(torch.tensor([1.0, -2.5]), 2.0)
    tensor([ 0.0000, -0.5000])
    """

    def pace(self, progress: float) -> float:
        return 1.0

    def target(self, progress: float, steps: int) -> float:
        return _GROWTH(progress + 1 / steps)

    targeted = Fade.targeted  # with a cube, as published, not by ratios

    def settles(self, progress: float, steps: int) -> bool:
        return False

    def sparse(self, latent: Tensor, threshold: float) -> Tensor:
        return latent.sign() * (latent.abs() - threshold).clamp_min_(0)


class ST3(SelectiveWeightDecay):
    """Run the network on thresholded weights, and let their gradients reach all dense ones.

    The optimizer steps dense weights ``u``. With ``T`` the largest magnitude among the targeted ones, the
    network runs on

        ``w = a sign(u) max(|u| - T, 0)``,  ``a = 1.01 / (0.01 + sum(|u| above T) / sum(|u|))``,

    with the sums over each row, that is, a neuron or a filter, so that its output keeps its size. The target
    grows as in Zhu and Gupta, in the window from 0.05 to 0.5 of the training.

    Args:
        model, optimizer, sparsity, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        structure: :class:`fadeout.Elements`, single weights.
        criterion: which go first; the paper's is the magnitude, over the whole network.

    >>> import torch
    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruner = ST3(model, optimizer, sparsity=0.9, steps=100)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 10)).square().mean().backward()
    ...     optimizer.step()
    >>> int(model.weight.count_nonzero())
    10

    Reference: Vanderschueren and De Vleeschouwer, "Are Straight-Through Gradients and Soft-Thresholding All
    You Need for Sparse Training?", WACV 2023; the rescaling is that of the authors' programme.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity,
        steps: Steps,
        structure: Structure | None = None,
        criterion: Criterion = criteria.magnitude,
        prunable: Prunable = has_two_dimensions,
    ):
        if structure is not None and not isinstance(structure, Elements):
            raise ValueError(
                f"ST-3 prunes single weights: structure is fadeout.Elements(), got {structure!r}"
            )
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            structure=structure,
            criterion=criterion,
            fade=SoftThreshold(),
            prunable=prunable,
        )
        split = [name for name, parameter in self.parameters.items() if is_split(parameter)]
        if split:
            raise ValueError(f"ST-3 rescales whole rows, and those of {split[0]!r} lie on several processes")

    def _bind_fade(self) -> "Rescaled":
        return Rescaled(self, SoftThreshold(), calm=False)  # gradients go straight through, whatever is empty


class Rescaled(Latents):
    """Latent weights whose sparse form is rescaled row by row."""

    def _write(self, name: str, weight: Tensor, latent: Tensor) -> None:
        super()._write(name, weight, latent)
        if self._thresholds[name]:
            weight.copy_(weight * scale(latent, weight))


def scale(latent: Tensor, weight: Tensor) -> Tensor:
    """What each row of a parameter is multiplied by.

    Args:
        latent: its latent weights.
        weight: the same under the threshold, zero where they are not used.

    >>> import torch
    >>> scale(torch.tensor([[-3.0, 1.0]]), torch.tensor([[-1.0, 0.0]]))  # 1.01 / (0.01 + 3 / 4)
    tensor([[1.3289]])
    """
    size, row = widened(latent).abs(), tuple(range(1, latent.dim())) or (0,)
    used = size.where(weight != 0, 0)
    share = (used.mean(row, keepdim=True) + 1e-6) / (size.mean(row, keepdim=True) + 1e-6)
    return 1.01 / (share + 0.01)


def st3(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """Vanderschueren and De Vleeschouwer 2023: straight-through gradients, soft thresholds (ST-3)."""
    check_structure("st3", structure, "elements")
    return train(ST3, epochs, sparsity=sparsity)


def st3_lamp(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """ST-3 by the layer-adaptive score LAMP: for networks with norms, whose layers magnitudes can empty."""
    check_structure("st3_lamp", structure, "elements")
    return train(ST3, epochs, sparsity=sparsity, criterion=criteria.lamp)


METHOD = Method("st3", st3, label="ST-3", colour="#513463", dark_colour="#b6e07d", marker="$♠$", order=6)
BY_LAMP = Method(
    "st3_lamp", st3_lamp, label="ST-3, LAMP", colour="#8a5fa8", dark_colour="#e3f5c8", marker="$♤$", order=6
)
