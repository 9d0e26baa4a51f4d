"""What each operator does to channels: one rule for each kind of operator.

A rule answers three questions about a node of the graph. ``constants``: along which axis do its output's
channels lie, and which of them are constant? ``needs``: which channels of its inputs must be there, given
those of its output? ``cut``: how does the module, or the call, change when the others are gone?

To teach Fadeout an operator, add it to one of the tables below.
"""

import operator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import fx, nn

from fadeout.graph.gather import Place
from fadeout.graph.heads import Heads
from fadeout.graph.rules.base import Leaf, Linked, Rule, name_of, source
from fadeout.graph.rules.gathers import Placed
from fadeout.graph.rules.heads import Attention, AttentionOutput, HeadedAttention, output_of
from fadeout.graph.rules.layers import (
    BatchNorm,
    Convolution,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    TransposedConvolution,
)
from fadeout.graph.rules.pointwise import Arithmetic, Elementwise, Padded, PReLU, Reduced, ZeroOnly
from fadeout.graph.rules.shapes import (
    Concatenated,
    ExpandedAs,
    Ignored,
    Item,
    Moved,
    Reshaped,
    Shuffled,
    Size,
    Split,
)

if TYPE_CHECKING:
    from fadeout.graph.analysis import Network


def rule_of(node: fx.Node, network: "Network") -> Rule:
    """The rule for a node; the one that keeps all channels where there is none."""
    if node.op in ("placeholder", "get_attr"):
        return Leaf()
    if node.op == "call_module":
        plain = network.is_plain(node) and node.all_input_nodes
        rule = _MODULES.get(type(network.module(node)), Rule()) if plain else Rule()
        whole = isinstance(rule, HeadedAttention) and output_of(node, network) is None
        whole |= isinstance(rule, Placed) and len(network.sites(node)) > 1
        return Rule() if whole else rule
    if node.target is operator.getitem and isinstance(network.rules[source(node)], HeadedAttention):
        return AttentionOutput() if node.args[1] == 0 else Leaf()  # else weights that nobody uses
    if node.target is getattr:
        return _ATTRIBUTES.get(str(node.args[1]), Rule())
    if node.op == "call_method" or node.target in _KNOWN:
        name = name_of(node).rstrip("_")
        if name in _ARITHMETIC and len(node.all_input_nodes) == 1 and len(node.args) == 2:
            return Elementwise()  # with a number
        return _CALLS.get(name, Rule())
    return Rule()


def _modules(rule: Rule, *names: str) -> dict[type, Rule]:
    """The rule for modules of these names, which may stand for 1d, 2d and 3d versions."""
    kinds = [getattr(nn, name + suffix, None) for name in names for suffix in ("", "1d", "2d", "3d")]
    return {kind: rule for kind in kinds if kind is not None}


_MODULES: dict[type, Rule] = {
    **_modules(Linear(), "Linear"),
    **_modules(Convolution(), "Conv"),
    **_modules(TransposedConvolution(), "ConvTranspose"),
    **_modules(Embedding(), "Embedding"),
    **_modules(BatchNorm(), "BatchNorm", "SyncBatchNorm"),
    **_modules(GroupNorm(), "GroupNorm"),
    **_modules(LayerNorm(), "LayerNorm", "RMSNorm"),
    **_modules(PReLU(), "PReLU"),
    **_modules(
        Elementwise(),
        *(
            "CELU",
            "ELU",
            "GELU",
            "Hardshrink",
            "Hardsigmoid",
            "Hardswish",
            "Hardtanh",
            "LeakyReLU",
            "LogSigmoid",
        ),
        *("Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh"),
        *("Tanhshrink", "Threshold", "Identity", "Dropout"),
    ),
    **_modules(Linked(), "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Upsample"),
    **_modules(ZeroOnly(), "AvgPool", "LPPool"),
    **_modules(Padded(), "ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
    **_modules(Reshaped(), "Flatten", "Unflatten"),
    **_modules(Shuffled(), "PixelShuffle", "PixelUnshuffle"),
    **dict.fromkeys((nn.MultiheadAttention, Heads), HeadedAttention()),
    Place: Placed(),
}

_ATTRIBUTES: dict[str, Rule] = {"shape": Size(), "device": Ignored(), "dtype": Ignored(), "ndim": Ignored()}

_ARITHMETIC = {"add", "iadd", "sub", "isub", "mul", "imul", "div", "truediv", "itruediv"}

# By name, for functions and methods alike: torch.relu, F.relu, x.relu(), x.relu_()
_CALLS: dict[str, Rule] = {
    **dict.fromkeys(_ARITHMETIC, Arithmetic()),
    **dict.fromkeys(
        (
            *(
                "relu",
                "relu6",
                "leaky_relu",
                "elu",
                "selu",
                "celu",
                "gelu",
                "silu",
                "mish",
                "sigmoid",
                "tanh",
            ),
            *("hardswish", "hardsigmoid", "hardtanh", "softplus", "softsign", "logsigmoid", "dropout"),
            *(
                "dropout1d",
                "dropout2d",
                "dropout3d",
                "feature_dropout",
                "neg",
                "abs",
                "exp",
                "square",
                "clamp",
            ),
            *("contiguous", "clone", "detach", "float", "double", "pow"),
        ),
        Elementwise(),
    ),
    **dict.fromkeys(
        (
            *(f"{kind}pool{n}d" for kind in ("max_", "adaptive_avg_", "adaptive_max_") for n in (1, 2, 3)),
            *("interpolate", "upsample"),
        ),
        Linked(),
    ),
    **dict.fromkeys([f"avg_pool{n}d" for n in (1, 2, 3)], ZeroOnly()),
    **dict.fromkeys(("mean", "amax", "amin", "sum"), Reduced()),
    **dict.fromkeys(("flatten", "reshape", "view", "unflatten"), Reshaped()),
    **dict.fromkeys(("transpose", "permute", "swapaxes", "movedim", "unsqueeze", "squeeze"), Moved()),
    **dict.fromkeys(("cat", "concat", "concatenate"), Concatenated()),
    **dict.fromkeys(("chunk", "split"), Split()),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), Shuffled()),
    "getitem": Item(),
    "dim": Ignored(),
    "size": Size(),
    "pad": Padded(),
    "expand_as": ExpandedAs(),
    "scaled_dot_product_attention": Attention(),
}

# A function of one's own may have any name: only torch's are known by theirs.
_KNOWN = {
    getattr(home, name)
    for home in (torch, F, operator)
    for base in _CALLS
    for name in (base, base + "_")
    if hasattr(home, name)
}
