"""What is hung onto a model that trains: hooks on forwards, gradients, ends of backward and steps of torch's
optimizers, and a communication hook that does what DDP does without one.

``Watch`` has the hooks and tells what happens; ``StepWatch`` stamps it and makes steps of it. Nothing is
patched, no collective is added and no stamp is waited for. A step begins with the first forward (gradients
enabled) after an optimizer step, so that evaluation under ``no_grad`` is not seen; ``step()`` ends one by
hand.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from sim.errors import InputError
from sim.nouns.recording import RecordedBackward, RecordedBucket, RecordedStep
from sim.recorder.clocks import Clock, Stamp, is_captured

MOST_BACKWARDS = 1024  # in one step: beyond it, nobody steps

# runs a function at the end of the backward that is running; DDP finalizes in such a callback (A3.9)
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_DIVIDES = "batched_grad_copy"  # with which DDP divides whole buckets, and multiplies no gradient before
_task_of_autograd = torch._C._current_graph_task_id  # -1 outside of a backward
_log = logging.getLogger(__name__)

Future: TypeAlias = torch.futures.Future[torch.Tensor]  # the annotation that DDP asks of a hook
CommHook = Callable[[Any, GradBucket], Future]


class OwnHook:
    """A hook that acts on its own module only: copying or pickling makes it a function that does nothing.

    So a copied module is not followed, and a pickled one can be loaded where bucketsim is not installed.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # traced, its stamps are a graph's own events
    def __call__(self, *given: Any) -> Any:
        """As torch calls a hook, before or after the forward."""
        return self._act(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext, "__exit__")  # which takes anything, and returns None


class Watch:
    """Hooks on ``model`` and on its gradients until ``close``.

    ``_after_backward`` comes once more where a re-entrant checkpoint ran its part of backward as a task of
    its own: the last one ends the backward.
    """

    def __init__(self, model: nn.Module, gradients: Sequence[tuple[int, nn.Parameter]]) -> None:
        self._model = model
        self._gradients = gradients  # whose accumulation is told, and by which number
        self._handles: list[Any] = []
        self._task: int | None = None  # of autograd, in which the end of backward was last asked for

    def open(self) -> None:
        """Put the hooks on."""
        self._handles = [self._model.register_forward_hook(OwnHook(self._after_model))]
        for index, parameter in self._gradients:
            hook = self._gradient_hook(index)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Take the hooks off."""
        while self._handles:
            self._handles.pop().remove()

    def _after_model(self, model: nn.Module, _: Any, output: Any) -> None:
        if model is self._model and torch.is_grad_enabled():
            self._after_forward(output)

    def _gradient_hook(self, index: int) -> Callable[[torch.Tensor], None]:
        """What runs when the gradient has been accumulated, ahead of the Reducer's hook (A3.2)."""
        on_gradient = self._on_gradient

        def hook(_: torch.Tensor) -> None:
            if on_gradient(index) and (task := _task_of_autograd()) != self._task:
                # ahead of the Reducer's own callback, which it queues behind its last launch (A3.9)
                self._task = task
                _queue_callback(self._after_backward)

        return hook

    def _after_forward(self, output: Any) -> None:
        """A forward ended, gradients enabled."""

    def _on_gradient(self, index: int) -> bool:
        """A gradient has been accumulated; whether the end of its backward is to be told."""
        return True

    def _after_backward(self) -> None:
        """The compute lane is through, and nothing has been waited for yet."""


# ---- buckets, seen by a communication hook


def ddp_log(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What DDP's logger says of it (A4)."""
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]


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

    A Reducer takes one hook and never gives it back, so the hook outlives the recording: outside of one it
    only reduces. ``wrapped`` is the user's own hook, None for DDP's all-reduce; with that, gradients are
    bitwise those of DDP without a hook. ``places`` gives a parameter's index by its ``id``.
    """

    group: Any
    divides: bool
    wrapped: CommHook | None
    wrapped_state: Any
    places: dict[int, int] = field(default_factory=dict)
    stamp: Callable[[], Stamp] = time.perf_counter_ns
    rows: list[BucketStamps] | None = None

    @property
    def name(self) -> str | None:
        """What the wrapped hook calls itself, None for DDP's own all-reduce."""
        return None if self.wrapped is None else getattr(self.wrapped, "__qualname__", repr(self.wrapped))


