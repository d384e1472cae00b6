"""Which collectives of a flight recorder dump are the buckets of a step, told by what repeats."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from sim.errors import InputError
from sim.importer.flight_recorder.calls import Call
from sim.importer.flight_recorder.repeating import find_repeat
from sim.importer.matching import match_buckets
from sim.nouns.workload import Workload

Key = tuple[int, int]  # (collective_seq_id, op_id) within a process group
MAX_ROTATIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSteps:
    """The whole steps of one rank.

    ``sizes``: bytes of the buckets in launch order. ``buckets``: by step and bucket, the key of its call.
    ``launch_ns``: by bucket, the median time from the launch of bucket 0. ``step_ns``: from each step's first
    launch to the next's. ``beside``: the other collectives of a step, by kind. ``outside``: how many are in
    no whole step. ``begins``: what told where a step begins. ``indices``: the buckets' parameter indices,
    where a model was given.
    """

    sizes: tuple[int, ...]
    buckets: tuple[tuple[Key, ...], ...]
    launch_ns: tuple[int, ...]
    step_ns: tuple[int, ...]
    beside: dict[str, int]
    outside: int
    begins: str
    indices: tuple[tuple[int, ...], ...] | None


def key_of(call: Call) -> Key:
    """What a collective is called on all ranks of its group."""
    return (call.sequence, call.op)


def is_bucket(call: Call) -> bool:
    """An all-reduce that can be a bucket's: of more than one element of a known floating dtype.

    DDP's map of used parameters is int32 (A3.9); one element is a loss or a metric.
    """
    floating = call.dtype is not None and call.dtype.startswith(("float", "bfloat", "complex"))
    return call.kind == "all_reduce" and floating and call.num_elements > 1


def find_steps(calls: Sequence[Call], model: Workload | None, source: str) -> RepeatedSteps | None:
    """The steps in the collectives of one group and rank; None where nothing repeats.

    Raises:
        InputError: a model is given, and no rotation of the pattern has its buckets.
    """
    repeat = find_repeat([(call.kind, call.num_bytes, call.dtype) for call in calls])
    if repeat is None:
        return None
    tail, period = calls[repeat.start : repeat.stop], repeat.period
    if not any(is_bucket(call) for call in tail[:period]):
        return None
    at, begins = 0, "what came before the first whole step"
    if repeat.start == 0:
        at, begins = _longest_pause(tail, period), "the longest pause between launches"
    indices = None
    if model is not None:
        turned, indices = _rotation_of_model(tail, period, at, model, source)
        at, begins = (at, begins) if turned == at else (turned, "the model's gradients")
    steps = [tail[begin : begin + period] for begin in range(at, len(tail) - period + 1, period)]
    buckets = [[call for call in step if is_bucket(call)] for step in steps]
    firsts = [step[0].created_ns for step in buckets]
    return RepeatedSteps(
        sizes=tuple(call.num_bytes for call in buckets[0]),
        buckets=tuple(tuple(key_of(call) for call in step) for step in buckets),
        launch_ns=tuple(
            round(median(step[number].created_ns - step[0].created_ns for step in buckets))
            for number in range(len(buckets[0]))
        ),
        step_ns=tuple(after - before for before, after in pairwise(firsts)),
        beside=dict(Counter(call.kind for call in steps[0] if not is_bucket(call))),
        outside=len(calls) - len(steps) * period,
        begins=begins,
        indices=indices,
    )


def _longest_pause(calls: Sequence[Call], period: int) -> int:
    """Where in the period the median pause before a launch is longest: a forward lies in it."""
    pauses: list[list[int]] = [[] for _ in range(period)]
    for number in range(1, len(calls)):
        pauses[number % period].append(calls[number].created_ns - calls[number - 1].created_ns)
    return max(range(period), key=lambda place: median(pauses[place]))


def _rotation_of_model(
    calls: Sequence[Call], period: int, at: int, model: Workload, source: str
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The rotation, from ``at`` on, whose buckets are the model's; the first one's error where none is."""

    def sizes(begin: int) -> list[int]:
        turned = [calls[(begin + number) % period] for number in range(period)]
        return [call.num_bytes for call in turned if is_bucket(call)]

    first: InputError | None = None
    for turn in range(min(period, MAX_ROTATIONS)):
        begin = (at + turn) % period
        try:
            return begin, match_buckets(sizes(begin), model, source, wrapped_apart=turn == 0)
        except InputError as error:
            first = first or error
    assert first is not None
    raise first
