"""DDP around a module, with a candidate's switches and any buckets."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Logger, Reducer
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from sim.nouns.assignment import CAP_KWARGS
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS
from sim.recorder.clocks import EventClock, clock_for
from sim.recorder.training_step import trained
from sim.validator.jobs import Candidate
from sim.validator.ranks.link import link_of
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import Lane, Recorder, Work, all_reduce, run_step

# What this module uses of the Reducer; a torch without one of these is refused.
_METHODS = "_check_reducer_finalized", "_rebuild_buckets", "_reset_state", "prepare_for_backward"
_ARGUMENTS = "params", "bucket_indices", "per_bucket_size_limits", "process_group"


def missing_for_injection() -> list[str]:
    """Names that injection needs and this torch lacks; empty where it works (seen on 2.9 to 2.15)."""
    needed = [f"Reducer.{name}" for name in _METHODS if not hasattr(Reducer, name)]
    needed += [f"Reducer.__init__({name})" for name in _ARGUMENTS if not _takes(name)]
    has_helper = hasattr(DistributedDataParallel, "_ddp_init_helper")
    return needed if has_helper else [*needed, "DistributedDataParallel._ddp_init_helper"]


def _takes(argument: str) -> bool:
    """Whether this torch's Reducer takes ``argument``: its docstring is its only signature."""
    return f"{argument}: " in (Reducer.__init__.__doc__ or "")


class FixedReducer(Reducer):
    """A Reducer whose buckets stay as they are; all else is torch's own."""

    def __init__(self, *, clears: bool, **given: Any) -> None:
        super().__init__(**given)
        self._clears = clears

    def _rebuild_buckets(self) -> bool:
        """Rebuild nothing, at the start of forward; raise as torch does if a reduction is unfinished."""
        self._check_reducer_finalized()
        return False

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        """Drop what the last backward recorded for a rebuild, then do what torch does at the end of forward.

        Dropping also disarms the hooks. So it is done here and not at the start of forward: torch's own
        method arms them again. A Reducer that looks for unused parameters drops nothing: it records nothing
        for a rebuild, and would forget which parameters were used under ``no_sync``.
        """
        if self._clears:
            self._reset_state()
        super().prepare_for_backward(outputs)


def fixed_reducer(
    ddp: DistributedDataParallel,
    bucket_indices: Sequence[Sequence[int]],
    parameters: list[nn.Parameter],
    expect_sparse_gradient: list[bool],
    param_to_name_mapping: dict[int, str],
    static_graph: bool,
) -> tuple[FixedReducer, Logger]:
    """A Reducer of ``ddp``'s parameters with these buckets and ``ddp``'s switches, and its logger."""
    offered: dict[str, Any] = {
        "params": parameters,
        "bucket_indices": [list(bucket) for bucket in bucket_indices],
        "per_bucket_size_limits": [sys.maxsize] * len(bucket_indices),  # torch ignores it (A2.9)
        "process_group": ddp.process_group,
        "expect_sparse_gradients": expect_sparse_gradient,
        "bucket_bytes_cap": ddp.bucket_bytes_cap,
        "param_to_name_mapping": param_to_name_mapping,
        **{name: getattr(ddp, name, one.default) for name, one in ARGUMENTS.items()},
    }
    known = {name: value for name, value in offered.items() if _takes(name)}
    reducer = FixedReducer(clears=not ddp.find_unused_parameters, **known)
    logger = Logger(reducer)
    reducer.set_logger(logger)
    logger.set_construction_data_and_log(
        type(ddp.module).__name__,
        ddp.device_ids or [],
        -1 if ddp.output_device is None else ddp.output_device,
        bool(getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True))),
        any(isinstance(module, nn.SyncBatchNorm) for module in ddp.module.modules()),
        static_graph,
    )
    return reducer, logger


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
        self.reducer, self.logger = fixed_reducer(
            self, self._injected, parameters, expect_sparse_gradient, param_to_name_mapping, static_graph
        )
        self._passing_sync_batchnorm_handle(self.module)  # type: ignore[no-untyped-call]


_NEVER = 2**31 - 1


