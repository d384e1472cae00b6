"""What sets two steps apart, and a prediction from what was measured: parts that add up, as theory says."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement, Record
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Buffer, Workload
from sim.truth.fit import apply_factor
from sim.truth.ladder import Attribution, Part, attribute
from sim.units import transfer_ns
from tests.effort import tries
from tests.handmade import handmade, measurement, seen_bucket, wired
from tests.metrics.test_bottleneck import hardware, workload
from tests.strategies import REAL, TINY, Case, assignments, cases, hardwares, paired_cases
from tests.systems.cases import system_cases

MS, MIB = 1_000_000, 1 << 20


def play(case: Case) -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, slowest=case.slowest)


def check_adds_up(before: Timeline, after: Timeline) -> tuple[Part, ...]:
    """And there and back is the same difference."""
    found, back = sim.difference(before, after), sim.difference(after, before)
    if found:
        assert sum(part.before_ns for part in found) == before.step_ns
        assert sum(part.after_ns for part in found) == after.step_ns
    assert sum(part.change_ns for part in found) == after.step_ns - before.step_ns
    sizes = [abs(part.change_ns) for part in found]
    assert sizes == sorted(sizes, reverse=True)
    turned = {part.name: (part.after_ns, part.before_ns) for part in back}
    assert {part.name: (part.before_ns, part.after_ns) for part in found} == turned
    assert sim.difference(before, before) == ()
    return found


@settings(max_examples=tries(60), deadline=None)
@given(st.data(), cases() | paired_cases())
def test_parts_add_up_between_any_two_assignments(data: st.DataObject, case: Case) -> None:
    drawn = data.draw(assignments(case.workload))
    other = replace(case.assignment, bucket_indices=drawn.bucket_indices, bucket_bytes=None)
    found = check_adds_up(play(case), play(replace(case, assignment=other)))
    assert found == () or any(part.before_ns != part.after_ns for part in found)
    assert found == () or case.assignment.bucket_indices != drawn.bucket_indices


@settings(max_examples=tries(40), deadline=None)
@given(st.data(), st.sampled_from([TINY, REAL]))
def test_parts_add_up_between_two_machines(data: st.DataObject, scale: Any) -> None:
    case = data.draw(cases(st.just(scale)))
    other = {"hardware": data.draw(hardwares(scale)), "assignment": data.draw(assignments(case.workload))}
    check_adds_up(play(case), play(replace(case, **other)))


@settings(max_examples=tries(40), deadline=None)
@given(system_cases())
def test_parts_add_up_for_every_system(case: Case) -> None:
    """Against DDP's own default, on the same machine; late ranks are a change of it."""
    try:
        before, after = play(replace(case, assignment=sim.assign(case.workload), slowest=None)), play(case)
    except SimError:  # ranks that launch in different orders, or unused parameters
        assume(False)
    check_adds_up(before, after)


def built(latency_ms: float, policy: str) -> Timeline:
    """Four gradients of 10 MB at 10, 20, 30, 40 of 100 ms on a link of 1 ms a MB, then latency on top."""
    job = workload([40, 30, 20, 10], [10, 10, 10, 10])
    return sim.simulate(job, hardware(latency_ms=latency_ms), sim.assign(job, policy))


def test_latency_against_bytes_by_hand() -> None:
    """Latency 40, bytes 10 a bucket, all of it after 10 ms of backward's 100.

    Four buckets: latency alone ends at 10 + 4 x 40 = 170, 70 past backward; bytes add 40. One bucket, ready
    at 40: its latency ends at 80 and hides behind backward; its bytes end at 120, and add 20. With a latency
    of 4 it ends before backward.
    """
    for latency_ms, one_bucket in ((40, 20), (4, 0)):
        found = sim.difference(built(40, "per-parameter"), built(latency_ms, "single"))
        told = {part.name: (part.before_ns / MS, part.after_ns / MS) for part in found}
        assert told == {"compute": (150, 150), "latency": (70, 0), "bytes": (40, one_bucket)}
        assert [part.name for part in found] == ["latency", "bytes", "compute"]


