"""What torch.compile means for a replay (A8.10).

Dynamo keeps its graphs with the code of ``forward``, so all lanes of one process would run the graph of
the lane that came first, cut for that lane's buckets or, in the plain lane, not cut at all. Each lane
therefore gets code of its own, and a lane whose first step compiles nothing is refused.
"""

import sys
from types import FunctionType
from typing import Any

from torch import nn

from sim.errors import NotModelledError


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model`` or a part of it went through torch.compile."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    return any(
        isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl is not None
        for module in model.modules()
    )


def give_own_code(model: nn.Module, number: int) -> None:
    """Let every module of the user's own classes run a copy of its ``forward``; ``number`` is the lane's."""
    classes: dict[type[nn.Module], type[nn.Module]] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__module__.partition(".")[0] == "torch" or not isinstance(kind.forward, FunctionType):
            continue
        if kind not in classes:
            classes[kind] = type(kind.__name__, (kind,), {"forward": _copied(kind.forward, number)})
        module.__class__ = classes[kind]


def _copied(function: FunctionType, number: int) -> FunctionType:
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{number}")
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def graphs_compiled() -> int:
    """How many graphs Dynamo has captured in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def check_compiled_anew(before: int, lane: str) -> None:
    """Raise ``NotModelledError`` unless graphs were compiled since ``before``."""
    if graphs_compiled() == before:
        raise NotModelledError(
            f"model: torch.compile gave lane {lane!r} the graph of another lane; replay the model without "
            f"torch.compile"
        )
