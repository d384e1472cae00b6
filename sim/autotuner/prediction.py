"""Which buckets a job should try, from a recording of it and its link: what the first rank works out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sim.autotuner.job_link import JobLink
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.recorded.recorded_run import as_run
from sim.importer.recorded.recorded_steps import workload_of
from sim.live.link import hardware_of
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.hardware import Hardware
from sim.nouns.recording import Recording
from sim.nouns.workload import DTYPE_BYTES, ReadyTimes, Workload
from sim.systems.hook_table import HOOKS
from sim.systems.simulate import simulated_step_ns
from sim.truth.recorded_step import own_step
from sim.tuner.recommend import tune

# The buckets in use count as DDP's default if their steps differ by no more than this share of the step: the
# two may differ in gradients that are ready at the same time.
_ALIKE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the simulator recommends, and the steps that it predicts for it and for the buckets in use, ns.

    ``gain_low_ns`` to ``gain_high_ns`` holds the gain 95 % of the time; None where the buckets in use take
    another step than DDP's default. ``plain_step_ns`` is the step without communication: no buckets can be
    quicker.
    """

    assignment: Assignment
    in_use_ns: int
    best_ns: int
    plain_step_ns: int
    gain_low_ns: int | None = None
    gain_high_ns: int | None = None

    @property
    def gain_ns(self) -> int:
        """What the recommended buckets save a step."""
        return self.in_use_ns - self.best_ns

    @property
    def said(self) -> dict[str, int | None]:
        """The gain, by the names that ``Autotuned`` has for it."""
        return {
            "predicted_gain_ns": self.gain_ns,
            "predicted_low_ns": self.gain_low_ns,
            "predicted_high_ns": self.gain_high_ns,
        }


def predict(folder: Path, link: JobLink, in_use: Sequence[Sequence[int]]) -> Prediction:
    """The best buckets, by a prediction that is held to the job's own recorded step.

    Args:
        folder: the recording of all ranks.
        link: as it was measured between two steps.
        in_use: the buckets that the job has.

    Raises:
        InputError, NotModelledError: a recording that no prediction can be made from.
    """
    recording = load_recording(folder)
    workload = workload_of(recording)
    run = as_run(recording, workload)
    if isinstance(run, str):
        raise InputError(f"the job's own step cannot be told: {run}")
    assert run.asked is not None
    own = own_step(workload, _hardware(recording, link), run)
    sent = _on_wire(_all_ready(own.workload), run.asked.settings.get("comm_hook"))
    machine = own.hardware
    if run.asked.ddp_kwargs.get("gradient_as_bucket_view"):
        machine = replace(machine, copy_out_bytes_per_s=None)  # views of buckets need no copy back
    answer = tune(sent, machine)
    best, gain = answer.assignment, answer.gain
    buckets = tuple(map(tuple, in_use))
    present = Assignment(bucket_indices=buckets, bucket_bytes=bucket_bytes(sent, buckets))
    in_use_ns, best_ns = (
        simulated_step_ns(sent, machine, replace(one, ddp_kwargs={})) for one in (present, best)
    )
    is_default = abs(in_use_ns - answer.baseline.step_ns) <= _ALIKE * in_use_ns
    return Prediction(
        assignment=best,
        in_use_ns=in_use_ns,
        best_ns=best_ns,
        plain_step_ns=sent.forward_ns + sent.backward_ns + sent.optimizer_ns,
        gain_low_ns=gain.low_ns if is_default else None,
        gain_high_ns=gain.high_ns if is_default else None,
    )


def _hardware(recording: Recording, link: JobLink) -> Hardware:
    """The link as measured, and what the recording tells of the rest (copies back, launches, broadcasts)."""
    if recording.ranks[0].header.level == "full":
        base = hardware_of(recording)
    else:
        base = Hardware(name="link", world_size=recording.world_size, all_reduce=link.curve)
    return replace(
        base,
        name="the job's own link",
        all_reduce=link.curve,
        comm_channels=link.channels,
        channel_slowdown=link.channel_slowdown,
        shared_connection=link.channels > 1,
        spread={"processor_share": link.processor_share},
        provenance={"source": "sim.autotune"},
    )


def _all_ready(workload: Workload) -> Workload:
    """``workload`` with its unused parameters ready as the first gradient is, when DDP marks them (A3.13)."""
    unused = [one.index for one in workload.gradients if one.ready_ns is None]

    def filled(times: ReadyTimes) -> ReadyTimes:
        first = min((time for time in times if time is not None), default=None)
        return tuple(first if time is None else time for time in times)

    return workload.retimed(filled, ready_order=(*sorted(unused, reverse=True), *workload.order()))


def _on_wire(workload: Workload, hook: str | None) -> Workload:
    """``workload`` with the bytes that gradients have on the wire, where ``hook`` sends another dtype."""
    dtype = None if hook is None else HOOKS[hook].dtype
    if dtype is None:
        return workload
    width = DTYPE_BYTES[dtype]
    return replace(
        workload,
        gradients=tuple(
            replace(one, wire_bytes=one.num_bytes * width // DTYPE_BYTES[one.dtype])
            for one in workload.gradients
        ),
    )