def test_latency_is_what_no_bytes_take_of_messages_beyond_the_curve_too() -> None:
    workload = handmade([100 * MS], 32 << 20)
    curve = {size: MS + 4 * size for size in (4096, 1 << 20)}
    hardware = wired(curve, comm_channels=2, shared_connection=True)
    _, slower = sim.scale(workload, hardware, latency=3.0)
    steps = (sim.simulate(workload, one, sim.assign(workload), "analytic") for one in (hardware, slower))
    (latency,) = (part for part in sim.difference(*steps) if part.name == "latency")
    assert (latency.before_ns, latency.after_ns) == (MS, 3 * MS)


_SHARDED = dict.fromkeys(("overlap_grad_reduce", "use_distributed_optimizer", "overlap_param_gather"), True)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("ddp", {}),
        ("ddp", {"find_unused_parameters": True}),
        ("per-parameter", {"accumulation_steps": 2}),
        ("zero1", {}),
        ("zero2", {"gradient_accumulation_steps": 2}),
        ("after-backward", {}),
        ("megatron", {}),
        ("megatron", {**_SHARDED, "bucket_size": 4_000_000}),
        ("fully_shard", {}),
        ("fully_shard", {"accumulation_steps": 2}),
    ],
)
def test_collectives_are_those_that_are_explained(policy: str, options: dict[str, Any]) -> None:
    """And another system differs by parts that add up, gathers that hide behind forward among them."""
    buffers = (Buffer(dtype="float32", num_bytes=400),)
    job = replace(workload([40, 30, 20, 10], [10, 10, 10, 10]), buffers=buffers)
    curve = hardware(latency_ms=4).all_reduce
    machine = replace(hardware(latency_ms=4), all_gather=curve, reduce_scatter=curve, broadcast=curve)
    played = sim.simulate(job, machine, sim.assign(job, policy, **options))
    told = sim.explain(job, policy, **options).iterations[-1].events
    assert [(one.kind, one.num_bytes, one.phase) for one in sim.collectives(played)] == [
        (one.kind, one.num_bytes, one.phase) for one in told
    ]
    check_adds_up(sim.simulate(job, machine, sim.assign(job)), played)


# The error of sync_end, by mechanism: worlds that differ from the model in one thing only.

COUNT = 12
PARTS = ("compute_ns", "copy_ns", "launch_ns", "communication_ns", "wait_ns")
ROUNDING = 2 * COUNT  # a nanosecond a copy and a stretched instant


def make_workload(sizes: list[int], gaps_ms: list[int]) -> Workload:
    ready = [sum(gaps_ms[: place + 1]) * MS for place in range(len(sizes))]
    times = {"forward_ns": 10 * MS, "backward_ns": ready[-1] + MS, "optimizer_ns": MS}
    return handmade(ready[::-1], sizes, **times)


def make_hardware(**more: Any) -> Hardware:
    costs = {"launch_cost_ns": 40_000, "launch_blocks_compute": True}
    rates = {"copy_in_bytes_per_s": 8e9, "copy_out_bytes_per_s": 9e9}
    return wired({0: 400_000, MIB: 3 * MS}, **costs | rates | more)


def lane(name: str, backward_end: int, sync_end: int, asked: Assignment | None = None, **more: Any) -> Any:
    step_ns = sync_end + 11 * MS
    seen = MeasuredIteration(step_ns=step_ns, backward_end_ns=backward_end, sync_end_ns=sync_end)
    return measurement(name, asked, [seen], role="candidate" if asked else name, **more)


