"""Why the best cap changes where curves bend, methods differ, or launches and copies cost something."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.nccl.computed_hardware import hardware_of
from sim.clusters.nccl.from_cluster import fabric_of
from sim.clusters.scaling.cap_steps import caps_of, tune_caps
from sim.clusters.scaling.carried import Carried
from sim.clusters.scaling.change import BestCapChange, side_of
from sim.clusters.scaling.reasons import find_reason
from sim.costs.service_time import service_ns
from tests.clusters.scaling_cases import (
    MS,
    affine,
    bucket_bytes,
    hosts_of,
    lose,
    measured,
    reason_of,
    side,
    step_ns,
    workload_of,
)
from tests.effort import tries


def test_a_curve_of_two_points_is_told_by_what_its_buckets_take() -> None:
    """2 x 1 MiB or 1 x 2 MiB: one bucket more costs 2 x 9 - 10 = 8 ms, and 2 x 2 - 3 = 1 ms before.

    Ready at 18 and 20 ms, two end at 20 and 22 ms before (one at 23), and at 27 and 36 ms after (one at 30).
    With all-reduces of 2 and 3 ms they would be 1 ms the better.
    """
    reason = reason_of(
        workload_of([18, 20], [1, 1]), measured({1: 2, 2: 3}), measured({1: 9, 2: 10}, ranks=4)
    )
    assert reason is not None
    assert "would take 6.00 ms (15.0%) longer than" in reason.sentence
    assert "one bucket more costs 8.00 ms on the wire, 1.00 ms at 2 GPUs" in reason.sentence
    assert reason.sentence.endswith("; at 1.00 ms it would save 1.00 ms")


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        # A step before: 2 MiB take 30 ms more than 1 MiB, so that a bucket more seems to save 28 ms.
        (([10, 20], [1, 1]), {1: 2, 2: 32}, {1: 20, 2: 21}),
        # A step after: a bucket more seems to cost (44.5 - 22) / 2 = 11.25 ms, where the smallest takes 4.
        (([10, 20, 21], [0.5, 1.5, 1]), {1: 2, 2: 3}, {0.5: 4, 1: 20, 2: 21, 3: 22}),
    ],
    ids=["below 0", "more than the smallest takes"],
)
def test_where_a_curve_bends_no_bucket_has_a_cost(
    model: tuple[list[float], list[float]], before: dict[float, float], after: dict[float, float]
) -> None:
    """Both caps' buckets are told with what they take, and the old all-reduces are played as a whole."""
    workload = workload_of(*model)
    caps = caps_of(workload, None)
    sides = side(caps, measured(before)), side(caps, measured(after, ranks=4))
    change, reason = BestCapChange(workload, *sides), find_reason(workload, *sides)
    assert change.bucket_ns is None
    assert reason is not None
    assert reason.code == "all-reduces"
    assert "one bucket more" not in reason.sentence
    again = replace(sides[1].carried.hardware, all_reduce=sides[0].curve)
    lost = step_ns(workload, again, sides[0].best_mb) - step_ns(workload, again, sides[1].best_mb)
    assert lost <= 0
    assert reason.sentence.split("; ")[2] == f"with all-reduces as at 2 GPUs it would {lose(lost)}"
    for which in sides:
        took = sum(service_ns(which.curve, size) for size in bucket_bytes(workload, sides[0].best_mb))
        assert f"{took / MS:.2f} ms" in reason.sentence


curves = st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 30, 60]), min_size=5, max_size=5)


