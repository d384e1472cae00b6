"""Anchoring: a hidden truth is found again from one step of it, and what cannot be true is refused."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import sim
from sim.costs.doubts import doubts_about_step, open_ranges, with_own_costs
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import COSTS, Hardware
from sim.nouns.workload import Workload
from sim.systems.simulate import simulated_step_ns
from sim.truth.fit import MOST_SLOWDOWN, USUAL_NOISE, Factor, apply_factor
from tests.effort import tries
from tests.handmade import handmade, wired

MIB = 1 << 20
MS = 1_000_000
CAPS = (0.0, 1.0, 8.0, 25.0, 1000.0)
FACTORS: tuple[Factor, ...] = ("mutual", "compute_slowdown", "comm_slowdown")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Gradients in reverse order, ms of work and MiB of bytes each."""
    works = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 32)), min_size=2, max_size=12))
    ready = [sum(work for work, _ in works[: place + 1]) * MS for place in range(len(works))]
    sizes = [mib * MIB for _, mib in works]
    return handmade(ready[::-1], sizes[::-1], forward_ns=50 * MS, optimizer_ns=5 * MS)


@st.composite
def links(draw: st.DrawFn) -> Hardware:
    """An affine link of 4 ranks, with copies that cost something or nothing."""
    latency, per_mib = draw(st.integers(10_000, 500_000)), draw(st.integers(50_000, 2 * MS))
    link = wired({mib * MIB: latency + mib * per_mib for mib in (0, 1, 512)}, name="link", world_size=4)
    copies = {"copy_in_bytes_per_s": 3.5e11, "copy_out_bytes_per_s": 3.5e11, "accumulate_bytes_per_s": 2.3e11}
    return replace(link, **copies) if draw(st.booleans()) else link


slowdowns = st.floats(1.02, 2.0)


def step_ns(workload: Workload, hardware: Hardware, cap: float) -> int:
    return sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=cap), "analytic").step_ns


def measure(workload: Workload, hardware: Hardware, cap: float) -> tuple[Assignment, int]:
    return sim.assign(workload, bucket_cap_mb=cap), step_ns(workload, hardware, cap)


@settings(max_examples=tries(40), suppress_health_check=[HealthCheck.filter_too_much])
@given(workloads(), links(), st.sampled_from([*FACTORS, "curve"]), st.data(), st.sampled_from(CAPS))
def test_a_hidden_factor_is_found_from_one_step(
    workload: Workload, link: Hardware, factor: Factor, data: st.DataObject, cap: float
) -> None:
    """Where the step depends on it: and then the other caps come out as the truth has them."""
    hidden = data.draw(st.floats(0.3, 3.0) if factor == "curve" else slowdowns)
    truth = apply_factor(link, factor, hidden)
    measured = measure(workload, truth, cap)
    slope = [step_ns(workload, apply_factor(link, factor, hidden + d), cap) for d in (-0.01, 0, 0.01)]
    assume(slope[1] - slope[0] > 10_000 and slope[2] - slope[1] > 10_000)
    found = sim.anchor(workload, link, *measured, factor=factor)
    assert found.factor == factor
    assert found.value == pytest.approx(hidden, abs=1e-4)
    assert abs(found.residual_ns) <= 1_000
    assert found.plain_ns == step_ns(workload, link, cap)
    for other in CAPS:
        expected = step_ns(workload, truth, other)
        assert step_ns(workload, found.hardware, other) == pytest.approx(expected, rel=1e-4)


def says_something(workload: Workload, link: Hardware, factor: Factor, cap: float) -> bool:
    """Whether a step under ``cap`` depends on the factor, by more than rounding."""
    least, most = (step_ns(workload, apply_factor(link, factor, value), cap) for value in (1, MOST_SLOWDOWN))
    return most > least + 1_000


