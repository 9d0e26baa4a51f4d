"""An optimizer that goes on with a smaller network, its state cut as the parameters were."""

import copy
import inspect
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from fadeout.compaction.cut import Cut
from fadeout.graph.editor import on_device


def cut_optimizer(optimizer: Optimizer, model: nn.Module, cut: Cut) -> Optimizer:
    """The same optimizer for the smaller network, its state cut as the parameters were.

    Args:
        optimizer: of the network before; it is left as it was.
        model: the network before.
        cut: what came out of it.
    """
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS keeps its state for all parameters at once: it cannot be carried over")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    new = dict(cut.model.named_parameters())

    def successor(parameter: Tensor) -> nn.Parameter | None:
        if id(parameter) not in names:
            raise ValueError("the optimizer holds parameters that the model does not have")
        return new.get(cut.name_now(names[id(parameter)]))

    groups, pairs = [], []
    for group in optimizer.param_groups:
        here = [(p, successor(p)) for p in group["params"]]
        pairs += [(p, q) for p, q in here if q is not None]
        settings = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        groups.append({**settings, "params": [q for _, q in here if q is not None]})
    # biases that came into being when constants were folded go with the others, in the first group
    born = new.keys() - {cut.name_now(name) for name in names.values()}
    groups[0]["params"] += [q for name, q in new.items() if name in born]
    names_now = {id(q): name for name, q in new.items()}
    for group in groups:
        if "param_names" in group:  # of an optimizer that was built from named_parameters()
            group["param_names"] = [names_now[id(q)] for q in group["params"]]
    accepted = inspect.signature(type(optimizer).__init__).parameters
    small = type(optimizer)(groups, **{k: v for k, v in optimizer.defaults.items() if k in accepted})
    for old, parameter in pairs:
        if old in optimizer.state:
            index = cut.slices.get(names[id(old)])
            state = optimizer.state[old].items()
            small.state[parameter] = {key: _cut_state(value, old, index) for key, value in state}
    return small


def _cut_state(value: Any, parameter: Tensor, index: tuple | None) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if index is None or value.dim() == 0:
        return value.clone()
    if value.shape != parameter.shape:
        raise ValueError(
            f"the optimizer keeps a state of shape {tuple(value.shape)} for a parameter of shape "
            f"{tuple(parameter.shape)}: it cannot be cut; build a new optimizer for the smaller network"
        )
    return value[on_device(index, value)].clone()