def measured_in(
    workload: Workload, hardware: Hardware, assignment: Assignment, late_ns: int = 0
) -> tuple[Measurement, ...]:
    """What a replay measures where ``workload`` and ``hardware`` are the truth; ``late_ns``: the return of
    the last wait."""
    sizes = [gradient.num_bytes for gradient in workload.gradients]
    plain = workload.backward_ns
    copied_in = plain + sum(transfer_ns(size, hardware.copy_in_bytes_per_s) for size in sizes)
    copied_out = copied_in + transfer_ns(sum(sizes), hardware.copy_out_bytes_per_s)
    timeline = sim.simulate(workload, hardware, assignment)
    launches = [0, *(bucket.launch_ns for bucket in timeline.buckets)]
    buckets = tuple(  # a hook is called after the one before
        seen_bucket(one.index, max(one.ready_ns, before_ns), one.launch_ns, one.end_ns)
        for one, before_ns in zip(timeline.buckets, launches, strict=False)
    )
    ends = timeline.backward_end_ns, timeline.sync_end_ns
    seen = MeasuredIteration(step_ns=1, backward_end_ns=ends[0], sync_end_ns=ends[1], buckets=buckets)
    candidate = lane("c", ends[0], ends[1] + late_ns, assignment, traced=(seen,))
    return lane("plain", plain, plain), lane("noop", copied_in, copied_out), candidate


def attributed(
    workload: Workload, hardware: Hardware, cap: float, truth: tuple[Workload, Hardware], late_ns: int = 0
) -> Attribution:
    """Predicted with ``workload`` and ``hardware``, measured where ``truth`` is true."""
    assignment = sim.assign(workload, bucket_cap_mb=cap)
    measurements = measured_in(*truth, assignment, late_ns)
    record = Record(name="r", workload=workload, hardware=hardware, measurements=measurements)
    found = attribute(record, record.candidates[0])
    assert sum(getattr(found, part) for part in PARTS) == found.total_ns
    ends = [sim.simulate(*one, assignment).sync_end_ns for one in ((workload, hardware), truth)]
    assert found.total_ns == ends[0] - ends[1] - late_ns
    return found


def slower(workload: Workload, hardware: Hardware, percent: int) -> Workload:
    return sim.scale(workload, hardware, backward=percent / 100)[0]


