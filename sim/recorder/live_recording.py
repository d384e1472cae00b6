"""``sim.record``: what a user's own training loop does, written down rank by rank while it runs.

Hooks on the model, its parameters and torch's optimizers stamp what happens; nothing is patched, no
collective is added and no stamp is waited for. A step begins with the first forward (gradients
enabled) after an optimizer step, so that evaluation under ``no_grad`` is not seen; ``step()`` ends one
by hand.

Cost, by ``tests/bench/test_bench_live.py`` in processor time (one gloo rank, a noisy 2-core machine): 1 to
3 us a parameter with its share of the line that is written, 0.13 ms a bucket at the full level, and 0.08 ms a
bucket once the hook only reduces. A step of the bundled GPT, 250 ms with quartiles 5 to 7 ms apart, took 0.5
to 3.5 ms more.
"""

import errno
import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from sim.errors import InputError
from sim.formats.files import check_directory
from sim.nouns.devices import serialised_by
from sim.recorder.clocks import LiveClock, Stamp, clock_for, is_captured, stream_of
from sim.recorder.live_header import live_header, log_buckets, trained_parameters
from sim.recorder.surroundings import environment, restart
from sim.recorder.tap import BucketStamps, CommHook, Tap, attach
from sim.recorder.training_step import is_compiled

_LEVELS = ("full", "light")
_TIMES_ASKED_FOR_BUCKETS = 10
_MOST_BACKWARDS = 1024  # in one step: beyond it, nobody steps
_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT}

# runs a function at the end of the backward that is running; DDP finalizes in such a callback (A3.9)
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_log = logging.getLogger(__name__)
_recorded_now: WeakSet[DistributedDataParallel] = WeakSet()


