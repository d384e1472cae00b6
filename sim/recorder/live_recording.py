"""``sim.record``: what a user's own training loop does, written down rank by rank while it runs.

``traces/tools/bench/recording.py`` tells what it costs: some us a parameter, and 0.05 ms a bucket.
"""

import logging
import os
from pathlib import Path
from typing import Any, Self, get_args
from weakref import WeakSet

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError
from sim.formats.documents import SCHEMA_VERSION
from sim.formats.files import check_directory
from sim.nouns.checks import Legal
from sim.nouns.ddp_switches import ARGUMENTS
from sim.nouns.devices import SERIALISING, backend_of, serialised_by
from sim.nouns.recording import Level, RecordedEnd, RecordedLayout, RecordedParameter, RecordingHeader
from sim.recorder.clocks import clock_for
from sim.recorder.training_step import buffers_in, ddp_in, facts, sparse_tables, surroundings, trained
from sim.recorder.watch import CommHook, StepStamps, StepWatch, attach, ddp_log, taps

_SETTINGS = ("bucket_bytes_cap", *(name for name, one in ARGUMENTS.items() if one.metadata["recorded"]))
_TIMES_ASKED_FOR_BUCKETS = 10
# by which torchrun and SLURM count the starts of a job after its first
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")

_log = logging.getLogger(__name__)
_recorded_now: WeakSet[DistributedDataParallel] = WeakSet()


class LiveRecording(StepWatch):
    """Record your own training loop: ``with sim.record(ddp_model, "recording"): ...``, on every rank.

    Each rank writes ``directory/rank-<r>.jsonl``; ``bucketsim import recording`` makes a Workload of them.

    Args:
        ddp_model: the DistributedDataParallel that is trained, also within ``torch.compile``'s or Fabric's.
        directory: where the files go; made if it is not there. A start that is the launcher's Nth restart
            writes into ``restart-N`` in it.
        level: ``full`` sees every bucket through a communication hook, which stays and reduces as DDP does;
            ``light`` registers none and sees gradients, forward, backward and optimizer.
        max_steps: stop after so many recorded steps.
        wrap, wrap_state: your own communication hook and its state, recorded in place of DDP's all-reduce.

    Raises:
        NotModelledError: a model that is trained without DDP's buckets.
        InputError: an illegal argument; when it is entered: a file that is there already or cannot be made, a
            communication hook that is in the way.
    """

    def __init__(
        self,
        ddp_model: nn.Module,
        directory: str | os.PathLike[str],
        *,
        level: Level = "full",
        max_steps: int | None = None,
        wrap: CommHook | None = None,
        wrap_state: Any = None,
    ) -> None:
        ddp = ddp_in(ddp_model)
        Legal(words=get_args(Level)).take("level", level)
        if max_steps is not None:
            Legal(least=1).take("max_steps", max_steps)
        if wrap is not None and level != "full":
            raise InputError("wrap: a communication hook is recorded at level='full' only; leave wrap out")
        self._named = trained(ddp.module, ddp.parameters_to_ignore)  # in the Reducer's order
        made_with, now = ddp_log(ddp).get("num_parameter_tensors"), len(self._named)
        if made_with != now:
            raise InputError(
                f"ddp_model: {now} parameters require grad, DDP was made with {made_with}; freeze them before"
            )
        super().__init__(ddp, [tensor for _, tensor in self._named], clock_for(ddp.device))
        again = sum(int(os.environ.get(name) or 0) for name in _RESTARTS)
        folder = Path(directory, f"restart-{again}" if again else "")
        self.path = self.where = folder / f"rank-{dist.get_rank(ddp.process_group)}.jsonl"
        self._ddp, self._level, self._max_steps, self._hook = ddp, level, max_steps, (wrap, wrap_state)
        self._layout: tuple[tuple[int, ...], ...] | None = None

    def __enter__(self) -> Self:
        ddp = self._ddp
        if ddp in _recorded_now:
            raise InputError("ddp_model: it is being recorded already; leave that context first")
        for why in serialised_by(environment(ddp.device)):
            _log.warning("sim.record: %s", why)
        journal = Journal(self.path)
        try:
            if self._level == "full":
                self._tap = attach(ddp, *self._hook)
            journal.write(RecordingHeader.KIND, self._header(), schema_version=SCHEMA_VERSION)
        except BaseException:
            journal.close()
            self.path.unlink()
            raise
        self._journal = journal
        _recorded_now.add(ddp)
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Take the hooks off and write what is left; after a failure, only what needs no waiting."""
        failed, journal = kind is not None, self._journal
        try:
            if self._stepped:
                self._end_step()
            self.close()
            if not failed:
                self._clock.settle()
            self._write_steps()
            if self._number and not self.steps_recorded and journal.is_open and not failed:
                unseen = "no step was recorded; call recording.step() after each optimizer step"
                _log.warning("%s: %s", self.path, unseen)
            journal.write("end", RecordedEnd(failed=failed))
            journal.close()
        finally:
            _recorded_now.discard(self._ddp)

    def _step_ended(self) -> None:
        """Write the steps that can be read now."""
        self._write_steps()
        if self.steps_recorded == self._max_steps or not self._journal.is_open:
            self.close()

    def _write_steps(self) -> None:
        """Write the steps whose stamps have been reached; if a clock fails, warn and record no more."""
        clock, journal = self._clock, self._journal
        while self.steps:
            step = self.steps[0]
            try:
                if not clock.reached(step.last):
                    return
                recorded = step.recorded(clock, len(self._named))
            except (RuntimeError, ValueError) as error:  # of torch, for an event that cannot be read
                self.steps.clear()
                self._give_up(f"step {step.number}: {error}")
                return
            self.steps.popleft()
            if (layout := self._layout_of(step)) and layout != self._layout:
                self._layout = layout
                told = RecordedLayout(step=step.number, bucket_indices=layout, fired=step.fired())
                journal.write("buckets", told)
            journal.write("step", recorded)

    def _layout_of(self, step: StepStamps) -> tuple[tuple[int, ...], ...] | None:
        """Buckets of the last synchronised backward, in launch order; without a hook those of DDP's log."""
        if self._tap is None:  # the log has some after a few steps, or never
            asks = not self._layout and step.number <= _TIMES_ASKED_FOR_BUCKETS
            return log_buckets(self._ddp) if asks else None
        found = [backward.buckets for backward in step.backwards if backward.buckets]
        return tuple(row.parameters for row in found[-1]) if found else None

    def _header(self) -> RecordingHeader:
        """The first line of a rank's file."""
        ddp = self._ddp
        log, tap = ddp_log(ddp), taps.get(ddp)  # an earlier recording's hook stays, whatever the level is
        sparse = {id(table.weight) for table in sparse_tables(ddp.module)}
        broadcasts = getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True))  # A3.16
        return RecordingHeader(
            rank=dist.get_rank(ddp.process_group),
            world_size=ddp.process_group.size(),
            level=self._level,
            every=1,
            torch=torch.__version__,
            backend=backend_of(dist.get_backend_config(ddp.process_group), str(ddp.device)),
            device=str(ddp.device),
            clock=self._clock.name,
            environment=environment(ddp.device),
            module=type(getattr(ddp.module, "_orig_mod", ddp.module)).__name__,  # not torch.compile's wrapper
            comm_hook=tap.name if tap is not None else log.get("comm_hook"),
            ddp={
                **{name: getattr(ddp, name, None) for name in _SETTINGS},
                "rebuilt_buckets": log_buckets(ddp),
                "gloo_num_threads": log.get("gloo_num_threads"),
                "torch_distributed_debug": os.environ.get("TORCH_DISTRIBUTED_DEBUG"),
            },
            parameters=tuple(
                RecordedParameter(**facts(name, tensor), sparse=id(tensor) in sparse)
                for name, tensor in self._named
            ),
            buffers=buffers_in(ddp.modules_buffers) if broadcasts else (),
            provenance={"source": "sim.record", **surroundings(ddp.device)},
        )