@settings(max_examples=tries(25))
@given(workloads(), links(), slowdowns, st.sampled_from(CAPS))
def test_every_other_factor_makes_the_step_true_too(
    workload: Workload, link: Hardware, hidden: float, cap: float
) -> None:
    """One number fixes one factor: which one it was cannot be told, so all that could be are given."""
    measured = measure(workload, apply_factor(link, "mutual", hidden), cap)
    assume(says_something(workload, link, "mutual", cap))
    found = sim.anchor(workload, link, *measured)
    assert found.factor == "mutual"
    assert sum(one.weight for one in found.readings) == pytest.approx(1)
    others = {one.what for one in found.readings[1:]}
    assert others <= {"compute_slowdown", "comm_slowdown", "curve", "launch_cost_ns"}
    for one in found.readings:
        assert replace(one.hardware, spread=link.spread) == apply_factor(link, one.what, one.value)
        within = 1_000 if one.value < MOST_SLOWDOWN else USUAL_NOISE * measured[1]  # at the end of its range
        assert step_ns(workload, one.hardware, cap) == pytest.approx(measured[1], abs=within)
    for told in found.hardware.spread.get("readings", []):  # the same machines, as the file keeps them
        scaled = apply_factor(replace(found.hardware, **told["set"]), "curve", told["curve"])
        within = USUAL_NOISE * measured[1] if MOST_SLOWDOWN in told["set"].values() else 1_000
        assert step_ns(workload, scaled, cap) == pytest.approx(measured[1], rel=1e-5, abs=within)


@settings(max_examples=tries(25))
@given(workloads(), links(), st.sampled_from(FACTORS))
def test_a_step_that_is_too_short_is_refused(workload: Workload, link: Hardware, factor: Factor) -> None:
    """Unless it is within the noise; then there is no interference, and what is left over is told."""
    assume(says_something(workload, link, factor, 8.0))
    made, plain_ns = measure(workload, link, 8.0)
    short_ns, shorter_ns = (round(plain_ns * (1 - by * USUAL_NOISE)) for by in (0.9, 1.1))
    found = sim.anchor(workload, link, made, short_ns, factor=factor)
    assert found.value == 1
    assert found.residual_ns == plain_ns - short_ns
    with pytest.raises(InputError, match=r"is shorter by .* than the parts allow without any interference"):
        sim.anchor(workload, link, made, shorter_ns, factor=factor)


def workload_of(*gradients: tuple[int, int]) -> Workload:
    """(ready in ms, MiB), the last index first."""
    ready, sizes = zip(*reversed(gradients), strict=True)
    return handmade([at * MS for at in ready], [mib * MIB for mib in sizes], forward_ns=50 * MS)


# 1 ms a MiB: 10 ms of all-reduce beside 20 ms of backward, then 2 ms that nothing hides.
PAIR = workload_of((10, 10), (30, 2))
LINK = wired({0: 0, MIB: MS}, name="link", world_size=4)
SLOWER = wired({0: 0, MIB: 3 * MS}).all_reduce


def test_by_hand() -> None:
    """Slowed 1.25-fold, 8 ms of backward take the 10 ms of the all-reduce: 30 + 2 + 2 ms."""
    made = sim.assign(PAIR, bucket_cap_mb=1)
    measured = made, 84 * MS
    found = sim.anchor(PAIR, LINK, *measured, factor="compute_slowdown")
    assert (found.plain_ns, found.value) == (82 * MS, pytest.approx(1.25))
    bare = replace(found.hardware, provenance={}, spread={})
    assert bare == replace(LINK, compute_slowdown=found.value, provenance={})
    told = found.hardware.provenance["anchored"]
    assert (told["measured_step_ns"], told["factor"]) == (84 * MS, "compute_slowdown")


def test_which_factor_is_fixed_by_default() -> None:
    measured = sim.assign(PAIR, bucket_cap_mb=1), 84 * MS
    neither = sim.anchor(PAIR, LINK, *measured)
    assert neither.factor == "mutual"
    assert neither.hardware.compute_slowdown == neither.hardware.comm_slowdown == neither.value
    known = sim.anchor(PAIR, replace(LINK, comm_slowdown=1.1), *measured)
    assert (known.factor, known.hardware.comm_slowdown) == ("compute_slowdown", 1.1)
    assert {one.what for one in known.readings[1:]} <= {"curve", "launch_cost_ns"}
    link = replace(LINK, compute_slowdown=1.2)
    slower = measure(PAIR, replace(link, comm_slowdown=1.5), 1)
    assert sim.anchor(PAIR, link, *slower).factor == "comm_slowdown"


WIDE = {"ranges": {"all_reduce": {"low": 0.9, "high": 80.0}}}


