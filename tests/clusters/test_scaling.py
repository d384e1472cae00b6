"""The scaling view: machines in many sizes, rows that are simulations, ends of a range, why caps change."""

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.machines import preset, sized
from sim.clusters.ranks import Ranks
from sim.clusters.scaling import at_end, tune_caps, why_caps_change
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Hosts
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.problem import Problem
from sim.units import cap_bytes
from tests import strategies
from tests.cluster_strategies import MIB, MS, hosts_of, measured, workload_of
from tests.effort import tries
from tests.handmade import wired
from tests.tuner.cases import resnet50


def why(workload: Workload, machines: list[Hardware], curves: list[CapCurve]) -> tuple[str, str]:
    before, after = ((one, curve.best_mb) for one, curve in zip(machines, curves, strict=True))
    return why_caps_change(workload, before, after, curves[1].best_ns)


def step_ns(workload: Workload, hardware: Hardware, cap_mb: float) -> int:
    """The step under a cap."""
    assignment = sim.assign(workload, bucket_cap_mb=cap_mb)
    return sim.summarize(sim.simulate(workload, hardware, assignment, engine="analytic")).step_ns


# Machines in many sizes.


def test_one_group_of_hosts_has_any_number_and_else_ranks_are_on_the_first_hosts() -> None:
    cluster = preset("dgx_a100", hosts=2)
    assert sized(cluster, {}, hosts=40).hosts == (Hosts(kind="dgx_a100", count=40),)
    assert sized(cluster, {}, hosts=40).placement is None
    assert sized(cluster, {}) == cluster
    assert sized("p4de", {}, hosts=40) == preset("p4de", hosts=40)
    cluster = preset("pcie_hosts", hosts=3, gpus=2, gbit_per_s=10)
    placed = replace(cluster, placement=("host2.gpu0", "host0.gpu1", "host1.gpu0"))
    assert sized(placed, {}, hosts=2).placement == ("host2.gpu0", "host0.gpu1")
    assert sized(placed, {}, world_size=1).placement == ("host2.gpu0",)
    with pytest.raises(InputError, match=r"hosts of 'pcie_hosts': 4 is not legal; .* at most 3"):
        sized(placed, {}, hosts=4)
    with pytest.raises(InputError, match=r"world_size of 'pcie_hosts': 4 is not legal; .* at most 3"):
        sized(placed, {}, world_size=4)


@pytest.mark.parametrize("machine", ["dgx_a100", preset("dgx_a100", hosts=7)])
def test_ranks_fill_host_after_host(machine: str | Cluster) -> None:
    rows = sim.scaling(resnet50(), machine, world_size=[1, 2, 8, 16, 24])
    assert [(row.world_size, row.hosts) for row in rows] == [(1, 1), (2, 1), (8, 1), (16, 2), (24, 3)]
    (whole,) = sim.scaling(resnet50(), machine, hosts=[2])
    assert rows[3].cap_step_ns == whole.cap_step_ns
    assert rows[0].cap_efficiency == 1.0
    twelve = sized(machine, {}, world_size=12)
    assert (twelve.host_count, len(twelve.placement or ())) == (2, 12)


