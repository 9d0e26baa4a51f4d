"""Dead channels become a smaller module."""

import copy
import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.optim import LBFGS, Optimizer
from torch.utils import _pytree as pytree

from fadeout.graph import Analysis, Network
from fadeout.parameters import unwrap


@overload
def compact(
    model: nn.Module,
    example_input: Any,
    *,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Iterable[Any] = (),
) -> nn.Module: ...


@overload
def compact(
    model: nn.Module,
    example_input: Any,
    *,
    optimizer: Optimizer,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Iterable[Any] = (),
) -> tuple[nn.Module, Optimizer]: ...


def compact(
    model: nn.Module,
    example_input: Any,
    *,
    optimizer: Optimizer | None = None,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Iterable[Any] = (),
) -> nn.Module | tuple[nn.Module, Optimizer]:
    """A smaller module with the same outputs: channels that are dead, whoever zeroed them, are gone.

    A channel can go if nobody needs it: because it is constant, and the constant is folded into the bias of
    the layers that read it, or because all weights that read it are zero. Outputs are the same in evaluation
    mode, up to rounding, and in training mode too where the removed channels are exactly zero. The model
    itself is untouched. The copy keeps the user's class and ``forward`` where it can; where a line of
    ``forward`` must change (the sides of an addition keep different channels, or a number of channels is
    written in it), it is a ``torch.fx.GraphModule`` with the same parameter names.

    Args:
        model: the network.
        example_input: a tensor, or a tuple of tensors, that ``model(*example_input)`` takes.
        optimizer: also carry over its state (momentum, Adam's moments) and return (module, optimizer).
        couple: both sides of an addition keep the same channels, so that nothing is placed by index.
        for_inference: also fold constants that come out of batch-norm's running statistics, which holds
            only in evaluation mode.
        leaves: modules, or classes of modules, that cannot be traced; they keep all their channels.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     model[0].weight[:6] = 0
    ...     model[0].bias[:6] = 0
    >>> compact(model, torch.zeros(1, 4))
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    model = unwrap(model)
    network = Network(model, example_input, leaves)
    options: dict[str, Any] = {"couple": couple, "for_inference": for_inference}
    two_ways = network.follows_training is None and not for_inference

    def fits(small: nn.Module) -> bool:
        if not _agree(model, small, network.inputs):
            return False
        if not two_ways:
            return True
        # The graph is that of evaluation mode; in training mode running statistics move, so on copies.
        return _agree(copy.deepcopy(model), copy.deepcopy(small), network.inputs, training=True)

    small, surgery = None, Surgery(Analysis(network, **options))
    if not surgery.needs_new_forward or network.follows_training is not None:
        small = surgery.finish()
    if small is None or not fits(small):
        # The user's forward does more than the graph shows: only cut what it can run as it stands.
        surgery = Surgery(Analysis(network, **options, keep_forward=True))
        small = surgery.finish()
        if not fits(small):
            warnings.warn("compact() cannot keep this network's outputs, and returns it whole", stacklevel=2)
            surgery = Surgery(Analysis(network, whole=True))
            small = surgery.finish()
    _set_plans(small, [*plans_of(model), surgery.plan()] if surgery.cuts else plans_of(model))
    if optimizer is None:
        return small
    return small, _carried(optimizer, model, small, surgery.cuts, surgery.renamed)


@dataclass(frozen=True)
class Plan:
    """Which channels each value of a network kept: plain data, from which the surgery can be done again."""

    inputs: list[dict[str, Any]]
    """Shape and dtype of the example."""
    kept: dict[str, list[int]]
    """By the name of the value in the graph, the channels that stay, where some go."""
    constants: dict[str, dict[str, float]]
    """The constants other than zero that stand in for channels, by value and channel."""
    biases: list[str]
    """Modules that were given a bias, to fold constants into."""
    keep_forward: bool
    couple: bool


def apply_plan(model: nn.Module, plan: Plan, leaves: Iterable[Any] = ()) -> nn.Module:
    """Cut a network as another of the same architecture was cut; the weights are whatever they are."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    inputs = tuple(
        torch.zeros(each["shape"], dtype=getattr(torch, each["dtype"]), device=device) for each in plan.inputs
    )
    network = Network(model, inputs, leaves)
    analysis = Analysis(network, keep_forward=plan.keep_forward, couple=plan.couple, whole=True)
    flows = {node.name: flow for node, flow in analysis.flows.items()}
    for name, kept in plan.kept.items():
        flow = flows.get(name)
        if flow is None or not kept or not 0 <= min(kept) <= max(kept) < flow.width:
            raise ValueError(f"the plan is for another architecture: {name!r} has no such channels here")
        flow.needed = torch.zeros_like(flow.needed).index_fill(0, torch.tensor(kept), True)
        flow.constant = torch.zeros_like(flow.constant)
        for channel, value in plan.constants.get(name, {}).items():
            flow.constant[int(channel)] = value
    small = Surgery(analysis, biases=plan.biases).finish()
    _set_plans(small, [*plans_of(model), plan])
    return small