record = LiveRecording


def environment(device: torch.device) -> dict[str, str]:
    """The variables that change how work on ``device`` runs, where they are set."""
    return {name: os.environ[name] for name in SERIALISING if device.type == "cuda" and name in os.environ}


def log_buckets(ddp: DistributedDataParallel) -> tuple[tuple[int, ...], ...] | None:
    """The rebuilt buckets in DDP's log (A4.4), None before it has any."""
    text = ddp_log(ddp).get("rebuilt_per_bucket_param_indices")
    return tuple(tuple(map(int, bucket.split())) for bucket in str(text).split(",")) if text else None


class Journal:
    """Appends one whole line with one write; after the first failure it warns once and stays closed."""

    def __init__(self, path: Path) -> None:
        """Make the file. Raises ``InputError`` where it exists already or cannot be made."""
        self.path, self.is_open = path, True  # while lines are taken
        try:
            check_directory(path.parent).mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._handle = os.open(path, flags, 0o666)
        except OSError as error:
            why = f"cannot be made: {error.strerror}"
            if os.path.lexists(path):
                why = "exists already; give a new or empty directory"
            raise InputError(f"{path}: {why}") from None

    def write(self, kind: str, noun: Any, **more: Any) -> None:
        """Append one line; on a failure warn, keep what is there and take no more."""
        if not self.is_open:
            return
        fields = msgspec.to_builtins(noun, enc_hook=str)  # torch's version is a str of its own kind
        text = msgspec.json.encode({"kind": kind, **more, **fields}) + b"\n"
        try:
            if os.write(self._handle, text) < len(text):
                self.close("the disk took only part of a line")
        except OSError as error:
            self.close(error.strerror or str(error))

    def close(self, why: str | None = None) -> None:
        """Close the file, and warn of ``why`` it is too early; a second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            os.close(self._handle)
        except OSError as error:
            why = why or f"while closing: {error.strerror}"
        if why:
            _log.warning(
                "%s: recording stops here (%s); what is there is kept and training goes on", self.path, why
            )
