"""NCCL's cost model against public measurements, from published figures alone.

``tests/published`` keeps figures of the measurements. ``LIMITS`` are medians of |computed / measured - 1|
over 1 MiB to 1 GiB, in per cent, a little above what comes out. Where they exceed the aim, ``MISSING`` says
what the model lacks, and a test shows it.
"""

from statistics import median

import pytest

from sim.clusters.nccl.computed import uncertainty
from sim.clusters.nccl.model import collective_ns, nccl_ns
from sim.costs.service_time import service_ns
from tests.clusters.published_fabrics import (
    AIM,
    BY_NAME,
    GIB,
    MIB,
    MISSING,
    SYSTEMS,
    System,
    kept,
    measured,
    median_error,
)

LIMITS = {
    "thanos, 8 A100": 4,
    "stas00, 8 A100, one process": 19,
    "p4de, 2 hosts of 8 A100, EFA": 22,
    "alps, 4 GH200": 5,
    "alps, 8 GH200": 11,
    "alps, 16 GH200": 21,
    "alps, 32 GH200": 34,
    "hkbu, 32 2080 Ti, 100G IB": 47,
    "hkbu, 32 2080 Ti, 10 GbE": 3,
    "vidur, bridged pair of A100": 15,
    "vidur, 4 A100 in bridged pairs": 2,
    "vidur, 2 A100 of a DGX": 33,
    "vidur, 4 A100 of a DGX": 26,
    "vidur, 8 A100 of a DGX": 26,
    "kopernik, 2 L4": 53,
    "kopernik, 4 A40, SHM": 35,
    "dominator, 2 RTX PRO 6000": 56,
    "dominator, 4 RTX PRO 6000": 59,
    "dominator, 8 RTX PRO 6000": 18,
}


def ratios(system: System) -> list[float]:
    """Computed over measured, by size."""
    return [
        collective_ns(system.fabric, "all_reduce", point.num_bytes) / point.duration_ns
        for point in measured(system)
    ]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_median_error_from_published_figures(system: System) -> None:
    error = error_alone(system)
    print(f"{system.name:34} {error:5.1f} %  {MISSING.get(system.name, '')}  [{system.source}]")
    assert error <= LIMITS[system.name]
    assert (LIMITS[system.name] > AIM) == (system.name in MISSING)


def error_alone(system: System) -> float:
    points = measured(system)
    return median_error((collective_ns(system.fabric, "all_reduce", p.num_bytes) for p in points), points)


def test_what_other_machines_showed_makes_one_of_these_worse_and_the_others_no_worse() -> None:
    """``sim.clusters.nccl.model`` against NCCL's own bandwidths: 25 % in the mean, and not 27.

    The hosts of hkbu carry more through their memory than the median of other machines, which no data sheet
    says; it is not taken from them.
    """
    before, after = {}, {}
    for system in SYSTEMS:
        points = measured(system)
        own = (nccl_ns(system.fabric, "all_reduce", point.num_bytes) for point in points)
        before[system.name] = median_error(own, points)
        after[system.name] = error_alone(system)
    worse = {name for name in before if after[name] > before[name] + 0.01}
    assert worse == {"hkbu, 32 2080 Ti, 100G IB"}
    assert sum(after.values()) < 0.93 * sum(before.values())
    assert MISSING["hkbu, 32 2080 Ti, 100G IB"] == MISSING["kopernik, 4 A40, SHM"]


def test_what_is_known_of_the_error_holds_for_nine_in_ten() -> None:
    """The ranges come from other machines: none of these systems went into them.

    Each system counts alike, however many sizes it has; none has fewer than eight sizes in ten within.
    """
    shares = {}
    for system in SYSTEMS:
        low, high = uncertainty(system.fabric)
        found = ratios(system)
        shares[system.name] = sum(low <= 1 / ratio <= high for ratio in found) / len(found)
    assert min(shares.values()) >= 0.8, shares
    assert sum(shares.values()) / len(shares) >= 0.9


@pytest.mark.parametrize("name", [name for name, why in MISSING.items() if "constant factor" in why])
def test_a_path_that_is_not_published_is_one_number(name: str) -> None:
    """Shown: from 16 MiB on one factor explains all sizes, so it is bandwidth, neither steps nor choice."""
    system = BY_NAME[name]
    points = tuple(point for point in measured(system) if point.num_bytes >= 16 * MIB)
    found = [collective_ns(system.fabric, "all_reduce", p.num_bytes) / p.duration_ns for p in points]
    middle = median(found)
    assert abs(middle - 1) > AIM / 100
    assert all(ratio == pytest.approx(middle, rel=0.12) for ratio in found)
    assert 100 * median(abs(ratio / middle - 1) for ratio in found) <= 5


