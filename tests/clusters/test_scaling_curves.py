"""Why the best cap changes where curves bend, methods differ, or launches and copies cost something."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.nccl.computed import hardware_of
from sim.clusters.nccl.fabric import fabric_of
from sim.clusters.scaling.cap_steps import tune_caps
from sim.clusters.scaling.carried import Carried
from sim.clusters.scaling.reasons import cost_of_a_bucket, find_reason, side_of
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
    sides = side(workload, measured(before)), side(workload, measured(after, ranks=4))
    reason = find_reason(workload, *sides)
    assert cost_of_a_bucket(*sides, *(bucket_bytes(workload, one.best_mb) for one in sides)) is None
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
    before, after = (side(workload, each) for each in machines)
    lost = step_ns(workload, machines[1], before.best_mb) - step_ns(workload, machines[1], after.best_mb)
    reason = find_reason(workload, before, after)
    assert (reason is not None) == (lost > 0.001 * after.best_ns)
    if reason is None:
        return
    assert f"would take {lost / MS:.2f} ms (" in reason.sentence
    again = replace(machines[1], all_reduce=machines[0].all_reduce)
    still = step_ns(workload, again, before.best_mb) - step_ns(workload, again, after.best_mb)
    if reason.code == "all-reduces":
        assert f"with all-reduces as at 2 GPUs it would {lose(still)}" in reason.sentence
    sizes = [bucket_bytes(workload, one.best_mb) for one in (before, after)]
    known = cost_of_a_bucket(before, after, *sizes)
    if known is None:
        assert reason.code == "all-reduces"
        return
    for cost, hardware in zip(known, machines, strict=True):
        assert 0 <= cost <= service_ns(hardware.all_reduce, min(*sizes[0], *sizes[1]))


def test_where_only_launches_differ_no_all_reduce_is_blamed() -> None:
    """Two measurements with the same curve, one of whose launches block backward for 20 ms each."""
    workload = workload_of([10, 20], [1, 1])
    before, after = (
        affine(1, 9),
        replace(affine(1, 9, ranks=4), launch_cost_ns=20 * MS, launch_blocks_compute=True),
    )
    reason = reason_of(workload, before, after)
    assert reason is not None
    assert reason.code == "all-reduces"
    lost = step_ns(workload, after, side(workload, before).best_mb) - step_ns(workload, after, 25)
    assert f"with all-reduces as at 2 GPUs it would lose {lost / MS:.2f} ms" in reason.sentence


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
        told = side_of(tune_caps(workload, carried.hardware), carried)
        each, whole = replace(told, best_mb=0), replace(told, best_mb=1000)
        sides = [bucket_bytes(workload, one.best_mb) for one in (each, whole)]
        if len({carried.method(size) for side_sizes in sides for size in side_sizes}) > 1:
            mixed += 1
            assert cost_of_a_bucket(each, whole, *sides) is None
    assert mixed
