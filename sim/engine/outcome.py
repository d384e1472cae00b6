"""What an engine hands back, and the timeline made of it."""

from dataclasses import dataclass

from sim.engine.plan import Plan, pre_forward
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import BucketTimes, ComputeSpan, Iteration, Timeline
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Raw result of playing a plan: spans of the compute lane and per-bucket times, in ns."""

    compute: tuple[ComputeSpan, ...]
    ready_ns: tuple[int, ...]
    launch_ns: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    copy_out_start_ns: tuple[int, ...]
    available_ns: tuple[int, ...]
    backward_end_ns: int

    @property
    def sync_end_ns(self) -> int:
        """When all gradients are available, from the start of backward."""
        return max(self.backward_end_ns, *self.available_ns)


def _channels(outcome: Outcome, count: int) -> list[int]:
    """The lowest channel free at each collective's start: a label, the same whatever the engine."""
    free = [0] * count
    labels = []
    for start, end in zip(outcome.start_ns, outcome.end_ns, strict=True):
        channel = next(number for number, time in enumerate(free) if time <= start)
        free[channel] = end
        labels.append(channel)
    return labels


def make_timeline(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    plan: Plan,
    outcome: Outcome,
    *,
    engine: str,
    iteration: Iteration,
) -> Timeline:
    """The timeline of one played plan."""
    before_forward, notes = pre_forward(workload, hardware, assignment, iteration)
    labels = _channels(outcome, plan.channels)
    return Timeline(
        workload=workload,
        hardware=hardware,
        assignment=assignment,
        iteration=iteration,
        engine=engine,
        pre_forward_ns=before_forward,
        compute=outcome.compute,
        buckets=tuple(
            BucketTimes(
                index=k,
                num_bytes=plan.wire_bytes[k],
                ready_ns=outcome.ready_ns[k],
                launch_ns=outcome.launch_ns[k],
                start_ns=outcome.start_ns[k],
                end_ns=outcome.end_ns[k],
                available_ns=outcome.available_ns[k],
                service_ns=plan.service_ns[k],
                copy_out_start_ns=outcome.copy_out_start_ns[k],
                channel=labels[k],
            )
            for k in range(len(plan.wire_bytes))
        ),
        backward_end_ns=outcome.backward_end_ns,
        sync_end_ns=outcome.sync_end_ns,
        notes=notes,
    )
