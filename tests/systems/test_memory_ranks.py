"""Real systems on a gloo rank hold as much memory as the simulation says."""

from typing import Any

import pytest

import sim
from sim.units import MIB
from tests.effort import IS_WHOLE
from tests.handmade import handmade, wired
from tests.systems.real import run

pytestmark = pytest.mark.dist

# In MiB 2, 4, 8, 6, 2 and 6; under a cap of 12 MiB: 6+2+6, 8+4, 2.
SIZES = [[1 << 19], [1024, 1024], [2048, 1024], [1536, 1024], [1 << 19], [1536, 1024]]
WORKLOAD = handmade(
    [(len(SIZES) - index) * 10_000_000 for index in range(len(SIZES))],
    shapes=SIZES,
    name="six",
    names="all.{}",
)
HARDWARE = wired({0: 1_000_000}, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=1e10)
VIEW = {"gradient_as_bucket_view": True}
# By name: what the worker is asked, and the options of the simulation that say the same.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ddp": ({}, {}),
    "ddp, one bucket": ({"cap_mb": 100}, {}),
    "views": ({"ddp_kwargs": VIEW}, VIEW),
    "views kept": ({"ddp_kwargs": VIEW, "set_to_none": False}, VIEW | {"set_to_none": False}),
    "views after accumulation": (
        {"ddp_kwargs": VIEW, "accumulation_steps": 2},
        VIEW | {"accumulation_steps": 2},
    ),
    "views, copied at once": (
        {"ddp_kwargs": VIEW | {"batched_grad_copy": True}},
        VIEW | {"batched_grad_copy": True},
    ),
    "allreduce": ({"comm_hook": "allreduce"}, {"comm_hook": "allreduce"}),
    "fp16": ({"cap_mb": 100, "comm_hook": "fp16_compress"}, {"comm_hook": "fp16_compress"}),
    **{
        policy: ({"policy": policy}, {})
        for policy in ("after-backward", "arrival-counted", "flat-views", "last-hook-safe")
    },
    "per-parameter-async": ({"policy": "per-parameter-async", "cap_mb": 0}, {}),
}

# A case for each way to hold a bucket in `make test`, all of them in `make test-all`.
_EACH_WAY = (
    "ddp",
    "views",
    "views, copied at once",
    "fp16",
    "after-backward",
    "last-hook-safe",
    "flat-views",
)
MEASURED = tuple(CASES) if IS_WHOLE else _EACH_WAY


def asked(name: str) -> dict[str, Any]:
    return {"sizes": SIZES, "policy": "ddp", "cap_mb": 12} | CASES[name][0]


def simulated(name: str) -> int:
    case = asked(name)
    caps = {"bucket_cap_mb": case["cap_mb"]} if case["cap_mb"] else {}
    assignment = sim.assign(WORKLOAD, case["policy"], **caps, **CASES[name][1])
    held = sim.summarize(sim.simulate(WORKLOAD, HARDWARE, assignment)).buffer_bytes
    assert held is not None
    return held


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """By name of the case, what one rank held; one job for all."""
    told = run(
        "memory_worker",
        [asked(name) for name in MEASURED],
        fresh=True,  # glibc reads its tunables as a process starts
        world_size=1,
        MALLOC_MMAP_THRESHOLD_="65536",
        MALLOC_TRIM_THRESHOLD_="65536",
    )
    return {name: rank for name, (rank,) in zip(MEASURED, told, strict=True)}


@pytest.mark.parametrize("name", MEASURED)
def test_buffers_are_what_a_rank_holds_at_its_peak(name: str, answers: dict[str, Any]) -> None:
    """A3.4, A3.17, A7: to 1 MiB, of 28 MiB of gradients."""
    assert abs(simulated(name) - answers[name]["peak"]) <= MIB


def test_the_cases_tell_systems_apart() -> None:
    """A7.1 to A7.4 hold as many different amounts as they have ways to hold a bucket."""
    mib = {name: simulated(name) / MIB for name in CASES}
    assert (mib["ddp"], mib["views"], mib["views, copied at once"], mib["fp16"]) == (28, 8, 14, 42)
    assert (mib["after-backward"], mib["last-hook-safe"], mib["flat-views"]) == (14, 26, 0)