workloads = st.builds(
    make_workload,
    st.lists(st.sampled_from([4096, MIB // 4, MIB, 3 * MIB]), min_size=COUNT, max_size=COUNT),
    st.lists(st.integers(0, 9), min_size=COUNT, max_size=COUNT),
)
_SHARED: dict[str, Any] = {
    "comm_channels": st.sampled_from([1, 2]),
    "channel_slowdown": st.sampled_from([1.0, 2.0]),
    "comm_slowdown": st.sampled_from([1.0, 1.25]),
}
machines = st.builds(make_hardware, **_SHARED, launch_blocks_compute=st.booleans())
# Where what overlaps slows down, an error of one mechanism changes what the others take, all but the compute
# lane's own. Launches are free here: a stretched launch is measured as a dear one.
contended = st.builds(
    make_hardware, **_SHARED, compute_slowdown=st.sampled_from([1.0, 1.1]), launch_cost_ns=st.just(0)
)
caps = st.sampled_from([0.2, 1.0, 4.0, 1000.0])
factors = st.integers(60, 180).filter(lambda percent: abs(percent - 100) > 5)


@settings(max_examples=tries(60))
@given(workloads, machines, caps, factors, st.sampled_from(["compute", "copy", "launch", "communication"]))
def test_one_mechanism_that_is_off_gets_all_of_the_error(
    workload: Workload, hardware: Hardware, cap: float, percent: int, mechanism: str
) -> None:
    rates = {"copy_in_bytes_per_s": 8e11 / percent, "copy_out_bytes_per_s": 9e11 / percent}
    truth = {
        "compute": (slower(workload, hardware, percent), hardware),
        "copy": (workload, replace(hardware, **rates)),
        "launch": (workload, replace(hardware, launch_cost_ns=400 * percent)),
        "communication": (workload, apply_factor(hardware, "curve", percent / 100)),
    }
    found = attributed(workload, hardware, cap, truth[mechanism])
    for part in PARTS:
        expected = found.total_ns if part == f"{mechanism}_ns" else 0
        assert getattr(found, part) == pytest.approx(expected, abs=ROUNDING), part


@settings(max_examples=tries(60))
@given(workloads, contended, caps, factors, st.integers(-MS, 20 * MS))
def test_a_slower_backward_is_compute_and_a_late_return_a_wait_whatever_slows_down(
    workload: Workload, hardware: Hardware, cap: float, percent: int, late: int
) -> None:
    found = attributed(workload, hardware, cap, (slower(workload, hardware, percent), hardware), late)
    assert found.wait_ns == pytest.approx(-late, abs=2 * ROUNDING)
    assert found.compute_ns == pytest.approx(found.total_ns + late, abs=2 * ROUNDING)


@settings(max_examples=tries(40))
@given(workloads, machines, caps, st.lists(factors, min_size=4, max_size=4), st.integers(0, 5 * MS))
def test_parts_add_up_where_everything_is_off(
    workload: Workload, hardware: Hardware, cap: float, percents: list[int], late: int
) -> None:
    """``attributed`` asserts the sum; what each mechanism gets, all being simulated, leaves the wait."""
    backward, copy, launch, wire = percents
    truth = replace(hardware, copy_in_bytes_per_s=8e11 / copy, launch_cost_ns=400 * launch)
    both = slower(workload, hardware, backward), apply_factor(truth, "curve", wire / 100)
    assert attributed(workload, hardware, cap, both, late).wait_ns == pytest.approx(-late, abs=ROUNDING)


def test_what_hides_behind_something_else_counts_for_nothing() -> None:
    """A wire that is always behind: only the last bucket's copy back is not hidden by a wait."""
    workload, hardware = make_workload([MIB] * 4, [1] * 4), make_hardware()
    found = attributed(workload, hardware, 1, (workload, replace(hardware, copy_out_bytes_per_s=3e9)))
    one = transfer_ns(MIB, 9e9) - transfer_ns(MIB, 3e9)
    assert found.copy_ns == pytest.approx(one, abs=ROUNDING)
    assert found.total_ns == one


def test_without_what_it_takes_nothing_is_attributed() -> None:
    """Plain and noop runs, every stamp, and traces of the same buckets; others beside them do not hurt.
    Without copies in the model, what they cost is the copies' part."""
    workload, hardware = make_workload([MIB] * 6, [2] * 6), make_hardware()
    measurements = measured_in(workload, hardware, sim.assign(workload, bucket_cap_mb=1))
    whole = Record(name="r", workload=workload, hardware=hardware, measurements=measurements)
    for missing in ("plain", "noop"):
        left = tuple(one for one in measurements if one.role != missing)
        assert sim.attribution(replace(whole, measurements=left)) == {}
    candidate = whole.candidates[0]
    (seen,) = candidate.traced
    fewer = replace(seen, buckets=seen.buckets[:1])
    blind: list[dict[str, Any]] = [{"ready_ns": None}, {"launch_ns": None}, {"end_ns": None}]
    lacking = [replace(seen, buckets=(replace(seen.buckets[0], **one), *seen.buckets[1:])) for one in blind]
    for traced in ((), (fewer,), *((one,) for one in lacking)):
        assert attribute(whole, replace(candidate, traced=traced)) is None
    assert attribute(whole, replace(candidate, traced=(fewer, seen))) == attribute(whole, candidate)
    bare = replace(hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
    for machine, has_copies in ((hardware, True), (bare, False)):
        (found,) = sim.attribution(replace(whole, hardware=machine)).values()
        assert (abs(found.total_ns) <= ROUNDING) == has_copies
        assert found.copy_ns == pytest.approx(found.total_ns, abs=ROUNDING)
