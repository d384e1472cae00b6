"""A candidate's system around a module: DDP with its switches and any buckets, or a textbook system."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Logger, Reducer
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError, ReplayError
from sim.nouns.assignment import CAP_KWARGS
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS
from sim.recorder.clocks import clock_for
from sim.systems.textbook import STYLES, Style
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
    launch = all_reduce if emulated is None else link_of(emulated, rank.device)
    asked = [] if noop is None else [(noop, False)]
    for candidate in rank.job.candidates:
        asked += [(candidate, False), (candidate, True)][: 1 + (noop is not None and candidate.is_traced)]
    lanes = []
    for candidate, is_traced in asked:
        module, around = make()
        model, observe = _wrap(module, candidate)
        recorder = Recorder(clock.stamp, divisor if emulated is None else 1, launch)
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
    if assignment is not None and assignment.policy in STYLES:
        system = TextbookModule(module, STYLES[assignment.policy], assignment.bucket_indices)
        return system, lambda: system.bucket_indices
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
    index = {id(parameter): place for place, (_, parameter) in enumerate(reduced_parameters(ddp.module))}
    buckets: Any = ddp.reducer._get_zeros_like_grad_buckets()
    return [[index[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def reduced_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """What DDP reduces of ``module``, in its order: what requires grad and is not to be ignored."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return [(n, p) for n, p in module.named_parameters() if p.requires_grad and n not in ignored]


# Gradient averaging that is not DDP's, for real: the systems of A6 and A7. The rows of ``STYLES``, and the
# buckets, are those that the simulator plays; how a system does it is here.


