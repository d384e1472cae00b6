"""Hypothesis strategies for the nouns: legal ones, with the corners that hurt.

Two scales. *Tiny* times are a few nanoseconds, so that ties and halves (the places where rounding and
order decide) come up in most examples, and an oracle can step through them; *real* times and sizes are
those of training.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from sim.clusters.distribution import AssignmentComparison, StepDistribution
from sim.clusters.ranks import Ranks
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.checks import Legal
from sim.nouns.cluster import Cluster
from sim.nouns.collective import Explanation
from sim.nouns.hardware import SLOWDOWNS as FACTORS
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.workload import DTYPE_BYTES, Buffer, Gradient, Workload
from tests.cluster_strategies import clusters

Draw = st.DrawFn

DTYPES = ("float32", "bfloat16", "float64")
DEVICES = (None, "cuda:0", "cuda:1")
# Exact in binary (halves and quarters of a ns: ties), exact in nothing (1.1), and the floats next to 1 and 3.
SLOWDOWNS = (1.0, 1.25, 1.5, 2.0, 3.0, 1.1, 4 / 3, 1.0000000000000002, 2.9999999999999996)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Ranges: times in ns, sizes in bytes, copy bandwidths in bytes/s."""

    work_ns: int
    num_bytes: int
    service_ns: int
    launch_ns: int
    rates: tuple[float, ...]


TINY = Scale(work_ns=5, num_bytes=6, service_ns=9, launch_ns=3, rates=(4e8, 5e8, 1e9, 2e9, 3e9))
REAL = Scale(
    work_ns=20_000_000,
    num_bytes=1 << 26,
    service_ns=40_000_000,
    launch_ns=500_000,
    rates=(1.0e9, 1.7e10, 3.3e11, 123456789.123),
)
SCALES = st.sampled_from([TINY, TINY, REAL])