taps: WeakKeyDictionary[DistributedDataParallel, Tap] = WeakKeyDictionary()


def attach(ddp: DistributedDataParallel, wrap: CommHook | None = None, wrap_state: Any = None) -> Tap:
    """The tap of ``ddp``: the one that it has, or a new one.

    Raises ``InputError`` where DDP has a hook that is not ours, another one is wrapped already, or its
    all-reduce cannot be repeated to the bit (``can_round_alike``).
    """
    if (tap := taps.get(ddp)) is not None:
        if wrap is not None and (wrap, wrap_state) != (tap.wrapped, tap.wrapped_state):
            has = tap.name or "its all-reduce"
            raise InputError(f"wrap: DDP can take one communication hook, and has {has}; leave wrap out")
        return tap
    if (present := ddp_log(ddp).get("comm_hook")) is not None:
        raise InputError(
            f"ddp_model: it has the communication hook {present}, and DDP can take only one; give "
            f"level='light', or do not register it and give wrap=that hook, wrap_state=its state"
        )
    group = ddp.process_group
    if wrap is None and not can_round_alike(ddp):
        raise InputError(
            f"ddp_model: with gradient_as_bucket_view on {group.size()} ranks (no power of two) a hook "
            f"cannot round gradients as DDP itself does; give level='light'"
        )
    tap = Tap(group=group, divides=getattr(ddp, _DIVIDES, False), wrapped=wrap, wrapped_state=wrap_state)
    ddp.register_comm_hook(tap, recorded_all_reduce)
    taps[ddp] = tap
    return tap


def can_round_alike(ddp: DistributedDataParallel) -> bool:
    """Whether a hook can round gradients as DDP itself does, to the bit: not with ``gradient_as_bucket_view``
    on a number of ranks that is no power of two, where each gradient is divided or multiplied by turns.
    """
    is_power_of_two = ddp.process_group.size().bit_count() == 1
    return is_power_of_two or getattr(ddp, _DIVIDES, False) or not ddp.gradient_as_bucket_view


def recorded_all_reduce(state: Tap, bucket: GradBucket) -> Future:
    """Reduce a bucket as DDP does (or as the wrapped hook does) and stamp it where ``state`` says so."""
    stamp, buffer, row = state.stamp, bucket.buffer(), None
    if state.rows is not None:
        sparse = (buffer._indices(), buffer._values()) if buffer.is_sparse else (buffer,)
        row = BucketStamps(
            num_bytes=sum(part.nbytes for part in sparse),
            parameters=tuple(state.places.get(id(parameter), -1) for parameter in bucket.parameters()),
            ready=stamp(),
        )
        state.rows.append(row)
    if state.wrapped is not None:
        future = state.wrapped(state.wrapped_state, bucket)
        if row is None:
            return future
    else:
        if state.divides or buffer.is_sparse:
            buffer.div_(state.group.size())
        else:
            buffer.mul_(1.0 / state.group.size())  # what the Reducer does while it copies gradients in (A3.4)
        future = state.group.allreduce([buffer]).get_future()
    if row is not None:
        row.launch = stamp()

    def done(finished: Any) -> Any:
        if row is not None:
            row.end = stamp()
        return finished.value() if state.wrapped is not None else finished.value()[0]

    return future.then(done)


# ---- steps, in stamps

_BEFORE = ("started_ns", "forward_start_ns", "forward_end_ns")
_AFTER = ("backward_ns", "sync_end_ns")