class Bucket:
    """Parameters whose gradients travel together, in the order of ``indices``.

    A communication hook is handed it: it has the part of torch's ``GradBucket`` that hooks use.
    """

    def __init__(self, number: int, indices: Sequence[int], trained: Sequence[nn.Parameter]) -> None:
        self.number, self.indices = number, list(indices)
        self._parameters = [trained[index] for index in indices]
        self.flat: Tensor | None = None  # what is, or was last, on the wire
        self.missing: set[int] = set()  # in this backward

    def index(self) -> int:
        """The bucket's number."""
        return self.number

    def buffer(self) -> Tensor:
        """What is to be reduced, in place."""
        assert self.flat is not None
        return self.flat

    def parameters(self) -> list[nn.Parameter]:
        """Whose gradients these are."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """The gradients as they are now; None, against the annotation, where one has not come yet."""
        return [parameter.grad for parameter in self._parameters]  # type: ignore[misc]

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one a parameter, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


Hook = Callable[[Any, Any], torch.futures.Future[Any]]


class TextbookModule(nn.Module):
    """A module whose gradients are averaged over ranks when ``backward()`` returns.

    Waiting and all that follows happens in a callback that autograd runs when backward's work is over, as in
    DistributedDataParallel (A3.9). No bucket waits for its turn; DDP's do (A3.5): here ranks with different
    ready orders launch differently, and their collectives do not match.

    By its last parameter's hook a bucket is sent as published, faults and all (A6.1). Where another of its
    gradients comes later, flattening raises ``TypeError`` on gradients that were set to None, and sends stale
    values without a word on gradients that were zeroed in place; the late one is then overwritten (A6.4). A
    bucket whose watched parameter is not used is never sent. In all other styles ``backward()`` raises
    ``ReplayError`` for a parameter that was not used (A3.21) or was ready twice (A8.5), ``InputError`` for a
    sparse gradient.

    Args:
        module: what is trained; parameters that do not require grad are left alone.
        style: how.
        bucket_indices: which parameters, of those that are trained, travel together.
    """

    def __init__(self, module: nn.Module, style: Style, bucket_indices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.module = module
        self._style = style
        named = [(name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad]
        self._names, self._trained = zip(*named, strict=True)
        self._buckets = [Bucket(number, part, self._trained) for number, part in enumerate(bucket_indices)]
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._views: dict[int, Tensor] = {}
        for bucket in self._buckets if style.by_size and style.copies != "launch" else ():
            first = bucket.parameters()[0]
            numel = sum(parameter.numel() for parameter in bucket.parameters())
            bucket.flat = torch.empty(numel, dtype=first.dtype, device=first.device)
            self._views |= zip(bucket.indices, bucket.split(bucket.flat), strict=True)
        self._adds_into_views = bool(self._views) and style.copies is None
        self._divisor = dist.get_world_size()
        self._hook: tuple[Hook, Any] | None = None
        self._synchronises, self._in_backward = True, False
        self._under_way: list[tuple[Bucket, Tensor, torch.futures.Future[Any]]] = []
        lasts = [bucket.indices[-1] for bucket in self._buckets]
        for index in lasts if style.by_last else self._bucket_of:
            watch = partial(self._on_gradient, index)
            self._trained[index].register_post_accumulate_grad_hook(watch)

    @property
    def bucket_indices(self) -> list[list[int]]:
        """The buckets by parameter index, in the order in which they were cut."""
        return [bucket.indices for bucket in self._buckets]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's; whatever a backward that failed has left behind is forgotten.

        Where gradients are views of the storage, each that is None becomes a zeroed view again: backward
        adds into it (A7.4).
        """
        self._in_backward = False
        self._under_way.clear()
        for index, view in self._views.items() if self._adds_into_views else ():
            if self._trained[index].grad is None:
                self._trained[index].grad = view.zero_()
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in this context accumulate gradients and send nothing."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` reduce buckets; as in DDP, nothing is divided then (A3.17).

        The hook returns a future of the reduced tensor, or of a list that begins with it.
        """
        self._hook = (hook, state)
        self._divisor = 1

    @torch.no_grad()
    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if not self._synchronises:
            return
        if not self._in_backward:
            self._in_backward = True
            for bucket in self._buckets:
                bucket.missing = set(bucket.indices)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_end)
        bucket = self._bucket_of[index]
        if (self._style.by_last or self._is_complete(bucket, index)) and self._style.overlaps:
            self._send(bucket)

    def _is_complete(self, bucket: Bucket, index: int) -> bool:
        """Count a gradient that has come, and put it where it belongs; whether it was the bucket's last."""
        gradient, named = self._trained[index].grad, f"parameter {index} ({self._names[index]})"
        if index not in bucket.missing:
            raise ReplayError(f"{named} was ready twice in one backward")
        if gradient is None or gradient.layout != torch.strided:
            raise InputError(f"{named}: its gradient is not dense")
        if self._style.copies == "arrival":
            self._views[index].copy_(gradient)
        elif self._adds_into_views and gradient.data_ptr() != self._views[index].data_ptr():
            raise ReplayError(
                f"{named}: its gradient is no longer a view of the bucket; do not set gradients between "
                f"forward and backward"
            )
        bucket.missing.remove(index)
        return not bucket.missing

    @torch.no_grad()
    def _on_end(self) -> None:
        self._in_backward = False
        unused = sorted(index for bucket in self._buckets for index in bucket.missing)
        if unused and not self._style.by_last:
            raise ReplayError(
                f"parameter {unused[0]} ({self._names[unused[0]]}) was not used in this backward; "
                f"{len(unused)} of {len(self._names)} parameters have no gradient to average"
            )
        for bucket in () if self._style.overlaps else self._buckets:
            self._send(bucket)
            self._wait()
        self._wait()

    def _send(self, bucket: Bucket) -> None:
        """Start to sum a bucket over ranks: its storage, its gradients flattened, or its one gradient."""
        if self._style.copies == "launch":
            bucket.flat = torch._utils._flatten_dense_tensors(bucket.gradients())  # type: ignore[no-untyped-call]
        elif not self._views:
            (bucket.flat,) = bucket.gradients()
        buffer = bucket.buffer()
        if self._hook is None:
            future: torch.futures.Future[Any] = dist.all_reduce(buffer, async_op=True).get_future()
        else:
            hook, state = self._hook
            future = hook(state, bucket)
        self._under_way.append((bucket, buffer, future))

    def _wait(self) -> None:
        """Wait for all that was launched, in that order, and make averages of each as soon as it is there."""
        for bucket, buffer, future in self._under_way:
            summed = future.wait()
            reduced = summed[0] if isinstance(summed, list) else summed
            if self._style.copies is not None:
                for part, gradient in zip(bucket.split(reduced), bucket.gradients(), strict=True):
                    torch.div(part, self._divisor, out=gradient)
            elif self._divisor != 1 or reduced is not buffer:
                torch.div(reduced, self._divisor, out=buffer)
            if not self._views:
                bucket.flat = None
        self._under_way.clear()