def test_two_l4_have_what_a_slower_slot_carries() -> None:
    """Shown: 11.0 GB/s, 0.92 of what NCCL counts for PCIe 3.0 x16 or 4.0 x8, as below a switch of V100."""
    last = measured(BY_NAME["kopernik, 2 L4"])[-1]
    assert last.num_bytes / last.duration_ns == pytest.approx(0.92 * 12, rel=0.01)


def test_slow_launches_are_constant_times() -> None:
    """Shown: what stas00's one process takes beyond thanos' eight is 60 us at 1 MiB, and 1 % of it at 1 GiB.

    Both are eight A100 on NVSwitches, in one host.
    """
    slow, fast = (
        {point.num_bytes: point.duration_ns for point in measured(BY_NAME[name])}
        for name in ("stas00, 8 A100, one process", "thanos, 8 A100")
    )
    assert 55_000 < slow[MIB] - fast[MIB] < 75_000
    assert abs(slow[GIB] - fast[GIB]) < 0.01 * fast[GIB]


def test_profiled_kernels_of_one_rank_last_longer_than_their_transfer() -> None:
    """Shown: vidur's times are kernels of one rank (microsoft/vidur, collectives_wrapper.py), who waits too.

    Eleven kernels in a row, by torch.profiler on rank 0. Up to 128 KiB, where little is sent, they last 1.7
    times what NCCL counts in the median and over three times at some sizes; beyond, nearly all last longer
    than thanos'.
    """
    for ranks in (2, 4, 8):
        system = BY_NAME[f"vidur, {ranks} A100 of a DGX"]
        small = [point for point in kept(system) if point.num_bytes <= 128 * 1024]
        longer = [p.duration_ns / nccl_ns(system.fabric, "all_reduce", p.num_bytes) for p in small]
        assert median(longer) > 1.7
        assert max(longer) > 3
    known = measured(BY_NAME["thanos, 8 A100"])
    points = measured(BY_NAME["vidur, 8 A100 of a DGX"])
    beyond = [point.duration_ns - service_ns(known, point.num_bytes) for point in points]
    assert all(-1_000 < each < 100_000 for each in beyond)
    assert median(beyond) > 15_000


@pytest.mark.parametrize("name", ["alps, 16 GH200", "alps, 32 GH200"])
def test_slingshot_misses_in_the_middle_only(name: str) -> None:
    """Shown: from 128 MiB on within 7 %; between 2 and 64 MiB it takes up to four times as long."""
    by_size = dict(zip((p.num_bytes for p in measured(BY_NAME[name])), ratios(BY_NAME[name]), strict=True))
    assert all(abs(ratio - 1) < 0.07 for size, ratio in by_size.items() if size >= 128 * MIB)
    assert all(0.2 < ratio < 0.85 for size, ratio in by_size.items() if 2 * MIB <= size < 64 * MIB)


def test_efa_misses_in_the_middle_only() -> None:
    """Shown: up to 8 KiB within 8 %, from 128 MiB on within 10 %; between 1 and 16 MiB too fast."""
    system = BY_NAME["p4de, 2 hosts of 8 A100, EFA"]
    by_size = {
        point.num_bytes: collective_ns(system.fabric, "all_reduce", point.num_bytes) / point.duration_ns
        for point in kept(system)
    }
    assert all(abs(ratio - 1) < 0.08 for size, ratio in by_size.items() if size <= 8 * 1024)
    assert all(abs(ratio - 1) < 0.1 for size, ratio in by_size.items() if size >= 128 * MIB)
    assert all(0.5 < ratio < 0.75 for size, ratio in by_size.items() if MIB <= size <= 16 * MIB)


def test_a_ring_of_two_on_nvlink_reaches_four_fifths() -> None:
    """Shown: at the largest sizes, where time is bandwidth, a bridged pair has 195 of NCCL's 240 GB/s."""
    system = BY_NAME["vidur, bridged pair of A100"]
    last = measured(system)[-1]
    assert last.num_bytes / last.duration_ns == pytest.approx(195, rel=0.02)
