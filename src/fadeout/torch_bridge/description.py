"""What something is made of, as a text that is the same in every process that makes the same."""

import hashlib
import inspect
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

_MOMENTS = [number / 16 for number in range(17)]  # of progress, at which schedules are asked
_DEPTH = 6  # things inside things
_LONG = 200  # characters, after which a text is cut, and told from others by its digest


def describe(value: Any) -> str:
    """A text that tells a value from others, without addresses and devices; schedules by what they give.

    >>> describe(lambda progress: progress / 2) == describe(lambda p: 0.5 * p)
    True
    >>> describe({"lr": np.float64(0.1), "layers": nn.Linear(2, 3)})
    "{'lr': 0.1, 'layers': Linear(weight 3x2 float32, bias 3 float32)}"
    """
    text = _text(value, _DEPTH)
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}... ({_digest(text.encode())})"


def _text(value: Any, depth: int) -> str:
    if depth == 0:
        return type(value).__qualname__
    depth -= 1
    match value:
        case np.generic():  # before float, which some of these are
            return repr(value.item())
        case str() | bytes() | bool() | int() | float() | complex() | None:
            return repr(value)
        case Tensor():
            return f"tensor {_by(value.shape)} {_dtype(value)}"
        case np.ndarray():
            return f"array {_by(value.shape)} {value.dtype} {_digest(np.ascontiguousarray(value).tobytes())}"
        case nn.Module():
            return _module(value)
        case Optimizer():
            return f"{type(value).__name__}({_text(list(map(_plain, value.param_groups)), depth + 1)})"
        case type():
            return f"class {value.__qualname__}"
        case Mapping():
            return f"{{{', '.join(f'{_text(k, depth)}: {_text(v, depth)}' for k, v in value.items())}}}"
        case set() | frozenset():
            return f"[{', '.join(sorted(_text(part, depth) for part in value))}]"
        case list() | tuple():
            return f"[{', '.join(_text(part, depth) for part in value)}]"
        case partial():
            parts = (value.func, [*value.args, value.keywords])
            return _samples(value) or "".join(_text(part, depth) for part in parts)
        case Callable():
            return _samples(value) or _call(value, depth)
    return _object(value, depth)


def _module(module: nn.Module) -> str:
    own = [
        f"{name} {_by(p.shape)} {_dtype(p)}{'' if p.requires_grad else ' frozen'}"
        for name, p in module.named_parameters()
    ]
    return f"{type(module).__name__}({', '.join(own)})"


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a parameter group, and how many parameters it has."""
    counted = {**group, "params": len(group["params"])}
    return {key: value for key, value in counted.items() if isinstance(value, bool | int | float)}


def _call(value: Callable[..., Any], depth: int) -> str:
    """A function by its name and code, and what it has of its surroundings."""
    function = value.__func__ if isinstance(value, types.MethodType) else inspect.unwrap(value)
    if not isinstance(function, types.FunctionType):
        return getattr(value, "__qualname__", "") or _object(value, depth)
    inside = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    owner = [value.__self__] if isinstance(value, types.MethodType) else []
    made_of = _text([*owner, *inside, function.__defaults__, _code(function.__code__)], depth)
    return f"{function.__qualname__} ({_digest(made_of.encode())})"


def _code(code: types.CodeType) -> str:
    constants = [_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where a name has not been given a value yet
    except ValueError:
        return False
    return True


def _samples(value: Callable[..., Any]) -> str:
    """What a schedule gives from the start to the end; nothing where it is none."""
    try:
        inspect.signature(value).bind(0.5)
        return f"schedule {[float(value(moment)) for moment in _MOMENTS]}"
    except Exception:
        return ""


def _object(value: Any, depth: int) -> str:
    """Anything else by its class and what it carries."""
    try:
        carried = vars(value)
    except TypeError:
        return type(value).__qualname__
    return f"{type(value).__qualname__}({', '.join(f'{k}={_text(v, depth)}' for k, v in carried.items())})"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _by(shape: Any) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