@pytest.mark.parametrize(
    ("machine", "arguments", "words"),
    [
        ("dgx_a300", {}, "preset: 'dgx_a300' is not legal; give one of dgx_a100"),
        ("dgx_a100", {"hosts": [2, 2]}, "hosts: 2 occurs twice"),
        ("dgx_a100", {"hosts": [2], "world_size": [8]}, "world_size: not legal with hosts"),
        ("dgx_a100", {"hosts": [1_000_001]}, "hosts: 1000001 is not legal; .* at most 1000000"),
        ("dgx_a100", {"world_size": [0]}, "world_size: 0 is not legal"),
        ("dgx_a100", {"world_size": [100_000_000]}, "hosts: 12500000 is not legal; .* at most 1000000"),
        ("pcie_box", {"world_size": [5]}, "world_size of 'pcie_x4': 5 is not legal; .* at most 4"),
        ("dgx_a100", {"hosts": 2}, "hosts: 2 is not legal; give a sequence"),
        ("dgx_a100", {"settings": {"racks": [2]}}, "racks: is not a setting of preset 'dgx_a100'"),
        ("pcie_box", {"hosts": [2]}, "hosts of 'pcie_x4': 2 is not legal; .* at most 1"),
        ("dgx_a100", {"hosts": [1, 2], "max_rows": 1}, "2 rows are more than 1; .* max_rows=2"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_it_refuses(machine: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.scaling(workload_of([10, 20], [1, 1]), machine, **arguments)


# Rows.


def test_two_machines_by_hand() -> None:
    """Two gradients of 1 MiB, ready at 10 and 20 ms of a backward of 20 ms, behind a forward of 10 ms.

    On 2 GPUs all-reduces take 2 ms (1 MiB) and 3 ms (2 MiB): two buckets end at 12 and 22 ms, one at 23. On 4
    GPUs any takes 20 ms: two end at 30 and 50 ms, one at 40.
    """
    workload = workload_of([10, 20], [1, 1])
    known = [(hosts_of(2), measured({1: 2, 2: 3})), (hosts_of(4), measured({1: 20, 2: 20}, ranks=4))]
    two, four = sim.scaling(workload, hosts_of(1), hosts=[2, 4], measured=known)
    assert (two.hosts, two.world_size, four.hosts, four.world_size) == (2, 2, 4, 4)
    assert two.single_step_ns == four.single_step_ns == 30 * MS
    assert (two.cap_step_ns, two.cap_exposed_comm_ns, two.cap_num_buckets) == (32 * MS, 2 * MS, 2)
    assert (two.optimum_step_ns, two.optimum_num_buckets) == (32 * MS, 2)
    assert two.cap_efficiency == 30 / 32
    assert (two.cap_low_mb, two.cap_high_mb, two.cap_num_stretches) == (0, 1, 1)
    assert (two.all_reduce_ns, four.all_reduce_ns) == (3 * MS, 20 * MS)
    assert (four.cap_step_ns, four.cap_exposed_comm_ns, four.cap_num_buckets) == (50 * MS, 20 * MS, 1)
    assert four.cap_efficiency == 30 / 50
    assert (four.default_step_ns, four.default_num_buckets) == (60 * MS, 2)
    assert four.default_regret_ns == 10 * MS
    assert not four.default_is_alike
    assert (four.cap_low_mb, four.cap_high_mb) == ((1 << 20) / (1 << 20) + 2**-20, None)
    assert four.reason_code == "cost-of-a-bucket"
    assert "would take 10.00 ms (20.0%) longer than" in four.reason
    assert (two.source, two.cap_step_low_ns, two.cap_step_high_ns) == ("measured", 32 * MS, 32 * MS)
    assert two.cap_is_sure
    assert two.reason == ""


@pytest.mark.parametrize("switches", [{}, {"accumulation_steps": 3, "no_sync": False}])
def test_rows_are_simulations(switches: dict[str, Any]) -> None:
    """To the ns, by the other engine, on the hardware that the cluster gives; over all micro-batches."""
    workload = workload_of([10, 14, 20, 25, 31, 40], [4, 64, 1, 16, 9, 30]).with_switches(switches)
    axes = {"gpus": [2], "gbit_per_s": [25, 100]}
    every = sim.scaling(workload, "pcie_hosts", hosts=[1, 3], settings=axes)
    assert [(row.settings, row.hosts) for row in every] == [
        (f"gpus=2, gbit_per_s={rate}", hosts) for rate in (25, 100) for hosts in (1, 3)
    ]
    for row, rate in ((every[1], 25), (every[2], 100)):
        cluster = sim.cluster("pcie_hosts", hosts=row.hosts, gpus=2, gbit_per_s=rate)
        hardware = sim.cluster_hardware(cluster)
        assert row.world_size == hardware.world_size == 2 * row.hosts
        for cap_mb, step, exposed in (
            (None, row.default_step_ns, row.default_exposed_comm_ns),
            (row.bucket_cap_mb, row.cap_step_ns, row.cap_exposed_comm_ns),
        ):
            made = sim.assign(workload, bucket_cap_mb=cap_mb)
            report = sim.summarize(sim.simulate(workload, hardware, made))
            assert (report.step_ns, report.exposed_comm_ns) == (step, exposed)
        measured_so = replace(hardware, spread={})  # or tune may keep what is surest over the ranges
        answer = sim.tune(workload, measured_so, draws=1)
        assert row.optimum_step_ns == answer.report.step_ns
        assert row.proved_optimal == answer.proved_optimal
        assert row.cap_step_ns == answer.families["bucket_cap_mb"].report.step_ns
        assert row.verdict_code == answer.families["bucket_cap_mb"].report.verdict_code


hosts_up = st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True)


@settings(max_examples=tries(40))
@given(strategies.workloads(strategies.REAL, max_gradients=8), hosts_up, st.sampled_from([1, 2, 4]))
def test_what_holds_of_every_row(workload: Workload, hosts: list[int], gpus: int) -> None:
    """Stretches of caps that are as good are counted one after another, by steps of the other engine."""
    rows = sim.scaling(workload, "pcie_hosts", hosts=hosts, settings={"gpus": [gpus], "gbit_per_s": [25]})
    assert [row.hosts for row in rows] == hosts
    for row in rows:
        assert row.world_size == gpus * row.hosts
        assert 0 <= row.default_efficiency <= 1
        assert row.cap_efficiency <= 1
        assert row.optimum_at_least_ns <= row.optimum_step_ns <= min(row.cap_step_ns, row.default_step_ns)
        assert row.default_step_ns - row.cap_step_ns == row.default_regret_ns
        assert cap_bytes(row.cap_low_mb) <= cap_bytes(row.bucket_cap_mb)
        assert row.cap_high_mb is None or cap_bytes(row.bucket_cap_mb) <= cap_bytes(row.cap_high_mb)
        assert min(row.cap_regret_low_ns, row.cap_regret_high_ns) >= 0
        assert row.cap_step_low_ns <= row.cap_step_ns <= row.cap_step_high_ns
        hardware = sim.cluster_hardware(sim.cluster("pcie_hosts", hosts=row.hosts, gpus=gpus, gbit_per_s=25))
        last_mb = row.cap_low_mb + 1000 if row.cap_high_mb is None else row.cap_high_mb
        for cap_mb in (row.cap_low_mb, last_mb):
            step = step_ns(workload, hardware, cap_mb)
            assert row.cap_step_ns <= step + 4
            assert step <= row.cap_step_ns * 1.001 + 4
        lows = cap_curve(Problem(workload, hardware)).low_bytes.tolist()
        steps = [step_ns(workload, hardware, low / MIB) for low in lows]
        limit = row.cap_step_ns * 1.001
        if all(abs(step - limit) > 4 for step in steps):
            good = groupby(step <= limit for step in steps)
            assert row.cap_num_stretches == sum(is_good for is_good, _ in good)


def test_what_was_measured_on_its_own_model_extrapolates_to_it() -> None:
    """A measurement that is what the model computes, corrects nothing anywhere."""
    workload = resnet50()
    two = sim.cluster("dgx_a100", hosts=2)
    computed = sim.scaling(workload, "dgx_a100", hosts=[2, 4, 64])
    taken = sim.scaling(workload, "dgx_a100", hosts=[2, 4, 64], measured=[(two, sim.cluster_hardware(two))])
    assert [row.source for row in taken] == ["measured"] * 3
    for row, other in zip(taken, computed, strict=True):
        assert row.cap_step_ns == pytest.approx(other.cap_step_ns, abs=2)
        assert row.optimum_step_ns == pytest.approx(other.optimum_step_ns, abs=2)
    assert taken[0].cap_step_low_ns == taken[0].cap_step_high_ns
    assert taken[2].cap_step_low_ns < taken[2].cap_step_high_ns


def test_ranks_that_differ_are_the_worlds_own_draws() -> None:
    workload, ranks = resnet50(), Ranks(name="jitter", pace_jitter=0.05)
    rows = sim.scaling(workload, "dgx_a100", hosts=[1, 4], ranks=ranks, samples=40, seed=3)
    for row in rows:
        hardware = sim.cluster_hardware(sim.cluster("dgx_a100", hosts=row.hosts))
        made = sim.assign(workload, bucket_cap_mb=row.bucket_cap_mb)
        told = sim.step_distribution(workload, hardware, made, ranks, samples=40, seed=3)
        assert (row.jitter, row.samples) == ("jitter", 40)
        assert (row.mean_step_ns, row.p95_step_ns) == (told.mean_step_ns, told.p95_step_ns)
        assert row.slowest_cost_ns == told.slowest_cost_ns > 0
        assert told.nominal_step_ns == row.cap_step_ns
    (alone,) = sim.scaling(workload, "dgx_a100")
    assert (alone.jitter, alone.samples, alone.mean_step_ns) == ("", None, None)


# Why the best cap changes.

curves = st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 30, 60]), min_size=5, max_size=5)


