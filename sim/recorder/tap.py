"""A communication hook that does what DDP does without one, and stamps buckets while it is recorded.

A Reducer takes one hook and never gives it back, so the hook outlives the recording: outside of one it only
all-reduces. With DDP's own reduction, gradients are bitwise those of DDP without a hook.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError
from sim.recorder.clocks import Stamp

Future: TypeAlias = torch.futures.Future[torch.Tensor]
CommHook = Callable[[Any, GradBucket], Future]


def ddp_log(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What DDP's logger says of it (A4)."""
    log: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return log


@dataclass(slots=True, kw_only=True)
class BucketStamps:
    """One bucket of one backward; stamps that have not been made yet are None."""

    num_bytes: int
    parameters: tuple[int, ...]
    ready: Stamp
    launch: Stamp = None
    end: Stamp = None


@dataclass(slots=True, kw_only=True)
class Tap:
    """The state of the hook: how buckets are reduced, and where stamps go (``rows`` None: nowhere).

    ``wrapped`` is the user's own hook, None for DDP's all-reduce. ``places`` gives a parameter's
    index by its ``id``.
    """

    group: Any
    divides: bool
    wrapped: CommHook | None
    wrapped_state: Any
    places: dict[int, int]
    stamp: Callable[[], Stamp] | None = None
    rows: list[BucketStamps] | None = field(default=None)

    @property
    def name(self) -> str | None:
        """What the wrapped hook calls itself, None for DDP's own all-reduce."""
        return None if self.wrapped is None else getattr(self.wrapped, "__qualname__", repr(self.wrapped))


_taps: WeakKeyDictionary[DistributedDataParallel, Tap] = WeakKeyDictionary()


def attach(
    ddp: DistributedDataParallel, *, places: dict[int, int], wrap: CommHook | None, wrap_state: Any
) -> Tap:
    """The tap of ``ddp``: the one that it has, or a new one.

    Raises:
        InputError: DDP has a communication hook that is not ours, another one is wrapped already, or
            its all-reduce cannot be repeated to the bit (``gradient_as_bucket_view`` on a number of
            ranks that is no power of two, where each gradient is divided or multiplied by turns).
    """
    tap = _taps.get(ddp)
    if tap is not None:
        if wrap is not None and (wrap, wrap_state) != (tap.wrapped, tap.wrapped_state):
            raise InputError(
                f"wrap: DDP can take one communication hook, and {tap.name or 'its all-reduce'} is recorded "
                f"on this one already; leave wrap out, or wrap the model in DistributedDataParallel anew"
            )
        return tap
    present = ddp_log(ddp).get("comm_hook")
    if present is not None:
        raise InputError(
            f"ddp_model: it has the communication hook {present}, and DDP can take only one; give "
            f"level='light', or do not register it and give wrap=that hook, wrap_state=its state"
        )
    batched = bool(getattr(ddp, "batched_grad_copy", False))
    if wrap is None and not can_round_alike(ddp):
        raise InputError(
            f"ddp_model: with gradient_as_bucket_view on {ddp.process_group.size()} ranks (no power of two) "
            f"a hook cannot round gradients as DDP itself does; give level='light'"
        )
    if wrap is not None:
        ddp._check_comm_hook(wrap)  # type: ignore[no-untyped-call]
    tap = Tap(group=ddp.process_group, divides=batched, wrapped=wrap, wrapped_state=wrap_state, places=places)
    try:
        ddp.register_comm_hook(tap, recorded_all_reduce)
    except RuntimeError as error:
        raise InputError(
            f"ddp_model: DDP refuses a communication hook: {error}; give level='light'"
        ) from None
    _taps[ddp] = tap
    return tap


def can_round_alike(ddp: DistributedDataParallel) -> bool:
    """Whether a hook can round gradients as DDP itself does, to the bit."""
    world_size = ddp.process_group.size()
    is_power_of_two = not world_size & (world_size - 1)
    batched = bool(getattr(ddp, "batched_grad_copy", False))
    return is_power_of_two or batched or not ddp.gradient_as_bucket_view


def tap_of(ddp: DistributedDataParallel) -> Tap | None:
    """The tap that ``ddp`` has, of this recording or an earlier one."""
    return _taps.get(ddp)


def forget(ddp: DistributedDataParallel) -> None:
    """The Reducer that had the hook is gone, and the tap with it."""
    _taps.pop(ddp, None)


def recorded_all_reduce(state: Tap, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket as DDP does (or as the wrapped hook does) and stamp it where ``state`` says so."""
    rows, stamp = state.rows, state.stamp
    if rows is None or stamp is None:
        future, read = _launch(state, bucket)
        return future if state.wrapped is not None else future.then(read)
    row = BucketStamps(
        num_bytes=_num_bytes(bucket.buffer()),
        parameters=tuple(state.places.get(id(parameter), -1) for parameter in bucket.parameters()),
        ready=stamp(),
    )
    rows.append(row)
    future, read = _launch(state, bucket)
    row.launch = stamp()

    def done(finished: torch.futures.Future[Any]) -> torch.Tensor:
        row.end = stamp()
        return read(finished)

    return future.then(done)


def _launch(
    tap: Tap, bucket: GradBucket
) -> tuple[torch.futures.Future[Any], Callable[[torch.futures.Future[Any]], torch.Tensor]]:
    """Start reducing a bucket; its future, and what makes the bucket's tensor of it."""
    if tap.wrapped is not None:
        return tap.wrapped(tap.wrapped_state, bucket), _whole
    buffer = bucket.buffer()
    if tap.divides or buffer.is_sparse:
        buffer.div_(tap.group.size())
    else:
        buffer.mul_(1.0 / tap.group.size())  # what the Reducer does while it copies gradients in (A3.4)
    return tap.group.allreduce([buffer]).get_future(), _first


def _first(finished: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return finished.value()[0]


def _whole(finished: Future) -> torch.Tensor:
    return finished.value()


def _num_bytes(buffer: torch.Tensor) -> int:
    if buffer.is_sparse:
        return buffer._indices().nbytes + buffer._values().nbytes
    return buffer.nbytes
