"""The job's own step: predicted from parts, fitted where they are off, left alone where they are right."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.costs.doubts import UNMEASURED_COSTS, doubts_about_step, with_own_costs
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.gpus import GPUS
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.workload import Workload
from sim.systems.simulate import simulated_step_ns as step_ns
from sim.truth.fit import apply_factor
from tests.effort import tries
from tests.handmade import handmade, measurement, seen_bucket, wired

MS = 10**6
MIB = 1 << 20
COUNT = 24

TIMES = {"forward_ns": 80 * MS, "backward_ns": 150 * MS, "optimizer_ns": 20 * MS}
WORKLOAD = handmade([(COUNT - index) * 6 * MS for index in range(COUNT)], MIB, name="job", **TIMES)
CURVE = {size: MS // 2 + size * 8 for size in (4096, MIB, 4 * MIB, 64 * MIB)}
WIRE = wired(CURVE, comm_channels=2, channel_slowdown=2.0)
OWN = sim.assign(WORKLOAD, bucket_cap_mb=6)
OTHER = sim.assign(WORKLOAD, bucket_cap_mb=2)


def measured_on(
    hardware: Hardware,
    gap_ns: int = 0,
    scatter: float = 0.0,
    assignment: Assignment = OWN,
    place: str = "cuda:0",
    workload: Workload = WORKLOAD,
) -> Measurement:
    """Ten steps as ``hardware`` makes them, each longer or shorter by some share."""
    timeline = sim.simulate(workload, hardware, assignment, "analytic")
    steps = []
    for number in range(10):

        def at(ns: int, pace: float = 1 + scatter * (number - 4.5) / 4.5) -> int:
            return round(ns * pace)

        buckets = tuple(
            seen_bucket(one.index, at(one.ready_ns), at(one.launch_ns), at(one.end_ns))
            for one in timeline.buckets
        )
        ends = {"backward_end_ns": at(timeline.backward_end_ns), "sync_end_ns": at(timeline.sync_end_ns)}
        steps.append(MeasuredIteration(step_ns=at(timeline.step_ns + gap_ns), buckets=buckets, **ends))
    known: dict[str, Any] = {"mode": "trace", "world_size": hardware.world_size, "traced": tuple(steps)}
    return measurement("as run", assignment, steps, **known, environment={"place": place})


@pytest.mark.parametrize(
    ("told", "comm"),
    [
        ({"host_share": 0.25}, 1 / 0.75),
        ({"processor_share": 0.25}, 1 / 0.75),
        ({"host_share": 0.25, "comm_beside_compute": 1.1}, 1.1),
    ],
)
def test_what_communication_takes_of_a_host_is_expected_where_the_step_does_not_tell(
    told: dict[str, float], comm: float
) -> None:
    """One bucket leaves nothing beside communication; a GPU's compute is not the host's. What takes a core
    from the other waits for it too, so that both slow-downs are expected alike, unless that was measured."""
    machine = replace(WIRE, compute_slowdown=1 / 0.75, comm_slowdown=comm)
    single = sim.assign(WORKLOAD, "single")
    known = replace(WIRE, spread={name: {str(4 * MIB): value} for name, value in told.items()})
    on_host, on_gpu = (
        sim.own_step(WORKLOAD, known, measured_on(machine, assignment=single, place=place))
        for place in ("cpu", "cuda:0")
    )
    values = {factor.name: factor.value for factor in on_host.factors}
    assert values["compute_slowdown"] == pytest.approx(1 / 0.75, rel=0.01)
    assert values["comm_slowdown"] == pytest.approx(comm, rel=0.01)
    assert on_gpu.factors[-1].value < 1.1
    true_ns = step_ns(WORKLOAD, machine, OTHER)
    assert step_ns(on_host.workload, on_host.hardware, OTHER) == pytest.approx(true_ns, rel=0.01)


def recorded_beside(machine: Hardware, assignment: Assignment) -> Workload:
    """WORKLOAD as a job sees it whose backwards all have these collectives beside them."""
    timeline = sim.simulate(WORKLOAD, machine, assignment, "analytic")
    # An instant of the recording for each of computing: 1 ns of it takes ``compute_slowdown`` beside another.
    instants = {time for bucket in timeline.buckets for time in (bucket.start_ns, bucket.end_ns)}
    edges = sorted({0, 4 * timeline.sync_end_ns} | instants)
    done = [0.0]
    for start, end in pairwise(edges):
        is_beside = any(b.start_ns <= start and end <= b.end_ns for b in timeline.buckets)
        done.append(done[-1] + (end - start) / (machine.compute_slowdown if is_beside else 1))

    def seen(time: int) -> int:
        return round(float(np.interp(time, done, edges)))

    # The clock rounds the end of each task of the lane, by a ns at most, and its rate, by half a 2**-20th of
    # full speed. What that is in time of the lane alone takes up to ``compute_slowdown`` as long where
    # backward ends; ``seen`` rounds once itself.
    rounded_ns = machine.compute_slowdown * (len(timeline.compute) + timeline.backward_end_ns / 2**21) + 0.5
    assert abs(seen(WORKLOAD.backward_ns) - timeline.backward_end_ns) <= rounded_ns
    return replace(
        WORKLOAD,
        gradients=tuple(replace(one, ready_ns=seen(one.ready_ns or 0)) for one in WORKLOAD.gradients),
        backward_ns=seen(WORKLOAD.backward_ns),
        ready_includes=("copy_in", "launch", "interference"),
    )


@settings(max_examples=tries(12), deadline=None)
@given(st.floats(0.05, 0.5), st.sampled_from([2.0, 6.0, 16.0, 1000.0]), st.sampled_from([1, 3, 12]))
def test_other_buckets_come_out_of_backwards_that_all_had_communication_beside_them(
    share: float, own_cap_mb: float, cap_mb: float
) -> None:
    """What their collectives did to them is taken out, and what those of other buckets do is put in."""
    machine = replace(WIRE, compute_slowdown=1 / (1 - share))
    told = replace(WIRE, spread={"host_share": {str(MIB): share}, "comm_beside_compute": {str(MIB): 1.0}})
    layout = sim.assign(WORKLOAD, bucket_cap_mb=own_cap_mb)
    recorded = recorded_beside(machine, layout)
    own = sim.own_step(recorded, told, measured_on(machine, assignment=layout, place="cpu"))
    assert own.workload.ready_includes == ("copy_in", "launch")
    assert own.factors[-1].value == pytest.approx(machine.compute_slowdown, rel=0.001)
    assert own.factors[-1].high > machine.compute_slowdown * 1.1  # no value of it misses the step
    assert own.workload.backward_ns == pytest.approx(WORKLOAD.backward_ns, rel=0.001)
    for asked in (layout, sim.assign(WORKLOAD, bucket_cap_mb=cap_mb)):
        true_ns = step_ns(WORKLOAD, machine, asked)
        assert step_ns(own.workload, own.hardware, asked) == pytest.approx(true_ns, rel=0.005)


def test_the_pass_that_the_recorder_adds_is_in_the_recorded_step_alone() -> None:
    """Each bucket waits for it between being complete and being launched: 4 ns a byte here."""
    machine = replace(WIRE, copy_in_bytes_per_s=1e9)
    slower = measured_on(replace(WIRE, copy_in_bytes_per_s=2e8))

    def passed(step: MeasuredIteration) -> MeasuredIteration:
        sent = zip(step.buckets, OWN.bucket_bytes or (), strict=True)
        waited = (replace(one, ready_ns=(one.launch_ns or 0) - 4 * size) for one, size in sent)
        return replace(step, buckets=tuple(waited))

    hook = replace(slower, traced=tuple(map(passed, slower.traced)), provenance={"source": "sim.record"})
    own = sim.own_step(WORKLOAD, machine, hook)
    assert own.parts_ns == own.step_ns
    assert own.hardware.copy_in_bytes_per_s == 1e9
    other = sim.own_step(WORKLOAD, machine, slower)
    assert other.parts_ns < other.step_ns - 4 * MS


def test_parts_that_are_right_are_left_alone() -> None:
    own = sim.own_step(WORKLOAD, WIRE, measured_on(WIRE))
    assert own.parts_ns == own.step_ns
    assert [round(factor.value, 3) for factor in own.factors] == [1.0] * 4
    true_ns = step_ns(WORKLOAD, WIRE, OTHER)
    assert step_ns(own.workload, own.hardware, OTHER) == pytest.approx(true_ns, rel=1e-3)


@settings(max_examples=tries(12), deadline=None)
@given(st.floats(0.7, 1.5), st.floats(1.0, 1.25), st.floats(1.0, 1.25), st.integers(0, 20 * MS))
def test_another_assignments_step_comes_out_where_the_machine_differs_from_its_parts(
    link: float, comm: float, compute: float, gap_ns: int
) -> None:
    """The fit has seen one assignment; what it says of another is held to the machine itself."""
    machine = replace(apply_factor(WIRE, "curve", link), comm_slowdown=comm, compute_slowdown=compute)
    own = sim.own_step(WORKLOAD, WIRE, measured_on(machine, gap_ns))
    assert step_ns(own.workload, own.hardware, OWN) == own.step_ns
    true_ns = step_ns(WORKLOAD, machine, OTHER) + gap_ns
    assert step_ns(own.workload, own.hardware, OTHER) == pytest.approx(true_ns, rel=0.03)


@pytest.mark.parametrize(
    ("policy", "counted"),
    [
        *(("zero1", "gradient_accumulation_steps"), ("zero2", "gradient_accumulation_steps")),
        *(
            ("ddp", "accumulation_steps"),
            ("fully_shard", "accumulation_steps"),
            ("megatron", "num_microbatches"),
        ),
    ],
)
@settings(max_examples=tries(10, 3), deadline=None)
@given(st.integers(0, 30 * MS), st.integers(1, 3))
def test_what_is_nobodys_in_a_step_is_divided_by_no_system(
    policy: str, counted: str, gap_ns: int, steps: int
) -> None:
    """It is the rest at the end of the step, once, by either clock; the optimizer takes what was recorded."""
    own = sim.own_step(WORKLOAD, WIRE, measured_on(WIRE, gap_ns))
    assert own.workload.optimizer_ns == WORKLOAD.optimizer_ns
    assert own.workload.rest_ns == pytest.approx(gap_ns, rel=0.02, abs=2 * MS)
    assert step_ns(own.workload, own.hardware, OWN) == own.step_ns
    machine = replace(own.hardware, reduce_scatter=WIRE.all_reduce, all_gather=WIRE.all_reduce)
    sharded = {"use_distributed_optimizer": True} if policy == "megatron" else {}
    assignment = sim.assign(WORKLOAD, policy, **{counted: steps}, **sharded)
    for clock in ("analytic", "simpy"):
        with_rest, without = (
            sim.summarize(sim.simulate(replace(own.workload, rest_ns=ns), machine, assignment, clock))
            for ns in (own.workload.rest_ns, 0)
        )
        assert with_rest.step_ns - without.step_ns == own.workload.rest_ns
        told = {"rest": own.workload.rest_ns} if own.workload.rest_ns else {}
        assert with_rest.parts_ns == without.parts_ns | told
        assert with_rest.optimizer_ns == without.optimizer_ns


def test_what_the_step_leaves_open_widens_the_interval() -> None:
    quiet = sim.own_step(WORKLOAD, WIRE, measured_on(WIRE))
    noisy = sim.own_step(WORKLOAD, WIRE, measured_on(WIRE, scatter=0.2))

    def width(workload: Workload, hardware: Hardware) -> int:
        gain = sim.gain(workload, hardware, OTHER)
        assert gain.low_ns is not None
        assert gain.high_ns is not None
        return gain.high_ns - gain.low_ns

    assert sim.gain(WORKLOAD, WIRE, OTHER).low_ns is None
    assert 0 < width(quiet.workload, quiet.hardware) < width(noisy.workload, noisy.hardware)


@pytest.mark.parametrize("ratio", [0.02, 30.0])
def test_a_step_that_this_link_cannot_give_is_no_fit_and_no_gain(ratio: float) -> None:
    """Recorded on a link 50 times as fast, or 30 times as slow: the factors end at their bounds, however long
    the rest of the step is."""
    truth, workload = apply_factor(WIRE, "curve", ratio), replace(WORKLOAD, forward_ns=10_000 * MS)
    own = sim.own_step(workload, WIRE, measured_on(truth, workload=workload))
    told = own.hardware.spread["own_step"]
    assert told["fits"] is False
    if ratio > 1:
        assert told["explained_by"] == pytest.approx(ratio, rel=0.01)
    else:  # hidden under backward: how fast the link is, the step does not tell beyond its noise
        assert told["explained_by"] < 0.25
    (doubt,) = doubts_about_step(own.hardware)
    assert "cannot come from it" in doubt
    assert all(
        0.249 < one.low <= one.value <= one.high < 4.001 for one in own.factors
    )  # as far as a fit goes
    assert all(one.low >= 1 for one in own.factors if one.name.endswith("slowdown"))
    answer = sim.tune(own.workload, own.hardware)
    assert answer.gain.significant is False
    assert answer.gain.refuted
    assert answer.assignment.bucket_indices == answer.baseline.bucket_indices
    assert answer.notes[0] == doubt
    assert doubt in answer.report.notes
    fitting = sim.own_step(WORKLOAD, WIRE, measured_on(apply_factor(WIRE, "curve", 1.3)))
    assert "fits" not in fitting.hardware.spread["own_step"]


@pytest.mark.parametrize("end", ["low", pytest.param("high", marks=pytest.mark.slow)])
def test_costs_that_nobody_measured_are_part_of_what_explains_the_step(end: str) -> None:
    """200 hooks of 3 or 30 us where 15 are taken, a tenth of this backward: that is neither another link, nor
    what collectives do to computing."""
    workload = handmade([(200 - index) * MS // 10 for index in range(200)], MIB // 4, backward_ns=20 * MS)
    link = wired({size: 60_000 + size // 12 for size in (4096, MIB, 4 * MIB, 64 * MIB)})
    told = with_own_costs(link, [GPUS["a100-40gb-sxm"]])
    other = {"low": "high", "high": "low"}[end]
    ranges = {name: told.spread["ranges"][name] for name in UNMEASURED_COSTS}
    costs = {name: ends[end if name.endswith("_ns") else other] for name, ends in ranges.items()}
    machine = replace(told, spread={}, **costs)
    seen = measured_on(machine, assignment=sim.assign(workload), workload=workload)
    own = sim.own_step(workload, told, seen)
    values = {factor.name: factor.value for factor in own.factors}
    assert "fits" not in own.hardware.spread["own_step"]
    assert own.hardware.hook_cost_ns == pytest.approx(machine.hook_cost_ns, rel=0.25)
    assert values["link"] == pytest.approx(1, abs=0.1)
    assert values["compute_slowdown"] < 1.15
    default_ns = step_ns(workload, machine, sim.assign(workload))
    for cap_mb in (1, 4, 1000):  # what a launch costs, which decides here, is left open
        asked = sim.assign(workload, bucket_cap_mb=cap_mb)
        gain = sim.gain(own.workload, own.hardware, asked)
        assert gain.low_ns is not None
        assert gain.high_ns is not None
        assert gain.low_ns <= default_ns - step_ns(workload, machine, asked) <= gain.high_ns
        assert gain.high_ns - gain.low_ns < 10 * MS


def test_a_link_is_held_to_the_range_that_it_states() -> None:
    stated = {"ranges": {"all_reduce": {"low": 0.9, "high": 2.0}}}
    for ratio, fits in ((1.9, True), (3.0, False)):
        measured = measured_on(apply_factor(WIRE, "curve", ratio))
        own = sim.own_step(WORKLOAD, replace(WIRE, spread=stated), measured)
        assert bool(doubts_about_step(own.hardware)) is not fits
    wide = {"ranges": {"all_reduce": {"low": 0.9, "high": 6.0}}}
    own = sim.own_step(WORKLOAD, replace(WIRE, spread=wide), measured_on(apply_factor(WIRE, "curve", 5.0)))
    assert own.factors[0].value == pytest.approx(5, rel=0.1)
    assert not doubts_about_step(own.hardware)


def test_ends_of_an_interval_do_not_hang_on_the_seed() -> None:
    """Enough machines are drawn, and with the fit's own covariance."""
    own = sim.own_step(WORKLOAD, WIRE, measured_on(WIRE, scatter=0.2))
    gains = [sim.gain(own.workload, own.hardware, OTHER, seed=seed) for seed in range(5)]
    ends = np.array([(gain.low_ns, gain.high_ns) for gain in gains], float)
    width = (ends[:, 1] - ends[:, 0]).mean()
    assert (ends.max(axis=0) - ends.min(axis=0)).max() < 0.15 * width


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(InputError, match="world_size: 4 is not legal; the job has 2 ranks"):
        sim.own_step(WORKLOAD, replace(WIRE, world_size=4), measured_on(WIRE))
    seen = measured_on(WIRE)
    few = replace(seen, iterations=seen.iterations[:2], traced=seen.traced[:2])
    with pytest.raises(InputError, match="2 steps with all their buckets are not enough"):
        sim.own_step(WORKLOAD, WIRE, few)
    with pytest.raises(InputError, match="no steps under buckets that are known"):
        sim.own_step(WORKLOAD, WIRE, replace(seen, role="plain", asked=None))
    own = sim.own_step(WORKLOAD, WIRE, seen)
    wrong = replace(own.hardware, spread={"own_step": {"factors": ["luck"], "covariance": [[1.0]]}})
    with pytest.raises(InputError, match=r"spread\.own_step"):
        sim.gain(WORKLOAD, wrong, OTHER)