@pytest.mark.parametrize(
    ("link", "factor", "step_of", "why"),
    [
        (LINK, None, ("curve", 60.0), "beyond"),
        (LINK, "curve", ("curve", 2.1), "beyond"),
        (LINK, "curve", ("curve", 1.9), None),
        (LINK, "curve", ("curve", 2.0), None),  # however the search rounds it
        (LINK, "curve", ("curve", 0.45), "beyond"),
        (replace(LINK, spread=WIDE), "curve", ("curve", 60.0), None),
        (LINK, "mutual", ("mutual", MOST_SLOWDOWN), "bound"),
        (LINK, "compute_slowdown", ("compute_slowdown", MOST_SLOWDOWN), "bound"),
        (LINK, "comm_slowdown", ("comm_slowdown", MOST_SLOWDOWN), "bound"),
        (LINK, "mutual", ("mutual", 3.5), None),
        (LINK, "mutual", ("mutual", 4.01), "bound"),  # within its noise of the bound
        (LINK, "mutual", ("mutual", 1.0), None),
    ],
)
def test_what_is_no_fit_is_kept_in_the_file_and_no_gain_is_told(
    link: Hardware, factor: Factor | None, step_of: tuple[Factor, float], why: str | None, tmp_path: Path
) -> None:
    measured = measure(PAIR, apply_factor(link, *step_of), 1)
    found = sim.anchor(PAIR, link, *measured, factor=factor)
    known = found.hardware.spread.get("anchor", {})
    assert (found.fits, known.get("why"), known.get("fits", True)) == (why is None, why, why is None)
    file = tmp_path / "anchored.json"
    file.write_text(sim.to_text(found.hardware))
    again = sim.load_hardware(file)
    assert bool(doubts_about_step(again)) is (why is not None)
    answer = sim.tune(PAIR, again)
    assert answer.gain.refuted is (why is not None)
    if why is not None:
        assert (answer.gain.significant, answer.gain.gain_ns) == (False, 0)
        assert answer.assignment.bucket_indices == answer.baseline.bucket_indices
        assert answer.setting.pick == "default"
        assert answer.notes[0] in found.notes
        other = sim.assign(PAIR, bucket_cap_mb=1000)
        assert sim.gain(PAIR, again, other).refuted
    refitted = sim.anchor(PAIR, again, *measure(PAIR, again, 1), factor="curve")
    assert refitted.fits
    assert "anchor" not in refitted.hardware.spread


@pytest.mark.parametrize("name", ["own_step", "anchor"])
@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"fits": "false"}, r"\.fits"),
        ({"fits": 0}, r"\.fits"),
        ({"fits": False, "explained_by": "2"}, r"\.explained_by"),
        ({"fits": False, "why": 3}, r"\.why"),
        ([False], ""),
    ],
)
def test_what_a_step_said_of_a_link_is_checked_at_the_border(name: str, said: object, field: str) -> None:
    with pytest.raises(InputError, match=rf"spread\.{name}{field}: .* is not legal"):
        replace(LINK, spread={name: said})


def test_beyond_a_fair_slowdown_the_link_is_the_first_suspect() -> None:
    """A link that is twice as slow gives the step; so does a mutual slow-down of nearly as much."""
    slow = apply_factor(LINK, "curve", 3.0)
    found = sim.anchor(PAIR, LINK, *measure(PAIR, slow, 1))
    assert (found.factor, found.value) == ("curve", pytest.approx(3, abs=1e-4))
    assert found.hardware.all_reduce == slow.all_reduce
    weights = {one.what: one.weight for one in found.readings}
    assert max(weights, key=weights.__getitem__) == "curve"


def test_a_step_that_no_slowdown_explains_is_the_links() -> None:
    """It is told how slow the link would be, also where that is beyond what the link states."""
    measured = measure(PAIR, apply_factor(LINK, "curve", 60.0), 1)
    for high, is_beyond in ((None, True), (6.0, True), (80.0, False)):
        spread = {} if high is None else {"ranges": {"all_reduce": {"low": 0.9, "high": high}}}
        found = sim.anchor(PAIR, replace(LINK, spread=spread), *measured)
        assert (found.factor, found.value) == ("curve", pytest.approx(60, abs=1e-3))
        assert any("one that takes 60 times as long" in one for one in found.notes) == is_beyond
        assert "ranges" not in found.hardware.spread
    with pytest.raises(InputError, match=r"beyond what mutual explains.* or measure the link that trains"):
        sim.anchor(PAIR, LINK, *measured, factor="mutual")