@settings(max_examples=tries(150))
@given(st.data())
def test_what_the_old_cap_loses_is_played_again(data: st.DataObject) -> None:
    """On any curves, with launches that cost: by the other engine, and nothing is said of less than 0.1 %."""
    count = data.draw(st.integers(2, 5))
    ready = sorted(data.draw(st.lists(st.integers(5, 60), min_size=count, max_size=count, unique=True)))
    workload = workload_of(
        list(ready), data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=count, max_size=count))
    )
    launches = data.draw(st.sampled_from([(0, 0), (MS, MS), (0, 2 * MS), (5 * MS, 0)]))
    machines = [
        replace(
            measured(dict(zip((0, 1, 2, 4, 8), data.draw(curves), strict=True)), ranks),
            launch_cost_ns=cost,
            launch_blocks_compute=True,
        )
        for ranks, cost in zip((2, 4), launches, strict=True)
    ]
    before, after = tuned = [tune_caps(workload, each)[1] for each in machines]
    lost = step_ns(workload, machines[1], before.best_mb) - step_ns(workload, machines[1], after.best_mb)
    code, said = why(workload, machines, tuned)
    assert bool(code) == bool(said) == (lost > 0.001 * after.best_ns)
    assert not code or f"would take {lost / MS:.2f} ms (" in said


