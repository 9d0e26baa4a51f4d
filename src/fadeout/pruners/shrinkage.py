"""A fade that acts on the weights, after the step."""

import torch

from fadeout.pruners.bound_fade import BoundFade
from fadeout.structures.base import Target, change_, flush_


class Shrinkage(BoundFade):
    """After each step the targeted weights shrink, by as much as the fade's dose says."""

    def end(self) -> None:
        pruner = self._pruner
        dose = self._fade.now(self._clock, pruner.groups())  # how many, and how strongly
        for name, target in self.targets(pruner._sparsity_at(dose.share)).items():  # which
            self._shrink(name, target, dose.amounts[name])

    def _shrink(self, name: str, target: Target, dose: float) -> None:
        weight = self._pruner.weight(name)
        if weight.dtype.itemsize < 4:
            dose = self._representable(name, target, dose)
            if not dose:
                return
        for base in self._pruner._base(name):  # first, while the weights still say which are targeted
            for mask, _, own in target.parts(weight, base):
                own.copy_(torch.where(mask, self._fade.shrink(own, dose), own))
                flush_(own, mask)
        factor = self._fade.multiplier(dose)
        if factor is None:
            change_(target, weight, lambda wide: self._fade.shrink(wide, dose))
        else:
            target.scale_(weight, factor)

    def _representable(self, name: str, target: Target, dose: float) -> float:
        """Save up doses that a parameter below float32 cannot represent: 0.999 w is w in bfloat16."""
        weight = self._pruner.weight(name)
        dose = self._fade.add(self._pending.pop(name, 0.0), dose)
        sizes = [torch.where(mask, w, 0).abs().amax() for mask, w in target.parts(weight) if w.numel()]
        largest = self._layout.most(float(torch.stack(sizes).amax()) if sizes else 0.0)
        exact = torch.tensor(largest, dtype=torch.float64, device="cpu")
        change = largest - float(self._fade.shrink(exact, dose))
        if change < 8 * torch.finfo(weight.dtype).eps * largest:
            self._pending[name] = dose
            return 0.0
        return dose