def test_what_contains_interference_says_nothing_more_of_it() -> None:
    """A trace's times: no factor of computation, and comm_slowdown by default."""
    slowed = replace(PAIR, ready_includes=("copy_in", "launch", "interference"))
    measured = measure(slowed, replace(LINK, comm_slowdown=2.5), 1)
    for factor in ("mutual", "compute_slowdown"):
        with pytest.raises(InputError, match=f"ready_includes has interference.* {factor} cannot be fixed"):
            sim.anchor(slowed, LINK, *measured, factor=factor)
    with pytest.raises(InputError, match="compute_slowdown cannot be fixed"):
        sim.anchor(slowed, replace(LINK, comm_slowdown=1.2), *measured)
    for link in (LINK, replace(LINK, compute_slowdown=1.2)):
        asked = sim.anchor(slowed, link, *measured, factor="comm_slowdown")
        assert {one.what for one in asked.readings[1:]} == {"curve"}
        assert asked.value == pytest.approx(2.5, abs=1e-4)
        assert sim.anchor(slowed, link, *measured).factor == "curve"  # more than two share fairly
        fair = measure(slowed, replace(link, comm_slowdown=1.9, all_reduce=SLOWER), 1)
        found = sim.anchor(slowed, replace(link, all_reduce=SLOWER), *fair)
        assert found.factor == "comm_slowdown"
    whole = sim.assign(slowed, bucket_cap_mb=1000), 95 * MS
    with pytest.raises(InputError, match=r"^measured: this step says nothing of comm_slowdown"):
        sim.anchor(slowed, LINK, *whole)


def test_a_row_without_overlap_says_nothing_of_slowdowns() -> None:
    one = sim.assign(PAIR, bucket_cap_mb=1000), 95 * MS
    with pytest.raises(InputError, match=r"says nothing of mutual; it is 92.00 ms whatever that is"):
        sim.anchor(PAIR, LINK, *one)
    assert sim.anchor(PAIR, LINK, *one, factor="curve").value == pytest.approx(15 / 12)


# ---- Costs of DDP's own that are of other machines.

PEER_TO_PEER = {"ranges": {"all_reduce": {"low": 0.9, "high": 6.0}}}


@settings(max_examples=tries(20))
@given(workloads(), links(), st.sampled_from(CAPS))
def test_a_machine_that_predicts_the_step_stays_as_it_is(
    workload: Workload, link: Hardware, cap: float
) -> None:
    """Given back as a dashboard shows it; each range goes as far as the step stays the same."""
    machine = with_own_costs(replace(link, spread=PEER_TO_PEER))
    made, plain_ns = measure(workload, machine, cap)
    found = sim.anchor(workload, machine, made, round(plain_ns, -4))
    assert (found.value, found.plain_ns, found.predicted_ns) == (1, plain_ns, plain_ns)
    bare = {"spread": {}, "provenance": {}}
    assert replace(found.hardware, **bare) == replace(machine, **bare)
    assert found.readings[0].hardware is machine
    stated, kept = machine.spread["ranges"], found.hardware.spread["ranges"]
    for name, ends in kept.items():
        assert stated[name]["low"] <= ends["low"] <= ends["high"] <= stated[name]["high"]
        for end in ends.values():
            there = {name: end} if name != "all_reduce" else {}
            moved = apply_factor(replace(machine, **there), "curve", end if name == "all_reduce" else 1.0)
            assert step_ns(workload, moved, cap) == pytest.approx(plain_ns, rel=1.01 * USUAL_NOISE)
    assert kept.keys() == stated.keys()


def test_a_link_that_the_step_does_not_fix_keeps_its_range() -> None:
    """What is hidden under 3 s of backward may take six times as long."""
    hidden = workload_of((10, 10), (3000, 1))
    machine = with_own_costs(replace(LINK, spread=PEER_TO_PEER))
    found = sim.anchor(hidden, machine, *measure(hidden, machine, 1))
    assert found.hardware.spread["ranges"]["all_reduce"] == PEER_TO_PEER["ranges"]["all_reduce"]