def plans_of(module: nn.Module) -> list[Plan]:
    """How a compact module came to be, from the user's own constructor on."""
    return list((module.meta if isinstance(module, fx.GraphModule) else module.__dict__).get(_PLANS, []))


def _set_plans(module: nn.Module, plans: list[Plan]) -> None:
    # a GraphModule is copied with its meta, but not with other attributes
    (module.meta if isinstance(module, fx.GraphModule) else module.__dict__)[_PLANS] = plans


_PLANS = "fadeout_plans"


class Place(nn.Module):
    """Put channels where they belong: output ``i`` is input ``index[i]``, or a constant where that is -1.

    Args:
        index: for each output the number of its input, or -1.
        constant: for each output the constant that stands in for a missing input.
        width: the number of inputs.
        axis: the dimension of the channels.

    >>> place = Place(torch.tensor([1, -1]), torch.tensor([0.0, 5.0]), width=2, axis=1)
    >>> place(torch.tensor([[3.0, 4.0]]))
    tensor([[4., 5.]])
    """

    index: Tensor
    constant: Tensor

    def __init__(self, index: Tensor, constant: Tensor, *, width: int, axis: int):
        super().__init__()
        self.axis, missing = axis, index < 0
        self.pads, self.shifts = bool(missing.any()), bool(constant[missing].any())
        # a channel of zeros, put behind the inputs, stands in for those that are missing
        self.register_buffer("index", torch.where(missing, width, index))
        self.register_buffer("constant", torch.where(missing, constant, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        behind = x.dim() - 1 - self.axis
        if self.pads:
            x = F.pad(x, [0, 0] * behind + [0, 1])
        x = x.index_select(self.axis, self.index)
        return x + self.constant.to(x.dtype).view([-1] + [1] * behind) if self.shifts else x

    def extra_repr(self) -> str:
        return f"{len(self.index)} channels along {self.axis}"


class Surgery:
    """A copy of the network from which the rules cut what nobody needs."""

    def __init__(self, analysis: Analysis, biases: Iterable[str] = ()):
        self.analysis, self._biases = analysis, list(biases)
        self.model = copy.deepcopy(analysis.network.model)
        self.cuts: dict[str, tuple] = {}  # parameter or buffer -> what stays of it
        self.renamed: dict[str, str] = {}  # module -> where it is now
        self._places: dict[tuple[fx.Node, fx.Node], Place] = {}  # on the way from one node to another
        self._calls: dict[fx.Node, tuple[Any, tuple]] = {}  # node -> new target and arguments
        for name in self._biases:
            module: Any = self.model.get_submodule(name)
            module.bias = nn.Parameter(
                module.weight.new_zeros(
                    module.out_features if isinstance(module, nn.Linear) else module.out_channels
                )
            )
        done = set[int]()
        for node, rule in analysis.rules.items():
            if node.op == "call_module":
                if id(analysis.network.module(node)) in done:
                    continue
                done.add(id(analysis.network.module(node)))
            rule.cut(node, self)

    # What the rules use

    def module(self, node: fx.Node) -> Any:
        """The copy of the module that a node calls."""
        return self.model.get_submodule(str(node.target))

    def kept(self, node: fx.Node) -> Tensor | None:
        """The channels of a value that stay; None where all do."""
        flow = self.analysis.flows.get(node)
        return None if flow is None or bool(flow.needed.all()) else flow.kept

    def slice(self, node: fx.Node, name: str, index: tuple) -> None:
        """Keep only the indexed part of a parameter or buffer, if the module has it."""
        module = self.module(node)
        old = getattr(module, name, None)
        if old is None:
            return
        new = old.detach()[_on(index, old)].clone()
        setattr(module, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
        self.cuts[f"{node.target}.{name}"] = index

    def set_bias(self, node: fx.Node, bias: Tensor) -> None:
        """Give the module a bias of these values, before it is sliced."""
        module = self.module(node)
        if module.bias is None:
            self._biases.append(str(node.target))
        module.bias = nn.Parameter(bias.to(module.weight), module.weight.requires_grad)

    def call(self, node: fx.Node, target: Any, args: tuple) -> None:
        """Replace a call in the forward."""
        self._calls[node] = target, args

    def arguments(self, node: fx.Node, args: tuple) -> None:
        """Replace the arguments of a call in the forward."""
        self.call(node, node.target, args)

    def place(self, side: fx.Node, node: fx.Node) -> None:
        """On the way from ``side`` to ``node``, put the channels of the one into those of the other."""
        before, after = self.analysis.flows[side], self.analysis.flows[node]
        if torch.equal(before.needed, after.needed):
            return
        position = torch.where(before.needed, before.needed.cumsum(0) - 1, -1)
        types = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        constant = before.constant.nan_to_num(0.0).to(types[0] if types else torch.get_default_dtype())
        axis = before.axis - len(self.analysis.shape(side))  # from the end: sides may have fewer dimensions
        self._places[side, node] = Place(
            position[after.kept],
            constant[after.kept],
            width=int(before.needed.sum()),
            axis=len(self.analysis.shape(side)) + axis,
        )

    # The result

    def plan(self) -> Plan:
        """What was done, as plain data."""
        flows = {node.name: flow for node, flow in self.analysis.flows.items() if not flow.needed.all()}
        known = {name: flow.constant.nan_to_num(0.0) for name, flow in flows.items()}
        return Plan(
            inputs=[
                {"shape": list(one.shape), "dtype": str(one.dtype).removeprefix("torch.")}
                for one in self.analysis.network.inputs
            ],
            kept={name: flow.kept.tolist() for name, flow in flows.items()},
            constants={
                name: {str(int(c)): float(values[c]) for c in values.nonzero().squeeze(1)}
                for name, values in known.items()
                if values.any()
            },
            biases=self._biases,
            keep_forward=self.analysis.keep_forward,
            couple=self.analysis.couple,
        )

    @property
    def needs_new_forward(self) -> bool:
        """Whether the user's ``forward`` cannot run what is left."""
        return bool(self._calls) or any(not self._can_wrap(*edge) for edge in self._places)

    def finish(self) -> nn.Module:
        """The smaller module."""
        device = next(iter(self.model.parameters()), torch.empty(0)).device
        for place in self._places.values():
            place.to(device)
        if self.needs_new_forward:
            return self._rewritten()
        for (side, node), place in self._places.items():
            # a module whose only reader wants its channels placed can do so itself, or else the reader can
            inner = side if self._is_own(side) and len(side.users) == 1 else node
            name, module = str(inner.target), self.module(inner)
            place.train(module.training)
            order = (module, place) if inner is side else (place, module)
            self.model.set_submodule(name, nn.Sequential(*order).train(module.training))
            self.renamed[name] = f"{name}.{0 if inner is side else 1}"
        return self.model

    def _can_wrap(self, side: fx.Node, node: fx.Node) -> bool:
        return (self._is_own(side) and len(side.users) == 1) or self._is_own(node)

    def _is_own(self, node: fx.Node) -> bool:
        """Whether a node calls a module that no other node calls."""
        return node.op == "call_module" and len(self.analysis.network.sites(node)) == 1

    def _rewritten(self) -> fx.GraphModule:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        output = graph.graph_copy(self.analysis.network.graph, copies)
        graph.output(output)
        for number, ((side, node), place) in enumerate(self._places.items()):
            name = f"place_{number}"
            self.model.add_module(name, place.train(self.model.training))
            with graph.inserting_before(copies[node]):
                placed = graph.call_module(name, (copies[side],))
            copies[node].replace_input_with(copies[side], placed)
        for node, (target, args) in self._calls.items():
            new = copies[node]
            new.op, new.target, new.kwargs = "call_function" if callable(target) else new.op, target, {}
            new.args = map_arg(args, lambda one: copies[one])
        self._follow_training(graph, copies)
        small = fx.GraphModule(self.model, graph, class_name=type(self.model).__name__)
        for name, module in small.named_modules():
            module.training = self.model.get_submodule(name).training
        return small

    def _follow_training(self, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        """What the trace took from ``self.training`` is read from it again."""
        following = self.analysis.network.follows_training
        if not following:
            return
        with graph.inserting_before(next(iter(graph.nodes))):
            training = graph.create_node("get_attr", "training")
        for node, places in following.items():
            for place, in_evaluation, in_training in places:
                with graph.inserting_before(copies[node]):
                    chosen = graph.call_function(choose_by_mode, (training, in_training, in_evaluation))
                if isinstance(place, int):
                    copies[node].update_arg(place, chosen)
                else:
                    copies[node].update_kwarg(place, chosen)


def choose_by_mode(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """One of two values, by the mode of the module."""
    return in_training if training else in_evaluation


def _on(index: tuple, tensor: Tensor) -> tuple:
    return tuple(one.to(tensor.device) if isinstance(one, Tensor) else one for one in index)


@torch.no_grad()
def _agree(model: nn.Module, small: nn.Module, inputs: tuple[Any, ...], training: bool = False) -> bool:
    """Whether two modules give the same on the example."""
    outputs = []
    for module in (model, small):
        modes = {each: each.training for each in module.modules()}
        module.train(training)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                outputs.append(pytree.tree_leaves(module(*inputs)))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return False
        finally:
            for each, mode in modes.items():
                each.training = mode
    for mine, theirs in zip(*outputs, strict=True):
        if isinstance(mine, Tensor):
            if mine.shape != theirs.shape:
                return False
            near = 100 * torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0
            scale = float(mine.nan_to_num(0.0, 0.0, 0.0).abs().max()) if mine.numel() else 0.0
            if not torch.allclose(
                mine, theirs, rtol=near**0.5, atol=near**0.5 * max(scale, 1e-30), equal_nan=True
            ):
                return False
    return True


def _carried(
    optimizer: Optimizer,
    model: nn.Module,
    small: nn.Module,
    cuts: dict[str, tuple],
    renamed: dict[str, str],
) -> Optimizer:
    """The same optimizer for the smaller module, its state cut as the parameters are."""
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS keeps its state for all parameters at once: it cannot be carried over")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    new = dict(small.named_parameters())

    def renaming(name: str) -> str:
        module, _, leaf = name.rpartition(".")
        return f"{renamed[module]}.{leaf}" if module in renamed else name

    def successor(parameter: Tensor) -> nn.Parameter | None:
        if id(parameter) not in names:
            raise ValueError("the optimizer holds parameters that the model does not have")
        return new.get(renaming(names[id(parameter)]))

    groups, pairs = [], []
    for group in optimizer.param_groups:
        here = [(p, successor(p)) for p in group["params"]]
        pairs += [(p, q) for p, q in here if q is not None]
        groups.append({**group, "params": [q for _, q in here if q is not None]})
    # biases that came into being when constants were folded go with the others, in the first group
    born = new.keys() - {renaming(name) for name in names.values()}
    groups[0]["params"] += [q for name, q in new.items() if name in born]
    accepted = inspect.signature(type(optimizer).__init__).parameters
    carried = type(optimizer)(groups, **{k: v for k, v in optimizer.defaults.items() if k in accepted})
    for old, parameter in pairs:
        if old in optimizer.state:
            index = cuts.get(names[id(old)])
            carried.state[parameter] = {
                key: _cut_state(value, old, index) for key, value in optimizer.state[old].items()
            }
    return carried


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
    return value[_on(index, value)].clone()
