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
    return f"{text[:_LONG]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _text(value: Any, depth: int) -> str:
    if depth == 0:
        return type(value).__qualname__
    for kind, tell in _TELLERS:
        if isinstance(value, kind):
            return tell(value, depth - 1)
    return _call(value, depth - 1) if callable(value) else _object(value, depth - 1)


def _scalar(value: Any, depth: int) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)


def _tensor(value: Any, depth: int) -> str:
    return f"tensor {_by(value.shape)} {_dtype(value)}"


def _array(value: np.ndarray, depth: int) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
    return f"array {_by(value.shape)} {value.dtype} {digest}"


def _module(value: nn.Module, depth: int) -> str:
    own = [
        f"{name} {_by(p.shape)} {_dtype(p)}{'' if p.requires_grad else ' frozen'}"
        for name, p in value.named_parameters()
    ]
    return f"{type(value).__name__}({', '.join(own)})"


def _optimizer(value: Optimizer, depth: int) -> str:
    groups = [
        {key: one if key != "params" else len(one) for key, one in group.items() if _is_plain(key, one)}
        for group in value.param_groups
    ]
    return f"{type(value).__name__}({_sequence(groups, depth)})"


def _is_plain(key: str, value: Any) -> bool:
    return key == "params" or isinstance(value, bool | int | float)


def _class(value: type, depth: int) -> str:
    return f"class {value.__qualname__}"


def _mapping(value: Mapping[Any, Any], depth: int) -> str:
    return f"{{{', '.join(f'{_text(k, depth)}: {_text(v, depth)}' for k, v in value.items())}}}"


def _sequence(value: Any, depth: int) -> str:
    parts = [_text(part, depth) for part in value]
    return f"[{', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)}]"


def _partial(value: partial, depth: int) -> str:
    sampled = _samples(value)
    return sampled or f"{_text(value.func, depth)}{_text([*value.args, value.keywords], depth)}"


def _call(value: Callable[..., Any], depth: int) -> str:
    """A function by its name and code, and what it has of its surroundings."""
    sampled = _samples(value)
    if sampled:
        return sampled
    function = value.__func__ if isinstance(value, types.MethodType) else inspect.unwrap(value)
    if not isinstance(function, types.FunctionType):
        return getattr(value, "__qualname__", "") or _object(value, depth)
    inside = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    owner = [value.__self__] if isinstance(value, types.MethodType) else []
    made_of = _text([*owner, *inside, function.__defaults__, _code(function.__code__)], depth)
    return f"{function.__qualname__} ({hashlib.sha256(made_of.encode()).hexdigest()[:12]})"


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


def _by(shape: Any) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


_TELLERS: list[tuple[Any, Callable[[Any, int], str]]] = [
    ((str, bytes, bool, int, float, complex, type(None), np.generic), _scalar),
    (Tensor, _tensor),
    (np.ndarray, _array),
    (nn.Module, _module),
    (Optimizer, _optimizer),
    (type, _class),
    (Mapping, _mapping),
    ((list, tuple, set, frozenset), _sequence),
    (partial, _partial),
]