def candidate_lanes(
    rank: Rank,
    make: Callable[[], tuple[nn.Module, Callable[[Any], Work]]],
    *,
    noop: Candidate | None,
    divisor: int = 1,
) -> list[Lane]:
    """A lane for each candidate of the job, and where ``noop`` is given that one, and one for each traced.

    With an emulated link every lane of DDP has a communication hook, and the noop lane shows what Python adds
    to a launch.

    Args:
        make: makes the module of a lane, and what makes of the system around it what steps work on.
        divisor: what a hook that stamps has to divide gradients by.
    """
    clock, emulated = clock_for(rank.device), rank.job.carrier.emulated
    launch, ends = all_reduce if emulated is None else link_of(emulated, rank.device), clock
    if rank.device.type == "cuda" and rank.job.carrier.name == "gloo":
        # Its thread, when the sum is on the host, has the compute stream, and all that is enqueued is ahead.
        ends = EventClock(rank.device, torch.Stream(rank.device))
    asked = [] if noop is None else [(noop, False)]
    for candidate in rank.job.candidates:
        asked += [(candidate, False), (candidate, True)][: 1 + (noop is not None and candidate.is_traced)]
    lanes = []
    for candidate, is_traced in asked:
        module, around = make()
        model, observe = _wrap(module, candidate)
        recorder = Recorder(clock.stamp, divisor if emulated is None else 1, launch, ends.stamp)
        if candidate is noop:
            model.register_comm_hook(None, noop_hook)
        elif is_traced or emulated is not None:
            model.register_comm_hook(None, recorder.hook)
        stamps = recorder if is_traced else None
        step = partial(run_step, model, around(model), stamps, **candidate.manner)
        lanes.append(Lane(name=candidate.name, step=step, observe=observe, is_traced=is_traced))
        rank.tell("built", lane=candidate.name)
    return lanes


def _wrap(module: nn.Module, candidate: Candidate) -> tuple[Any, Callable[[], list[list[int]]]]:
    """The system of a candidate around ``module``, its communication hook registered.

    Returns what is called in place of the module, and what reads back the buckets that it really uses.
    """
    assignment = candidate.assignment
    switches = {} if assignment is None else assignment.ddp_kwargs
    buckets = None
    if assignment is not None and candidate.is_injected:
        buckets = assignment.bucket_indices
        switches = {name: value for name, value in switches.items() if name not in CAP_KWARGS}
    ddp = build(module, switches, buckets)
    if assignment is not None and (name := assignment.settings.get("comm_hook")) is not None:
        hooks = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{HOOKS[name].module}")
        ddp.register_comm_hook(None, getattr(hooks, f"{name}_hook"))
    return ddp, partial(observed_buckets, ddp)


def build(
    module: nn.Module, ddp_kwargs: Mapping[str, Any], bucket_indices: Sequence[Sequence[int]] | None = None
) -> DistributedDataParallel:
    """DDP with the switches of an assignment; parameters are not broadcast.

    ``bucket_indices``, where given, are the Reducer's from iteration 1 on (B(ii)); otherwise stock DDP
    makes its own buckets from ``ddp_kwargs``. Its logger, which waits for the host in forward up to iteration
    11 and then never again (A4.3), never does.
    """
    if bucket_indices is None:
        ddp = DistributedDataParallel(module, init_sync=False, **ddp_kwargs)
    else:
        ddp = InjectedDataParallel(module, bucket_indices, init_sync=False, **ddp_kwargs)
    ddp._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]
    return ddp


def observed_buckets(ddp: DistributedDataParallel) -> list[list[int]]:
    """The buckets that the C++ Reducer now holds, in launch order, by parameter index.

    Stock DDP holds its first iteration's until the second forward (A2.6). Costs a zeroed copy of every
    bucket for the moment of the call; a sparse gradient needs one backward before.
    """
    reduced = trained(ddp.module, ddp.parameters_to_ignore)
    index = {id(parameter): place for place, (_, parameter) in enumerate(reduced)}
    buckets: Any = ddp.reducer._get_zeros_like_grad_buckets()
    return [[index[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def without_wrapper(parameters: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows of a name and facts, named within the module that holds all: a wrapper may add a loss to it."""
    paths = [str(name).split(".") for name, *_ in parameters]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    return [[path[shared:], *row[1:]] for path, row in zip(paths, parameters, strict=True)]