@dataclass(slots=True, kw_only=True)
class BackwardStamps:
    """One forward and the backward that follows it; stamps that have not been made yet are None.

    ``task`` is autograd's task in which the end of backward was last asked for; ``fired`` the number of
    firings that had come when it ended.
    """

    started: Stamp
    synchronised: bool
    forwards: int
    forward_start: Stamp = None
    forward_end: Stamp = None
    end: Stamp = None
    sync_end: Stamp = None
    stream: object = None  # that forward began on
    is_aside: bool = False  # and gradients were accumulated on another
    task: int | None = None
    fired: int = 0
    firings: list[tuple[int, Stamp]] = field(default_factory=list)
    buckets: list[BucketStamps] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether forward and backward ran to their ends (neither raised)."""
        ends = (self.forward_start, self.forward_end, self.end, self.sync_end)
        return None not in ends and all(row.end is not None for row in self.buckets)

    def line(self, clock: LiveClock, step_start: Stamp, count: int) -> dict[str, Any]:
        """As JSON: the start from the start of the step, all else from the end of forward (A3.1), in ns."""

        def from_forward(stamp: Stamp) -> int:
            return max(0, clock.between_ns(self.forward_end, stamp))

        ready: list[int | None] = [None] * count
        uses: dict[int, int] = {}
        for index, stamp in self.firings:
            if ready[index] is not None:
                uses[index] = uses.get(index, 1) + 1
            ready[index] = from_forward(stamp)
        return {
            # A forward with gradients and without backward leaves the Reducer armed: the next backward is
            # reduced even under no_sync.
            "synchronised": self.synchronised or bool(self.buckets),
            "forwards": self.forwards,
            "started_ns": clock.between_ns(step_start, self.started),
            "forward_start_ns": clock.between_ns(step_start, self.forward_start),
            "forward_end_ns": clock.between_ns(step_start, self.forward_end),
            "backward_ns": from_forward(self.end),
            "sync_end_ns": from_forward(self.sync_end),
            "ready_ns": ready,
            "uses": uses,
            "buckets": [
                {
                    "index": place,
                    "num_bytes": row.num_bytes,
                    "ready_ns": from_forward(row.ready),
                    "launch_ns": from_forward(row.launch),
                    "end_ns": from_forward(row.end),
                }
                for place, row in enumerate(self.buckets)
            ],
        }


@dataclass(slots=True, kw_only=True)
class StepStamps:
    """One optimizer step; ``start`` None: it is counted and not recorded.

    ``optimizer_ends`` are those after backward: an optimizer that steps inside it has no end of its own.
    """

    number: int
    start: Stamp
    started_at_ns: int = field(default_factory=time.time_ns)
    backwards: list[BackwardStamps] = field(default_factory=list)
    optimizer_ends: list[Stamp] = field(default_factory=list)
    end: Stamp = None
    compiled: bool = False

    @property
    def aside(self) -> bool:
        """Whether gradients were accumulated on another stream than forward ran on."""
        return any(backward.is_aside for backward in self.backwards)

    @property
    def last(self) -> Stamp:
        """The stamp that is made last, and so reached last."""
        if self.optimizer_ends:
            return self.optimizer_ends[-1]
        return self.backwards[-1].sync_end if self.end is None else self.end

    def fired(self) -> list[int]:
        """Parameters in the order in which their hooks fired last, in the last backward."""
        last: dict[int, int] = {index: place for place, (index, _) in enumerate(self.backwards[-1].firings)}
        return sorted(last, key=last.__getitem__)

    def layout(self) -> list[list[int]] | None:
        """Buckets of the last synchronised backward, in launch order; None where none was seen."""
        for backward in reversed(self.backwards):
            if backward.buckets:
                return [list(row.parameters) for row in backward.buckets]
        return None

    def line(self, clock: LiveClock, count: int) -> dict[str, Any]:
        """As JSON; ``count`` is the number of parameters."""
        optimizer_ns = None
        if self.optimizer_ends:
            optimizer_ns = max(0, clock.between_ns(self.backwards[-1].sync_end, self.optimizer_ends[-1]))
        return {
            "kind": "step",
            "step": self.number,
            "started_at_ns": self.started_at_ns,
            "step_ns": clock.between_ns(self.start, self.last),
            "optimizer_ns": optimizer_ns,
            "backwards": [backward.line(clock, self.start, count) for backward in self.backwards],
            **({"compiled": True} if self.compiled else {}),
            **({"aside": True} if self.aside else {}),
        }


class Journal:
    """Appends one whole line with one write; after the first failure it warns once and stays closed."""

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            InputError: it exists already, or cannot be made for another reason than a full disk.
        """
        self.path = path
        self._handle: int | None = None
        try:
            check_directory(path.parent).mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(path, flags, 0o666)
        except OSError as error:
            if os.path.lexists(path):
                raise InputError(f"{path}: exists already; give a new or empty directory") from None
            if error.errno not in _OUT_OF_SPACE:
                raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None
            self._give_up(error.strerror or str(error))

    @property
    def is_open(self) -> bool:
        """Whether lines are still taken."""
        return self._handle is not None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; on a failure warn, keep what is there and take no more."""
        if self._handle is None:
            return
        text = (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            written = os.write(self._handle, text)
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        if written < len(text):
            self._give_up("the disk took only part of a line")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            os.close(handle)
        except OSError as error:
            _log.warning("%s: %s while closing; its last lines may be missing", self.path, error.strerror)

    def discard(self) -> None:
        """Close the file and take it away: nothing was recorded."""
        if self._handle is not None:
            self.close()
            self.path.unlink(missing_ok=True)

    def _give_up(self, reason: str) -> None:
        _log.warning(
            "%s: recording stops here (%s); what is there is kept and training goes on", self.path, reason
        )
        self.close()


def record(
    ddp_model: DistributedDataParallel,
    directory: str | os.PathLike[str],
    *,
    level: str = "full",
    every: int = 1,
    max_steps: int | None = None,
    wrap: CommHook | None = None,
    wrap_state: Any = None,
) -> AbstractContextManager["LiveRecording"]:
    """Record your own training loop: ``with sim.record(ddp_model, "recording"): ...``, on every rank.

    Each rank writes ``directory/rank-<r>.jsonl``; ``bucketsim import recording`` makes a Workload of them.

    Args:
        ddp_model: the DistributedDataParallel that is trained.
        directory: where the files go; made if it is not there. A start that is the launcher's Nth restart
            writes into ``restart-N`` in it.
        level: ``full`` sees every bucket through a communication hook, which stays and reduces as DDP does;
            ``light`` registers none and sees gradients, forward, backward and optimizer.
        every: record each Nth step only.
        max_steps: stop after so many recorded steps.
        wrap: your own communication hook, registered and recorded in place of DDP's all-reduce.
        wrap_state: its state.

    Raises:
        InputError: when it is entered: a model that cannot be recorded, an illegal argument, a file that is
            there already, a communication hook that is in the way; or when it is entered again.
    """
    made = _recording(ddp_model, directory, level, every, max_steps, wrap, wrap_state)
    return _Once(made)


class _Once(AbstractContextManager["LiveRecording"]):
    """A recording is made once; who wants another asks ``sim.record`` again."""

    def __init__(self, recording: AbstractContextManager["LiveRecording"]) -> None:
        self._recording: AbstractContextManager[LiveRecording] | None = recording
        self._exit = recording.__exit__

    def __enter__(self) -> "LiveRecording":
        recording, self._recording = self._recording, None
        if recording is None:
            raise InputError("record: this one was entered before; call sim.record again for another")
        return recording.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._exit(*raised)


@contextmanager
def _recording(
    ddp_model: DistributedDataParallel,
    directory: str | os.PathLike[str],
    level: str,
    every: int,
    max_steps: int | None,
    wrap: CommHook | None,
    wrap_state: Any,
) -> Iterator["LiveRecording"]:
    _check(ddp_model, level, every, max_steps, wrap)
    if not isinstance(directory, str | os.PathLike):
        raise InputError(f"directory: {directory!r:.60} is not legal; give the path of a directory")
    place = ddp_model.device
    named = trained_parameters(ddp_model)
    clock = clock_for(place)
    rank = dist.get_rank(ddp_model.process_group)
    told = environment(place)
    for why in serialised_by(told):
        _log.warning("sim.record: %s", why)
    journal = Journal(Path(directory, restart()) / f"rank-{rank}.jsonl")
    tap = None
    try:
        if level == "full":
            places = {id(parameter): index for index, (_, parameter) in enumerate(named)}
            tap = attach(ddp_model, places=places, wrap=wrap, wrap_state=wrap_state)
        journal.write(live_header(ddp_model, named, level=level, every=every, clock=clock.name))
    except BaseException:
        journal.discard()
        raise
    recording = LiveRecording(
        ddp=ddp_model,
        parameters=[parameter for _, parameter in named],
        clock=clock,
        journal=journal,
        tap=tap,
        every=every,
        max_steps=max_steps,
    )
    _recorded_now.add(ddp_model)
    recording.start()
    try:
        yield recording
    except BaseException:
        recording.stop(failed=True)
        raise
    else:
        recording.stop(failed=False)
    finally:
        _recorded_now.discard(ddp_model)


def _check(ddp: object, level: str, every: int, max_steps: int | None, wrap: object) -> None:
    if not isinstance(ddp, DistributedDataParallel):
        raise InputError(
            f"ddp_model: a {type(ddp).__name__} is not legal; give the DistributedDataParallel itself (of a "
            f"compiled one, the model that was given to torch.compile)"
        )
    if level not in _LEVELS:
        raise InputError(f"level: {level!r} is not legal; give one of {', '.join(_LEVELS)}")
    for name, value in (("every", every), ("max_steps", max_steps)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: {value!r} is not legal; give an integer >= 1")
    if wrap is not None and level != "full":
        raise InputError("wrap: a communication hook is recorded at level='full' only; leave wrap out")
    if ddp in _recorded_now:
        raise InputError("ddp_model: it is being recorded already; leave that context first")
    if ddp.is_multi_device_module or ddp.device.type not in ("cpu", "cuda"):
        raise InputError(f"ddp_model: it lies on {ddp.device}; it must lie on the CPU or on one GPU")
    if ddp._use_python_reducer or ddp._delay_all_reduce_all_params:
        raise InputError("ddp_model: it runs without DDP's Reducer, and so without buckets to record")


class LiveRecording:
    """A recording that is being made; ``sim.record`` hands it out."""

    def __init__(
        self,
        *,
        ddp: DistributedDataParallel,
        parameters: list[torch.nn.Parameter],
        clock: LiveClock,
        journal: Journal,
        tap: Tap | None,
        every: int,
        max_steps: int | None,
    ) -> None:
        self.path = journal.path
        self.steps_recorded = 0
        self._ddp = ddp
        self._parameters = parameters
        self._members = {id(parameter) for parameter in parameters}
        self._clock = clock
        self._journal = journal
        self._tap = tap
        self._every = every
        self._max_steps = max_steps
        self._handles: list[Any] = []
        self._owned: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()
        self._number = 0
        self._step: StepStamps | None = None
        self._backward: BackwardStamps | None = None
        self._unanswered = 0  # forwards with gradients since the last backward
        self._stepped = False
        self._unread: deque[StepStamps] = deque()
        self._layout: list[list[int]] | None = None
        self._asked = 0
        self._compiled: bool | None = None

    def step(self) -> None:
        """End a step here: call it after ``optimizer.step()``, also where that step was skipped."""
        if self._step is not None and not self._is_captured():
            if not self._step.optimizer_ends:
                self._step.end = self._clock.stamp()
            self._finish_step()

    def start(self) -> None:
        """Put the hooks on."""
        if self._tap is not None:
            self._tap.stamp = self._clock.stamp
        ddp = self._ddp
        # torch.compile(ddp) would trace the hooks, and make a graph's own events of theirs
        untraced: Any = torch.compiler.disable
        self._handles = [
            ddp.register_forward_pre_hook(untraced(self._before_ddp), prepend=True),
            ddp.module.register_forward_pre_hook(untraced(self._before_module), prepend=True),
            ddp.register_forward_hook(untraced(self._after_ddp)),
            register_optimizer_step_post_hook(untraced(self._after_optimizer)),
        ]
        for index, parameter in enumerate(self._parameters):
            hook = self._gradient_hook(index)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def stop(self, *, failed: bool) -> None:
        """Take the hooks off and write what is left; after a failure, only what needs no waiting."""
        if self._stepped:
            self._finish_step()
        self._take_off()
        self._write_steps(wait=not failed)
        if self._number and not self.steps_recorded and self._journal.is_open and not failed:
            _log.warning(
                "%s: no step was recorded; call recording.step() after each optimizer step", self.path
            )
        self._journal.write({"kind": "end", "failed": failed})
        self._journal.close()

    def _take_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._step = self._backward = None
        if self._tap is not None:
            self._tap.rows = self._tap.stamp = None

    def _before_ddp(self, *_: Any) -> None:
        if not torch.is_grad_enabled() or self._is_captured():
            return
        self._close_backward()
        if self._stepped:
            self._finish_step()
        elif self._step is not None and len(self._step.backwards) == _MOST_BACKWARDS:
            _log.warning(
                "%s: recording stops here: %d backwards without an optimizer step; call recording.step() "
                "after each",
                self.path,
                _MOST_BACKWARDS,
            )
            self._take_off()
        if not self._handles:
            return
        if self._step is None:
            self._number += 1
        if (self._number - 1) % self._every:
            self._step = self._step or StepStamps(number=self._number, start=None)
            return
        now = self._clock.stamp()
        if self._step is None or not self._step.backwards:
            # a forward that no backward followed was an evaluation: the step starts only now
            self._step = StepStamps(number=self._number, start=now)
        self._unanswered += 1
        self._backward = BackwardStamps(
            started=now,
            synchronised=self._ddp.require_backward_grad_sync,
            forwards=self._unanswered,
        )
        if self._tap is not None:
            self._tap.rows = self._backward.buckets

    def _before_module(self, *_: Any) -> None:
        if self._backward is not None and self._backward.forward_start is None:
            self._backward.forward_start = self._clock.stamp()
            self._backward.stream = stream_of(self._ddp.device)

    def _after_ddp(self, _: Any, __: Any, output: Any) -> None:
        if self._backward is not None and torch.is_grad_enabled():
            self._backward.forward_end = self._clock.stamp()
            if self._step is not None and self._compiled is None:
                self._compiled = is_compiled(output)

    def _gradient_hook(self, index: int) -> Any:
        """What runs when the gradient has been accumulated, ahead of the Reducer's hook (A3.2)."""
        stamp, device = self._clock.stamp, self._ddp.device

        def hook(_: torch.Tensor) -> None:
            backward = self._backward
            if backward is None:
                return
            if not backward.firings:
                backward.is_aside = stream_of(device) != backward.stream
            backward.firings.append((index, stamp()))
            task = torch._C._current_graph_task_id()
            if task != backward.task:
                # ahead of the Reducer's own callback, which it queues behind its last launch (A3.9), in
                # the same task: a re-entrant checkpoint runs its part of backward as a task of its own
                backward.task = task
                _queue_callback(self._after_backward)

        return hook

    def _after_backward(self) -> None:
        backward = self._backward
        if backward is not None and len(backward.firings) > backward.fired:
            backward.fired = len(backward.firings)
            backward.end = self._clock.stamp()
            _queue_callback(self._after_sync)

    def _after_sync(self) -> None:
        if self._backward is not None:
            self._backward.sync_end = self._clock.stamp()

    def _close_backward(self) -> None:
        backward, self._backward = self._backward, None
        if self._tap is not None:
            self._tap.rows = None
        if backward is None or self._step is None or not backward.firings:
            return
        self._unanswered = 0
        if backward.is_complete:
            self._step.backwards.append(backward)

    def _owns(self, optimizer: Optimizer) -> bool:
        owned = self._owned.get(optimizer)
        if owned is None:
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            owned = self._owned[optimizer] = any(id(parameter) in self._members for parameter in parameters)
        return owned

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        if self._step is None or not self._owns(optimizer) or self._is_captured():
            return
        self._stepped = True
        if torch._C._current_graph_task_id() != -1:
            return  # it steps inside backward, whose end is still to come
        self._close_backward()
        if self._step.start is not None:
            self._step.optimizer_ends.append(self._clock.stamp())

    def _is_captured(self) -> bool:
        """Whether what runs now goes into a CUDA graph: its replays run no hooks, so recording stops here.

        Events of a capture cannot be read, and while it lasts none may be asked for: that would end it.
        """
        if not is_captured(self._ddp.device):
            return False
        if self._handles:
            _log.warning(
                "%s: recording stops here: the step is captured in a CUDA graph, whose replays run no hooks; "
                "record the loop without graphs",
                self.path,
            )
            if self._stepped:
                self._keep_step()
            self._take_off()
        return True

    def _keep_step(self) -> None:
        """The step is over: keep its stamps until they can be read."""
        self._close_backward()
        step, self._step, self._stepped = self._step, None, False
        if step is not None and step.backwards:
            step.compiled = self._compiled is True
            self._unread.append(step)
            self.steps_recorded += 1

    def _finish_step(self) -> None:
        """Keep the step, and write those that can be read now."""
        self._keep_step()
        self._write_steps(wait=False)
        if self.steps_recorded == self._max_steps or not self._journal.is_open:
            self._take_off()

    def _write_steps(self, *, wait: bool) -> None:
        """Write the steps whose stamps have been reached; if a clock fails, warn and record no more."""
        clock = self._clock
        while self._unread:
            step = self._unread[0]
            try:
                if wait:
                    clock.wait(step.last)
                elif not clock.reached(step.last):
                    return
                line = step.line(clock, len(self._parameters))
            except (RuntimeError, ValueError) as error:  # of torch, for an event that cannot be read
                _log.warning("%s: recording stops here, step %d: %s", self.path, step.number, error)
                self._unread.clear()
                self._take_off()
                return
            self._unread.popleft()
            self._write_layout(step)
            self._journal.write(line)

    def _write_layout(self, step: StepStamps) -> None:
        """A line with the buckets wherever they differ from the last one written."""
        layout = step.layout()
        if self._tap is None and self._layout is None and self._asked < _TIMES_ASKED_FOR_BUCKETS:
            self._asked += 1
            layout = log_buckets(self._ddp)
        if layout and layout != self._layout:
            self._layout = layout
            line = {"kind": "buckets", "step": step.number, "bucket_indices": layout, "fired": step.fired()}
            self._journal.write(line)
