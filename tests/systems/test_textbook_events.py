"""What a simulation says is sent is what real ranks send: kind, size, dtype, place and order."""

from typing import Any

import pytest

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import write
from tests.systems.ddp_ranks import run_cases
from tests.systems.textbook_answers import workload_of
from tests.systems.textbook_cases import BY_SIZE, POLICIES
from tests.systems.textbook_models import random_cap_mb, random_layers

pytestmark = pytest.mark.dist

COMPARED = ("kind", "elements", "dtype", "phase", "gradient", "root")
HARDWARE = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1000),))


def cases(seeds: range) -> list[dict[str, Any]]:
    """For each seed a random model under each policy; published last-hook code knows one dtype (A7.5)."""
    asked = []
    for seed in seeds:
        for policy in POLICIES:
            layers = random_layers(seed, mixed=policy != "last-hook")
            cap = random_cap_mb(seed, layers)
            asked.append({"task": "watch_events", "policy": policy, "layers": layers, "bucket_cap_mb": cap})
    return asked


def simulated(case: dict[str, Any], workload: Workload) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Buckets, and collectives in the order of their launches."""
    cap = {"bucket_cap_mb": case["bucket_cap_mb"]} if case["policy"] in BY_SIZE else {}
    assignment = sim.assign(workload, case["policy"], **cap)
    (program,) = write(workload, HARDWARE, assignment)
    events = [{name: getattr(sent, name) for name in COMPARED} for sent in program.collectives]
    return [list(bucket) for bucket in assignment.bucket_indices], events


def check(asked: list[dict[str, Any]], answers: Any) -> None:
    """Both ranks did what the simulation says."""
    for case, by_rank in zip(asked, answers, strict=True):
        for answer in by_rank:
            assert "error" not in answer, (case, answer)
            assert len(answer["ready"]) == len(answer["parameters"])
            buckets, events = simulated(case, workload_of(answer))
            assert answer["buckets"] == buckets, case
            assert [{name: event[name] for name in COMPARED} for event in answer["events"]] == events, case


def test_real_ranks_send_what_is_simulated() -> None:
    asked = cases(range(4))
    check(asked, run_cases(asked, worker="textbook_worker"))


@pytest.mark.slow
def test_real_ranks_send_what_is_simulated_on_100_models() -> None:
    asked = cases(range(100, 200))
    check(asked, run_cases(asked, worker="textbook_worker", limit_s=1800))