@pytest.mark.parametrize(
    ("ready", "times", "code", "told"),
    [
        # 2 x 1 MiB or 1 x 2 MiB: two end at 20 and 22 ms before (one at 23), at 27 and 36 after (one at 30).
        ([18, 20], {1: (2, 9), 2: (3, 10)}, "cost-of-a-bucket", "6.00 ms (15.0%)"),
        ([18, 20], {1: (2, 2), 2: (3, 2.5)}, "", ""),
        # One bucket or two, which was no difference: two end at 20 and 31 ms then, one at 41.
        ([10, 20], {1: (0, 10), 2: (0, 21)}, "bandwidth", "11.00 ms (27.5%)"),
    ],
)
def test_what_changed_is_told_by_numbers(
    ready: list[float], times: dict[float, tuple[float, float]], code: str, told: str
) -> None:
    workload = workload_of(ready, [1, 1])
    machines = [measured({size: ms[at] for size, ms in times.items()}, 2 << at) for at in (0, 1)]
    found, said = why(workload, machines, [tune_caps(workload, each)[1] for each in machines])
    assert found == code
    if code:
        assert f"would take {told} longer than" in said
        (was, now), (whole_was, whole) = times[1], times[2]
        assert said.endswith(
            f"a bucket of 1 MiB takes {now:.2f} ms ({was:.2f} ms at 2 GPUs), all bytes at once "
            f"{whole:.2f} ms ({whole_was:.2f} ms)"
        )


# Both ends of a range.


def test_points_lie_at_their_ends_and_what_is_measured_stays() -> None:
    known = {2 * MIB: {"min_ns": 180, "max_ns": 240}, 8 * MIB: {"min_ns": 720, "max_ns": 1200}}
    spread = {"all_reduce": {str(size): ends for size, ends in known.items()}}
    hardware = wired({MIB: 100, 2 * MIB: 200, 4 * MIB: 400, 8 * MIB: 800}, spread=spread)
    low, high = at_end(hardware, "min_ns"), at_end(hardware, "max_ns")
    assert [point.duration_ns for point in low.all_reduce] == [100, 180, 400, 720]
    assert [point.duration_ns for point in high.all_reduce] == [100, 240, 400, 1200]
    assert "all_reduce" not in low.spread
