"""Which buckets a job should try, from a recording of it and its link: what the first rank works out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sim.autotuner.job_link import JobLink
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.recorded.recorded_run import hardware_of
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.recording import Recording
from sim.truth.recorded_job import job_in_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the simulator recommends, and the steps that it predicts for it and for the buckets in use, ns.

    ``gain_low_ns`` to ``gain_high_ns`` holds the gain 95 % of the time; None where nothing that varies was
    recorded. ``plain_step_ns`` is the step without communication: no buckets can be quicker. ``setting`` is
    what to set, as ``tune`` has it, and ``why`` its sentence on the gain.
    """

    assignment: Assignment
    in_use_ns: int
    best_ns: int
    plain_step_ns: int
    setting: Setting
    gain_low_ns: int | None = None
    gain_high_ns: int | None = None
    why: str = ""

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
    job = job_in_recording(recording, _hardware(recording, link))
    if job.own is None:
        raise InputError(f"the job's own step cannot be told: {job.why_not}")
    answer = job.with_buckets(in_use).tune()
    assert answer.setting is not None  # no limit bars it
    workload = job.workload
    micro_batches, _ = job.micro_batches
    computing_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    return Prediction(
        assignment=answer.assignment,
        in_use_ns=answer.baseline.step_ns,
        best_ns=answer.report.step_ns,
        plain_step_ns=micro_batches * computing_ns + workload.optimizer_ns,
        gain_low_ns=answer.gain.low_ns,
        gain_high_ns=answer.gain.high_ns,
        setting=answer.setting,
        why=answer.gain.sentence,
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
