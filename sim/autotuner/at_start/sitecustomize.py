"""Python runs this at its start under ``bucketsim autotune -- COMMAND``: each DDP made later gets a tuner.

Nothing is imported here but the standard library. When a process imports DistributedDataParallel, the class
is changed so that its constructor calls ``attach`` at its end. Other processes are left as they are. If the
machine has a ``sitecustomize`` of its own, it runs as it would have without this one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_OPTIONS = "BUCKETSIM_AUTOTUNE"  # as in sim.autotuner.unedited
_WAITS_FOR = "torch.nn.parallel.distributed"


class _Finder(MetaPathFinder):
    """Finds torch's DDP module, once, and has ``_Loader`` load it, which adds a tuner with ``options``."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch's DDP module; None for any other module."""
        if fullname != _WAITS_FOR:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._options)
        return spec


class _Loader(Loader):
    """Loads as ``inner`` does, and changes DistributedDataParallel so that each one made is tuned."""

    def __init__(self, inner: Loader, options: dict[str, Any]) -> None:
        self._inner, self._options = inner, options

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ``Loader`` has it."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As ``Loader`` has it."""
        self._inner.exec_module(module)
        _follow(module.DistributedDataParallel, self._options)


def _follow(ddp: Any, options: dict[str, Any]) -> None:
    make = ddp.__init__

    @wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        try:
            from sim.autotuner.attached import attach  # imports torch, which is complete only now
        except ImportError as error:  # a sim.py beside the script hides the package
            _say(str(error))
            return
        attach(self, options)

    ddp.__init__ = made


def _say(why: str) -> None:
    print(f"bucketsim autotune: {why}; nothing is tuned", file=sys.stderr)  # noqa: T201


def _run_the_machines_own() -> None:
    here = Path(__file__).parent
    before = list(sys.path)
    sys.path[:] = [place for place in before if Path(place) != here]
    ours = sys.modules.pop(__name__, None)
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        if ours is not None:
            sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    if _OPTIONS not in os.environ:
        pass  # only PYTHONPATH was passed on
    elif find_spec("sim") is None:
        _say(f"{sys.executable} has no bucketsim")
    else:
        sys.meta_path.insert(0, _Finder(json.loads(os.environ[_OPTIONS])))
    _run_the_machines_own()