@dataclass(slots=True)
class BackwardStamps:
    """One forward and the backward that follows it.

    ``at`` has its stamps so far, by the fields of a ``RecordedBackward`` that they become; ``fired`` is the
    number of firings that had come when it ended.
    """

    synchronised: bool
    forwards: int
    at: dict[str, Stamp]
    fired: int = 0
    firings: list[tuple[int, Stamp]] = field(default_factory=list)
    buckets: list[BucketStamps] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether forward and backward ran to their ends (neither raised)."""
        return self.at.keys() == {*_BEFORE, *_AFTER} and all(row.end is not None for row in self.buckets)

    def recorded(self, clock: Clock, step_start: Stamp, count: int) -> RecordedBackward:
        """What is up to the end of forward from the start of the step, all else from there (A3.1), in ns."""

        def from_forward(stamp: Stamp) -> int:
            return max(0, clock.between_ns(self.at["forward_end_ns"], stamp))

        at_ns: dict[str, Any] = {name: clock.between_ns(step_start, self.at[name]) for name in _BEFORE}
        at_ns |= {name: from_forward(self.at[name]) for name in _AFTER}
        ready = {index: from_forward(stamp) for index, stamp in self.firings}  # of each the last
        uses = Counter(index for index, _ in self.firings)
        return RecordedBackward(
            # A forward with gradients and without backward leaves the Reducer armed: the next backward is
            # reduced even under no_sync.
            synchronised=self.synchronised or bool(self.buckets),
            forwards=self.forwards,
            **at_ns,
            ready_ns=tuple(map(ready.get, range(count))),
            uses={index: times for index, times in uses.items() if times > 1},
            buckets=tuple(
                RecordedBucket(
                    index=place,
                    num_bytes=row.num_bytes,
                    ready_ns=from_forward(row.ready),
                    launch_ns=from_forward(row.launch),
                    end_ns=from_forward(row.end),
                )
                for place, row in enumerate(self.buckets)
            ),
        )


@dataclass(slots=True, kw_only=True)
class StepStamps:
    """One optimizer step; an optimizer that steps inside backward has no end of its own."""

    number: int
    start: Stamp
    started_at_ns: int = field(default_factory=time.time_ns)
    backwards: list[BackwardStamps] = field(default_factory=list)
    end: Stamp = None
    is_optimizers: bool = False  # the end, and not that of a call of ``step()``
    compiled: bool = False
    kept: bool = False

    @property
    def last(self) -> Stamp:
        """The stamp that is made last, and so reached last."""
        return self.backwards[-1].at["sync_end_ns"] if self.end is None else self.end

    def fired(self) -> tuple[int, ...]:
        """Parameters in the order in which their hooks fired last, in the last backward."""
        return tuple(dict.fromkeys(index for index, _ in reversed(self.backwards[-1].firings)))[::-1]

    def recorded(self, clock: Clock, count: int) -> RecordedStep:
        """In ns, once all of it has been reached; ``count`` is the number of parameters."""
        after_ns = max(0, clock.between_ns(self.backwards[-1].at["sync_end_ns"], self.last))
        return RecordedStep(
            step=self.number,
            started_at_ns=self.started_at_ns,
            step_ns=clock.between_ns(self.start, self.last),
            optimizer_ns=after_ns if self.is_optimizers else None,
            backwards=tuple(backward.recorded(clock, self.start, count) for backward in self.backwards),
            compiled=self.compiled,
            kept=self.kept,
        )


class StepWatch(Watch):
    """Stamps by the ``clock`` of its device what a ``model``, under DDP or bare, does with the ``parameters``
    that it trains, and keeps each step that has ended in ``steps``.

    ``hooked`` are indices of those whose gradients are seen (None: all); one that is ready last is enough for
    the end of backward.
    """

    where: object = "step"  # that warnings begin with

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        clock: Clock,
        *,
        hooked: Sequence[int] | None = None,
    ) -> None:
        seen = range(len(parameters)) if hooked is None else hooked
        super().__init__(model, [(index, parameters[index]) for index in seen])
        self.steps: deque[StepStamps] = deque()
        self.steps_recorded = 0
        self._clock = clock
        self._tap: Tap | None = None  # sees the buckets of ``model``
        self._places = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._number = 0
        self._step: StepStamps | None = None
        self._backward: BackwardStamps | None = None
        self._unanswered = 0  # forwards with gradients since the last backward
        self._stepped = False
        self._compiled: bool | None = None
        self._parameters = parameters
        self._last: nn.Parameter | None = None  # whose gradient came last in the step before

    def open(self) -> None:
        """Put the hooks on."""
        if self._tap is not None:
            self._tap.stamp, self._tap.places = self._clock.stamp, self._places
        super().open()
        is_ddp = isinstance(self._model, DistributedDataParallel)
        inner: Any = self._model.module if is_ddp else self._model
        self._handles += [
            self._model.register_forward_pre_hook(OwnHook(self._before_model), prepend=True),
            inner.register_forward_pre_hook(OwnHook(self._before_inner), prepend=is_ddp),
            register_optimizer_step_post_hook(OwnHook(self._after_optimizer)),
        ]

    def close(self) -> None:
        """Take the hooks off; a step that has not ended is dropped."""
        super().close()
        self._close_backward()
        self._step = None

    def step(self) -> None:
        """End a step here: call it after ``optimizer.step()``, also where that step was skipped."""
        if self._step is not None:
            if self._step.end is None:
                self._step.end = self._clock.stamp()
            self._end_step()

    def _step_ended(self) -> None:
        """A step is over, and in ``steps`` if a backward ended in it."""

    def _give_up(self, why: str) -> None:
        """No more steps can be seen."""
        _log.warning("%s: recording stops here: %s", self.where, why)
        self.close()

    def _before_model(self, model: nn.Module, *_: Any) -> None:
        # in a backward a checkpoint of all of the model computes it again
        if model is not self._model or not torch.is_grad_enabled() or _task_of_autograd() != -1:
            return
        self._close_backward()
        if is_captured():  # events of a capture cannot be read, nor asked for while it lasts
            if self._stepped:
                self._keep_step()
            self._give_up("the step goes into a CUDA graph, which runs no hooks; record without graphs")
        elif self._stepped:
            self._end_step()
        elif self._step is not None and len(self._step.backwards) == MOST_BACKWARDS:
            self._give_up(f"{MOST_BACKWARDS} backwards without an optimizer step; call step() after each")
        if not self._handles:
            return
        now = self._clock.stamp()
        if self._step is None:
            self._number += 1
        if self._step is None or not self._step.backwards:
            # a forward that no backward followed was an evaluation: the step starts only now
            self._step = StepStamps(number=self._number, start=now)
        self._unanswered += 1
        reduces = bool(getattr(self._model, "require_backward_grad_sync", False))
        self._backward = BackwardStamps(reduces, self._unanswered, {"started_ns": now})
        if self._tap is not None:
            self._tap.rows = self._backward.buckets

    def _before_inner(self, *_: Any) -> None:
        if self._backward is not None and "forward_start_ns" not in self._backward.at:
            self._backward.at["forward_start_ns"] = self._clock.stamp()

    def _after_forward(self, output: Any) -> None:
        if self._backward is not None and _task_of_autograd() == -1:
            self._backward.at["forward_end_ns"] = self._clock.stamp()
            if self._compiled is None:
                self._compiled = is_compiled(output)

    def _on_gradient(self, index: int) -> bool:
        if (backward := self._backward) is not None:
            backward.firings.append((index, self._clock.stamp()))
            if len(backward.firings) == 1 and self._step is not None and not self._step.backwards:
                last = None if self._last is self._parameters[index] else self._last
                self._step.kept = last is not None and last.grad is not None  # it is still to come
        return backward is not None

    def _after_backward(self) -> None:
        if (backward := self._backward) is not None and len(backward.firings) > backward.fired:
            backward.fired = len(backward.firings)
            backward.at["backward_ns"] = self._clock.stamp()
            _queue_callback(self._after_sync)

    def _after_sync(self) -> None:
        if self._backward is not None:
            self._backward.at["sync_end_ns"] = self._clock.stamp()

    def _close_backward(self) -> None:
        backward, self._backward = self._backward, None
        if self._tap is not None:
            self._tap.rows = None
        if backward is not None and self._step is not None and backward.firings:
            self._unanswered = 0
            if backward.is_complete:
                self._step.backwards.append(backward)

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        owned = any(id(one) in self._places for group in optimizer.param_groups for one in group["params"])
        if self._step is None or not owned:
            return
        self._stepped = True
        if _task_of_autograd() == -1:  # in a backward its end is still to come
            self._close_backward()
            self._step.end, self._step.is_optimizers = self._clock.stamp(), True

    def _keep_step(self) -> None:
        """The step is over: keep its stamps until they can be read."""
        self._close_backward()
        step, self._step, self._stepped = self._step, None, False
        if step is not None and step.backwards:
            step.compiled = self._compiled is True
            self._last = self._parameters[step.backwards[-1].firings[-1][0]]
            self.steps.append(step)
            self.steps_recorded += 1

    def _end_step(self) -> None:
        self._keep_step()
        self._step_ended()


def is_compiled(output: Any) -> bool:
    """Whether torch.compile made a backward that leads to one of these tensors."""
    leaves = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
    new = seen = {tensor.grad_fn for tensor in leaves if tensor.grad_fn is not None}
    while new:
        if any(node.name() == "CompiledFunctionBackward" for node in new):
            return True
        new = {after for node in new for after, _ in node.next_functions if after is not None} - seen
        seen = seen | new
    return False
