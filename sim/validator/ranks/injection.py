"""DistributedDataParallel with buckets of any kind: its Reducer is given them and never rebuilds (B(ii))."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Logger, Reducer
from torch.nn.parallel import DistributedDataParallel

from sim.nouns.ddp_switches import ARGUMENTS

# What this module uses of the Reducer; a torch without one of these is refused.
_METHODS = (
    "_check_reducer_finalized",
    "_rebuild_buckets",
    "_reset_state",
    "prepare_for_backward",
)
_ARGUMENTS = ("params", "bucket_indices", "per_bucket_size_limits", "process_group")


def missing_for_injection() -> list[str]:
    """Names that injection needs and this torch lacks; empty where it works (seen on 2.9 to 2.13)."""
    needed = [f"Reducer.{name}" for name in _METHODS if not hasattr(Reducer, name)]
    needed += [f"Reducer.__init__({name})" for name in _ARGUMENTS if not _takes(name)]
    if not hasattr(DistributedDataParallel, "_ddp_init_helper"):
        needed.append("DistributedDataParallel._ddp_init_helper")
    return needed


def _takes(argument: str) -> bool:
    """Whether this torch's Reducer takes ``argument``: its docstring is its only signature."""
    return f"{argument}: " in (Reducer.__init__.__doc__ or "")


class _FixedReducer:
    """A Reducer whose buckets stay as they are; all else is the real one's.

    ``real`` is for those who need torch's own object (communication hooks, the logger).
    """

    def __init__(self, real: Reducer, clears: bool) -> None:
        self.real = real
        self._clears = clears

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _rebuild_buckets(self) -> bool:
        """Rebuild nothing, at the start of forward; raise as torch does if a reduction is unfinished."""
        self.real._check_reducer_finalized()
        return False

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        """Drop what the last backward recorded for a rebuild, then do what torch does at the end of forward.

        Dropped here and not at the start of forward, as it also disarms the hooks, which the line after
        arms again. A Reducer that looks for unused parameters records nothing for a rebuild, and
        would forget which parameters were used under ``no_sync``.
        """
        if self._clears:
            self.real._reset_state()
        self.real.prepare_for_backward(outputs)


class InjectedDataParallel(DistributedDataParallel):
    """Stock DistributedDataParallel whose Reducer has ``bucket_indices`` from iteration 1 on.

    Any partition in any order within the rule of one dtype and device per bucket (A8.3). The rest,
    switches and hooks included, is DistributedDataParallel's own; ``mixed_precision`` is not supported.
    """

    def __init__(self, module: nn.Module, bucket_indices: Sequence[Sequence[int]], **ddp_kwargs: Any) -> None:
        self._injected = [list(bucket) for bucket in bucket_indices]
        super().__init__(module, **ddp_kwargs)

    def _ddp_init_helper(
        self,
        parameters: list[nn.Parameter],
        expect_sparse_gradient: list[bool],
        param_to_name_mapping: dict[int, str],
        static_graph: bool,
    ) -> None:
        """As torch's own, but with our buckets and without computing any."""
        offered: dict[str, Any] = {
            "params": parameters,
            "bucket_indices": self._injected,
            "per_bucket_size_limits": [sys.maxsize] * len(self._injected),  # torch ignores it (A2.9)
            "process_group": self.process_group,
            "expect_sparse_gradients": expect_sparse_gradient,
            "bucket_bytes_cap": self.bucket_bytes_cap,
            "param_to_name_mapping": param_to_name_mapping,
            **{switch.name: getattr(self, switch.name, switch.default) for switch in ARGUMENTS},
        }
        reducer = Reducer(**{name: value for name, value in offered.items() if _takes(name)})
        self.logger = Logger(reducer)
        reducer.set_logger(self.logger)
        self.logger.set_construction_data_and_log(
            type(self.module).__name__,
            self.device_ids or [],
            -1 if self.output_device is None else self.output_device,
            bool(self.broadcast_buffers),
            any(isinstance(module, nn.SyncBatchNorm) for module in self.module.modules()),
            static_graph,
        )
        fixed: Any = _FixedReducer(reducer, clears=not self.find_unused_parameters)
        self.reducer = fixed
        self._passing_sync_batchnorm_handle(self.module)  # type: ignore[no-untyped-call]

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """As torch's; the hook goes to the real Reducer."""
        with _real_reducer(self):
            super().register_comm_hook(state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        with _real_reducer(self):
            super()._register_builtin_comm_hook(comm_hook_type)  # type: ignore[no-untyped-call]


@contextmanager
def _real_reducer(ddp: InjectedDataParallel) -> Iterator[None]:
    """Meanwhile ``ddp.reducer`` is torch's own object, which its C++ functions insist on."""
    fixed: Any = ddp.reducer
    ddp.reducer = fixed.real
    try:
        yield
    finally:
        ddp.reducer = fixed