@settings(max_examples=tries(15))
@given(workloads(), links(), st.floats(1.05, 1.9), st.sampled_from(("curve", "mutual", "own_costs")))
def test_own_costs_are_read_as_taken_and_as_absent(
    workload: Workload, link: Hardware, hidden: float, factor: Factor
) -> None:
    """All machines make the step true, the hidden one among them; the file keeps them all."""
    machine = with_own_costs(link)
    measured = measure(workload, apply_factor(machine, factor, hidden), 8.0)
    assume(measured[1] > (1 + 2 * USUAL_NOISE) * step_ns(workload, machine, 8.0))
    found = sim.anchor(workload, machine, *measured)
    values = {(one.what, one.own_costs): one.value for one in found.readings}
    assert values[factor, "as taken"] == pytest.approx(hidden, rel=1e-3)
    assert {costs for _, costs in values} >= {"as taken", "no"}
    for one in found.readings:
        assert step_ns(workload, one.hardware, 8.0) == pytest.approx(measured[1], rel=2 * USUAL_NOISE)
    for told, one in zip(found.hardware.spread["readings"], found.readings, strict=True):
        scaled = apply_factor(replace(found.hardware, **told["set"]), "curve", told["curve"])
        assert step_ns(workload, scaled, 8.0) == pytest.approx(step_ns(workload, one.hardware, 8.0), rel=1e-5)


def hidden_truth(machine: Hardware, draw: random.Random) -> Hardware:
    """A machine that lies anywhere in the ranges: half of them on either side of what is taken."""
    changed, link = {}, 1.0
    for name, ends in open_ranges(machine).items():
        own = 1.0 if name == "all_reduce" else getattr(machine, name)
        end = ends[draw.choice(("low", "high"))]
        value = own + (end - own) * draw.random()
        if name == "all_reduce":
            link = value
        else:
            changed[name] = round(value) if name in COSTS else value
    return apply_factor(replace(machine, **changed), "curve", link)


def test_a_cost_that_is_free_lies_in_no_range() -> None:
    machine = replace(with_own_costs(LINK), copy_out_bytes_per_s=None)
    found = sim.anchor(PAIR, machine, sim.assign(PAIR, bucket_cap_mb=1), 84 * MS)
    assert {one.hardware.copy_out_bytes_per_s for one in found.readings} == {None}


def test_the_interval_of_a_gain_holds_the_hidden_truth() -> None:
    """Random small jobs, each anchored on one step of DDP's default; what is recommended does not lose."""
    count, inside = tries(60, 12), 0
    for number in range(count):
        draw = random.Random(number)
        works = [(draw.randint(1, 60), draw.choice((1, 4, 16, 64))) for _ in range(draw.randint(2, 30))]
        ready = [sum(work for work, _ in works[: place + 1]) * MS // 10 for place in range(len(works))]
        job = handmade(ready[::-1], [size * MIB // 4 for _, size in works][::-1], forward_ns=ready[-1] // 2)
        per_mib = draw.choice((5_000, 60_000, 800_000))
        link = wired({mib * MIB: 40_000 + mib * per_mib for mib in (0, 1, 512)}, world_size=4)
        machine = with_own_costs(replace(link, spread=draw.choice(({}, PEER_TO_PEER))))
        truth, default = hidden_truth(machine, draw), sim.assign(job)
        measured_ns = simulated_step_ns(job, truth, default)
        answer = sim.tune(job, sim.anchor(job, machine, default, measured_ns).hardware, draws=40)
        true_ns, gain = measured_ns - simulated_step_ns(job, truth, answer.assignment), answer.gain
        inside += (gain.low_ns or 0) - 1_000 <= true_ns <= (gain.high_ns or 0) + 1_000
        assert true_ns > -USUAL_NOISE * measured_ns or gain.significant is False, number
    assert inside >= 0.9 * count


@pytest.mark.parametrize("factor", [None, "curve", "mutual"])
@pytest.mark.parametrize("step_ms", [60, 79.9])
def test_no_link_explains_a_step_that_is_shorter_than_its_computing(
    step_ms: float, factor: Factor | None
) -> None:
    """50 ms of forward and 30 of backward; also where the rest is within the noise."""
    machine = with_own_costs(LINK)
    measured = sim.assign(PAIR, bucket_cap_mb=1), round(step_ms * MS)
    told = rf"a step of {step_ms:.2f} ms is shorter by .*; computing alone takes 80.0\d ms, which no link"
    for link in (LINK, machine):
        with pytest.raises(InputError, match=told) as refused:
            sim.anchor(PAIR, link, *measured, factor=factor)
        assert "fix the factor curve" not in str(refused.value)
    assert sim.anchor(PAIR, LINK, measured[0], 81 * MS, factor="curve").value == pytest.approx(0.5, abs=1e-3)
