"""``sim.record``: what a user's own training loop does, written down rank by rank while it runs.

Cost, by ``traces/tools/bench/recording.py`` in processor time (one gloo rank, 2 cores): 1 to 3 us a parameter
with its share of the line that is written, 0.13 ms a bucket at the full level, and 0.08 ms a bucket once the
hook only reduces. A step of the bundled GPT, 250 ms with quartiles 5 to 7 ms apart, took 0.5 to 3.5 ms more.
"""

import logging
import os
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError
from sim.formats.documents import SCHEMA_VERSION
from sim.formats.files import check_directory
from sim.nouns.checks import at_least, one_of
from sim.nouns.ddp_switches import ARGUMENTS
from sim.nouns.devices import SERIALISING, backend_of, serialised_by
from sim.nouns.recording import RecordedEnd, RecordedLayout, RecordedParameter, RecordingHeader
from sim.recorder.clocks import clock_for
from sim.recorder.training_step import buffers_in, facts, sparse_tables, surroundings, trained
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
        ddp_model: the DistributedDataParallel that is trained.
        directory: where the files go; made if it is not there. A start that is the launcher's Nth restart
            writes into ``restart-N`` in it.
        level: ``full`` sees every bucket through a communication hook, which stays and reduces as DDP does;
            ``light`` registers none and sees gradients, forward, backward and optimizer.
        max_steps: stop after so many recorded steps.
        wrap: your own communication hook, registered and recorded in place of DDP's all-reduce.
        wrap_state: its state.

    Raises:
        InputError: a model that cannot be recorded, an illegal argument; when it is entered: a file that is
            there already or cannot be made, a communication hook that is in the way, or that it was entered
            before.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        directory: str | os.PathLike[str],
        *,
        level: str = "full",
        max_steps: int | None = None,
        wrap: CommHook | None = None,
        wrap_state: Any = None,
    ) -> None:
        ddp: Any = ddp_model
        if not isinstance(ddp, DistributedDataParallel):
            kind = type(ddp).__name__
            raise InputError(f"ddp_model: a {kind} is not legal; give the DistributedDataParallel itself")
        one_of("level", level, ("full", "light"))
        at_least("max_steps", max_steps, 1)
        if wrap is not None and level != "full":
            raise InputError("wrap: a communication hook is recorded at level='full' only; leave wrap out")
        if ddp.is_multi_device_module or ddp.device.type not in ("cpu", "cuda"):
            raise InputError(f"ddp_model: it lies on {ddp.device}; it must lie on the CPU or on one GPU")
        if ddp._use_python_reducer or ddp._delay_all_reduce_all_params:
            raise InputError("ddp_model: it runs without DDP's Reducer, and so without buckets to record")
        if not isinstance(directory, str | os.PathLike):
            raise InputError(f"directory: {directory!r:.60} is not legal; give the path of a directory")
        self._named = trained(ddp.module, ddp.parameters_to_ignore)  # in the Reducer's order
        made_with, now = ddp_log(ddp).get("num_parameter_tensors"), len(self._named)
        if made_with != now:
            raise InputError(
                f"ddp_model: {now} parameters require grad, DDP was made with {made_with}; freeze them before"
            )
        super().__init__(ddp, [tensor for _, tensor in self._named], clock_for(ddp.device))
        counts = [os.environ.get(name, "") for name in _RESTARTS]
        again = sum(int(count) for count in counts if count.isdecimal())
        folder = Path(directory, f"restart-{again}" if again else "")
        self.path = self.where = folder / f"rank-{dist.get_rank(ddp.process_group)}.jsonl"
        self._ddp, self._level, self._max_steps, self._hook = ddp, level, max_steps, (wrap, wrap_state)
        self._journal: Journal | None = None
        self._layout: list[list[int]] | None = None
        self._written = 0  # steps

    def __enter__(self) -> Self:
        if self._journal is not None:
            raise InputError("record: this one was entered before; call sim.record again for another")
        ddp = self._ddp
        if ddp in _recorded_now:
            raise InputError("ddp_model: it is being recorded already; leave that context first")
        for why in serialised_by(environment(ddp.device)):
            _log.warning("sim.record: %s", why)
        journal = Journal(self.path)
        try:
            if self._level == "full":
                places = {id(parameter): index for index, (_, parameter) in enumerate(self._named)}
                self._tap = attach(ddp, places=places, wrap=self._hook[0], wrap_state=self._hook[1])
            journal.write("recording", self._header(), schema_version=SCHEMA_VERSION)
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
        assert journal is not None
        try:
            if self._stepped:
                self._end_step()
            self.close()
            self._write_steps(wait=not failed)
            if self._number and not self.steps_recorded and journal.is_open and not failed:
                _log.warning(
                    "%s: no step was recorded; call recording.step() after each optimizer step", self.path
                )
            journal.write("end", RecordedEnd(failed=failed))
            journal.close()
        finally:
            _recorded_now.discard(self._ddp)

    def _step_ended(self) -> None:
        """Write the steps that can be read now."""
        self._write_steps(wait=False)
        if self.steps_recorded == self._max_steps or not (self._journal and self._journal.is_open):
            self.close()

    def _write_steps(self, *, wait: bool) -> None:
        """Write the steps whose stamps have been reached; if a clock fails, warn and record no more."""
        clock, journal = self._clock, self._journal
        assert journal is not None
        while self.steps:
            step = self.steps[0]
            try:
                if wait:
                    clock.wait(step.last)
                elif not clock.reached(step.last):
                    return
                recorded = step.recorded(clock, len(self._named))
            except (RuntimeError, ValueError) as error:  # of torch, for an event that cannot be read
                self.steps.clear()
                self._give_up(f"step {step.number}: {error}")
                return
            self.steps.popleft()
            if (layout := self._layout_of(step)) and layout != self._layout:
                self._layout = layout
                buckets = tuple(map(tuple, layout))
                journal.write(
                    "buckets", RecordedLayout(step=step.number, bucket_indices=buckets, fired=step.fired())
                )
            self._written += 1
            journal.write("step", recorded)

    def _layout_of(self, step: StepStamps) -> list[list[int]] | None:
        """The buckets of a step; without a hook those of DDP's log, once it has some."""
        if self._tap is not None:
            return step.layout()
        return (
            log_buckets(self._ddp) if not self._layout and self._written < _TIMES_ASKED_FOR_BUCKETS else None
        )

    def _header(self) -> RecordingHeader:
        """The first line of a rank's file."""
        ddp = self._ddp
        log, tap = (
            ddp_log(ddp),
            taps.get(ddp),
        )  # the hook of an earlier recording stays, whatever the level is
        sparse = {id(table.weight) for table in sparse_tables(ddp.module)}
        broadcasts = getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True))  # A3.16
        level: Any = self._level
        return RecordingHeader(
            rank=dist.get_rank(ddp.process_group),
            world_size=ddp.process_group.size(),
            level=level,
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


def log_buckets(ddp: DistributedDataParallel) -> list[list[int]] | None:
    """The rebuilt buckets in DDP's log (A4.4), None before it has any."""
    text = ddp_log(ddp).get("rebuilt_per_bucket_param_indices")
    if not text:
        return None
    return [[int(index) for index in bucket.split()] for bucket in str(text).split(",")]


class Journal:
    """Appends one whole line with one write; after the first failure it warns once and stays closed."""

    def __init__(self, path: Path) -> None:
        """Make the file. Raises ``InputError`` where it exists already or cannot be made."""
        self.path = path
        try:
            check_directory(path.parent).mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._handle: int | None = os.open(path, flags, 0o666)
        except OSError as error:
            if os.path.lexists(path):
                raise InputError(f"{path}: exists already; give a new or empty directory") from None
            raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None

    @property
    def is_open(self) -> bool:
        """Whether lines are still taken."""
        return self._handle is not None

    def write(self, kind: str, noun: Any, **more: Any) -> None:
        """Append one line; on a failure warn, keep what is there and take no more."""
        if self._handle is None:
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
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            os.close(handle)
        except OSError as error:
            why = why or f"while closing: {error.strerror}"
        if why:
            _log.warning(
                "%s: recording stops here (%s); what is there is kept and training goes on", self.path, why
            )