@settings(max_examples=tries(150))
@given(st.data())
def test_on_any_curve_a_cost_of_a_bucket_is_one_that_could_be(data: st.DataObject) -> None:
    """At least 0, at most what the smallest bucket takes whole, and only then is it spoken of.

    With launches that cost, and curves that need not rise: every opening is held to steps played again.
    """
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
    caps = caps_of(workload, None)
    before, after = (side(caps, each) for each in machines)
    lost = step_ns(workload, machines[1], before.best_mb) - step_ns(workload, machines[1], after.best_mb)
    reason = find_reason(workload, before, after)
    assert (reason is not None) == (lost > 0.001 * after.best_ns)
    if reason is None:
        return
    assert f"would take {lost / MS:.2f} ms (" in reason.sentence
    again = replace(machines[1], all_reduce=machines[0].all_reduce)
    still = step_ns(workload, again, before.best_mb) - step_ns(workload, again, after.best_mb)
    assert (reason.code == "copies-and-launches") == (still > 0.001 * after.best_ns)
    if reason.code == "copies-and-launches":
        assert launches[0] != launches[1]
        assert f"it would still {lose(still)}: " in reason.sentence
        return
    known = BestCapChange(workload, before, after).bucket_ns
    assert (known is None) == (reason.code == "all-reduces")
    if known is None:
        return
    sizes = [*bucket_bytes(workload, before.best_mb), *bucket_bytes(workload, after.best_mb)]
    for cost, hardware in zip(known, machines, strict=True):
        assert 0 <= cost <= service_ns(hardware.all_reduce, min(sizes))
    exposed = [
        sim.summarize(
            sim.simulate(
                workload, each, sim.assign(workload, bucket_cap_mb=before.best_mb), engine="analytic"
            )
        )
        for each in machines
    ]
    if reason.code in ("hidden", "no-longer-hidden"):
        hidden = exposed[0 if reason.code == "no-longer-hidden" else 1]
        *others, last = hidden.buckets
        assert max((bucket.end_ns for bucket in others), default=0) <= last.launch_ns


def test_where_launches_chose_on_one_gpu_it_is_not_said_that_any_cap_did() -> None:
    """Launches of 1 ms block backward: one bucket is 1 ms the better on one GPU, 8 ms the worse on two."""
    workload = workload_of([10, 20], [1, 1])
    one, two = (
        replace(hardware, launch_cost_ns=MS, launch_blocks_compute=True)
        for hardware in (affine(0, 0, ranks=1), affine(0, 9))
    )
    caps = caps_of(workload, None)
    assert not side(caps, one).all_are_alike
    reason = reason_of(workload, one, two)
    assert reason is not None
    assert reason.code == "communication-begins"
    assert "any cap did" not in reason.sentence
    lost = step_ns(workload, replace(two, all_reduce=one.all_reduce), side(caps, one).best_mb) - step_ns(
        workload, replace(two, all_reduce=one.all_reduce), side(caps, two).best_mb
    )
    assert lost < 0
    assert reason.sentence.endswith(f"were all-reduces free, as there, it would {lose(lost)}")


def test_where_only_launches_differ_no_all_reduce_is_blamed() -> None:
    """Two measurements with the same curve, one of whose launches block backward for 20 ms each."""
    workload = workload_of([10, 20], [1, 1])
    before, after = (
        affine(1, 9),
        replace(affine(1, 9, ranks=4), launch_cost_ns=20 * MS, launch_blocks_compute=True),
    )
    reason = reason_of(workload, before, after)
    assert reason is not None
    assert reason.code == "copies-and-launches"
    lost = step_ns(workload, after, side(caps_of(workload, None), before).best_mb) - step_ns(
        workload, after, 25
    )
    assert f"with all-reduces as at 2 GPUs it would still lose {lost / MS:.2f} ms" in reason.sentence


def test_what_was_exposed_before_is_not_called_hidden() -> None:
    """All-reduces that are shorter than backward in all, and end 10 ms after it since they start late.

    1, 1 and 12 MiB are ready at 10, 30 and 31 ms, a last MiB at 40: under a cap of 10 MiB a bucket of 14 MiB
    goes at 31 and takes 16 ms, and the last waits for it.
    """
    workload = workload_of([10, 30, 31, 40], [1, 1, 12, 1])
    reason = reason_of(workload, affine(2, 1), affine(2, 4, ranks=4))
    assert reason is not None
    assert "its 2 buckets take 64.00 ms on the wire (19.00 ms at 2 GPUs)" in reason.sentence
    assert reason.code == "bandwidth"


def test_nccl_methods_that_differ_between_buckets_leave_no_cost_of_a_bucket() -> None:
    """On eight hosts small buckets and large ones go by different methods."""
    fabric = fabric_of(hosts_of(8))
    carried = Carried(fabric=fabric, hardware=hardware_of(fabric, "8 hosts"), source="computed")
    mixed = 0
    for sizes in product((0.01, 1, 64), repeat=2):
        workload = workload_of([10, 20], list(sizes))
        told = side_of(tune_caps(caps_of(workload, None), carried.hardware), carried)
        each, whole = replace(told, best_mb=0), replace(told, best_mb=1000)
        change = BestCapChange(workload, each, whole)
        if len({carried.method(size) for size in (*change.old_sizes, *change.new_sizes)}) > 1:
            mixed += 1
            assert change.bucket_ns is None
    assert mixed