characters = st.characters(codec="utf-8", exclude_categories=("Cs",))  # all that JSON can carry
names = st.text(characters, max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.dictionaries(
    st.text(characters, max_size=6),
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | names,
    max_size=3,
)
times = st.integers(0, 2**62)


@st.composite
def workloads(
    draw: Draw,
    scale: Scale = REAL,
    *,
    max_gradients: int = 12,
    dtypes: tuple[str, ...] = DTYPES,
    devices: tuple[str | None, ...] = DEVICES,
    sparse: bool = True,
    empty: bool = True,
    includes: bool = True,
    dressed: bool = False,
) -> Workload:
    """A workload whose gradients all become ready, in an order of their own, with ties.

    ``dressed`` adds what no engine reads: names, samples, buffers, provenance.
    """
    count = draw(st.integers(1, max_gradients))
    order = draw(st.permutations(range(count)))
    key_dtypes = draw(st.lists(st.sampled_from(dtypes), min_size=1, max_size=2, unique=True))
    key_devices = draw(st.lists(st.sampled_from(devices), min_size=1, max_size=2, unique=True))
    sizes = st.integers(0 if empty else 1, scale.num_bytes) | (st.just(0) if empty else st.nothing())
    work = st.just(0) | st.integers(0, scale.work_ns)  # zero-length work: ties
    ready: dict[int, int] = {}
    now = 0
    for index in order:
        now += draw(work)
        ready[index] = now
    gradients = tuple(
        Gradient(
            index=index,
            name=draw(names) if dressed else f"p{index}",
            dtype=(dtype := draw(st.sampled_from(key_dtypes))),
            num_bytes=(size := draw(sizes)),
            shape=(size // DTYPE_BYTES[dtype],) if dressed and size % DTYPE_BYTES[dtype] == 0 else (),
            ready_ns=ready[index],
            sparse=sparse and draw(st.sampled_from([False, False, False, False, True])),
            wire_bytes=draw(st.none() | st.none() | sizes),
            device=draw(st.sampled_from(key_devices)),
            group=draw(st.integers(0, 2)) if dressed else 0,
            uses=draw(st.integers(1, 2)) if dressed else 1,
        )
        for index in range(count)
    )
    extra = {}
    if dressed:
        moments = st.none() | times
        extra = {
            "samples": tuple(
                tuple(row)
                for row in draw(st.lists(st.lists(moments, min_size=count, max_size=count), max_size=2))
            ),
            "estimated": draw(st.booleans()),
            "whole_buckets": draw(st.none() | st.booleans()),
            "band": draw(st.none() | st.tuples(st.floats(0.1, 1), st.floats(1, 9))),
            "provenance": draw(words),
            "extensions": draw(words),
        }
    return Workload(
        name=draw(names) if dressed else "w",
        gradients=gradients,
        forward_ns=draw(st.integers(0, scale.work_ns)),
        backward_ns=now + draw(work),
        optimizer_ns=draw(st.integers(0, scale.work_ns)),
        loss_ns=draw(st.integers(0, scale.work_ns)),
        rest_ns=draw(st.sampled_from([0, scale.work_ns])),
        ready_order=tuple(order) if draw(st.booleans()) else None,
        ready_includes=tuple(
            draw(st.lists(st.sampled_from(["copy_in", "launch", "interference"]), max_size=3, unique=True))
            if includes and draw(st.integers(0, 3)) == 0
            else []
        ),
        buffers=tuple(
            draw(st.lists(st.builds(Buffer, dtype=st.sampled_from(dtypes), num_bytes=sizes), max_size=2))
        ),
        **extra,
    )


@st.composite
def other_ranks(draw: Draw, workload: Workload, scale: Scale) -> Workload:
    """The same model on another rank: gradients ready at other times, in another order."""
    work = st.just(0) | st.integers(0, 2 * scale.work_ns)
    order = draw(st.just(workload.order()) | st.permutations(workload.order()))
    ready: dict[int, int] = {}
    now = 0
    for index in order:
        now += draw(work)
        ready[index] = now
    return replace(
        workload,
        name="other rank",
        gradients=tuple(replace(gradient, ready_ns=ready[gradient.index]) for gradient in workload.gradients),
        forward_ns=draw(st.just(workload.forward_ns) | work),
        backward_ns=now + draw(work),
        ready_order=tuple(order),
    )


@st.composite
def curves(draw: Draw, scale: Scale = REAL, *, max_points: int = 4) -> Curve:
    """A curve of any shape: rising, falling, one point, flat. Beyond it no step is longer than can be played:
    the last point is some way behind those before."""
    sizes = draw(st.lists(st.integers(0, 2 * scale.num_bytes), min_size=1, max_size=max_points, unique=True))
    *before, last = sorted(sizes)
    last = max(last, scale.num_bytes // 64 + (before[-1] if before else 0))
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=draw(st.integers(0, scale.service_ns)))
        for size in (*before, last)
    )


slowdowns = st.sampled_from(SLOWDOWNS) | st.floats(1.0, 3.0)


@st.composite
def hardwares(draw: Draw, scale: Scale = REAL, *, stretches: bool = True, dressed: bool = False) -> Hardware:
    """A machine; ``stretches`` False leaves all slow-downs at 1, ``dressed`` has anything in every field."""
    if dressed:
        others = dict.fromkeys(("broadcast", "reduce_scatter", "all_gather"), st.none() | curves(scale))
        more = words.map(lambda said: {f"~{name}": value for name, value in said.items()})  # none that it has
        return draw(built(Hardware, all_reduce=curves(scale), spread=more, **others))
    rates = st.none() | st.sampled_from(scale.rates)
    factor = slowdowns if stretches and draw(st.integers(0, 3)) else st.just(1.0)
    drawn = st.builds(
        Hardware,
        name=st.just("h"),
        world_size=st.sampled_from([1, 2, 2, 2, 4, 8]),
        all_reduce=curves(scale),
        comm_channels=st.integers(1, 3),
        launch_cost_ns=st.just(0) | st.integers(0, scale.launch_ns),
        launch_blocks_compute=st.booleans(),
        copy_in_bytes_per_s=rates,
        copy_out_bytes_per_s=rates,
        broadcast=st.none() | curves(scale),
        **dict.fromkeys(FACTORS, factor),
    )
    return draw(drawn)


@st.composite
def assignments(draw: Draw, workload: Workload) -> Assignment:
    """Any legal assignment of ``workload`` (A8.3): buckets in any order, gradients in any bucket that
    may hold them, in any order inside."""
    count = len(workload.gradients)
    parts = draw(st.integers(1, count))
    groups: dict[object, list[int]] = {}
    for gradient in draw(st.permutations(workload.gradients)):
        key = gradient.index if gradient.sparse else (gradient.key, draw(st.integers(1, parts)))
        groups.setdefault(key, []).append(gradient.index)
    indices = tuple(tuple(bucket) for bucket in draw(st.permutations(list(groups.values()))))
    views = draw(st.booleans())
    return Assignment(
        bucket_indices=indices,
        bucket_bytes=bucket_bytes(workload, indices) if draw(st.booleans()) else None,
        ddp_kwargs={"gradient_as_bucket_view": True} if views else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that one simulated step needs; ``slowest`` is another rank."""

    workload: Workload
    hardware: Hardware
    assignment: Assignment
    slowest: Workload | None = None


@st.composite
def cases(
    draw: Draw,
    scales: st.SearchStrategy[Scale] = SCALES,
    *,
    stretches: bool = True,
    max_gradients: int = 12,
    paired: bool = False,
) -> Case:
    """A workload on a machine under a legal assignment; ``paired``: beside another rank."""
    scale = draw(scales)
    workload = draw(workloads(scale, max_gradients=max_gradients))
    hardware = draw(hardwares(scale, stretches=stretches))
    if paired:
        hardware = replace(hardware, world_size=max(2, hardware.world_size))
    return Case(
        workload=workload,
        hardware=hardware,
        assignment=draw(assignments(workload)),
        slowest=draw(other_ranks(workload, scale)) if paired else None,
    )


paired_cases = partial(cases, paired=True, max_gradients=8)

# Nouns by inference: of each field anything that its annotation allows.

fractions = st.floats(-10, 10)
_PLAIN = {int: times, float: fractions, str: names, bool: st.booleans(), NoneType: st.none()}


def built(noun: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A noun with anything in its fields that their annotations allow, but what is ``given``."""
    hints = get_type_hints(noun, include_extras=True)
    drawn = {one.name: _any(hints[one.name]) for one in fields(noun) if one.name not in given}
    return st.builds(noun, **drawn, **given)


def _any(hint: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _legal(inner[1])
    if origin is tuple:
        is_long = inner[-1] is ...
        return st.lists(_any(inner[0]), max_size=2).map(tuple) if is_long else st.tuples(*map(_any, inner))
    if origin in (Union, UnionType):
        return st.one_of(*map(_any, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is dict:
        return words if inner[1] is Any else st.dictionaries(_any(inner[0]), _any(inner[1]), max_size=2)
    if hint in _PLAIN:
        return _PLAIN[hint]
    return any_assignments() if hint is Assignment else built(hint)


def _legal(legal: Legal) -> st.SearchStrategy[Any]:
    if legal.words:
        return st.sampled_from(legal.words)
    if legal.kind is int:
        return st.integers(int(legal.least), int(legal.most))
    return st.floats(legal.least, legal.most, exclude_min=legal.is_open)


@st.composite
def any_assignments(draw: Draw) -> Assignment:
    """An assignment of no workload in particular."""
    indices = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True))
    buckets = tuple((index,) for index in indices) if draw(st.booleans()) else (tuple(indices),)
    sizes = st.lists(times, min_size=len(buckets), max_size=len(buckets)).map(tuple)
    given = {"bucket_indices": st.just(buckets), "bucket_bytes": st.none() | sizes, "made_for": st.none()}
    return draw(built(Assignment, **given))


@st.composite
def measurements(draw: Draw) -> Measurement:
    """A measurement of any role; a candidate has its assignment."""
    asked = draw(st.none() | any_assignments())
    roles = ["plain", "noop"] if asked is None else ["candidate"]
    observed = None if asked is None else asked.bucket_indices
    return draw(
        built(
            Measurement,
            role=st.sampled_from(roles),
            asked=st.just(asked),
            observed=st.just(observed),
            iterations=st.lists(built(MeasuredIteration), min_size=1, max_size=2).map(tuple),
        )
    )


@st.composite
def ranks(draw: Draw) -> Ranks:
    """Ranks that differ in any way, of any job."""
    stalls = draw(st.booleans())
    return draw(
        built(
            Ranks,
            stall_probability=st.floats(0.001, 1) if stalls else st.just(0.0),
            stall_ns=st.integers(1, 10**9) if stalls else st.just(0),
        )
    )


_INFERRED = (Report, Recommendation, Explanation, StepDistribution, AssignmentComparison)
_MADE = (Workload, Hardware, Assignment, Measurement, Cluster, Ranks)
KINDS: dict[str, Any] = {noun.KIND: noun for noun in (*_MADE, *_INFERRED)}  # every noun that is a document
NOUNS: dict[str, st.SearchStrategy[Any]] = {
    "workload": st.sampled_from([TINY, REAL]).flatmap(lambda scale: workloads(scale, dressed=True)),
    "hardware": hardwares(dressed=True),
    "assignment": any_assignments(),
    "measurement": measurements(),
    "cluster": clusters(),
    "ranks": ranks(),
    **{noun.KIND: built(noun) for noun in _INFERRED},
}
