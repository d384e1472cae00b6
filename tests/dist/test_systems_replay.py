"""Every switch and hook, replayed for real: it runs, with its own buckets, and its step is predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import NotModelledError
from sim.formats.record_files import load_record, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import HOOKS
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.validator.candidates import check_replayable
from sim.validator.jobs import Candidate, Carrier
from sim.validator.launch import Place
from sim.validator.replay import replay
from tests.dist.starting import forks_ranks, order, shrunk
from tests.handmade import wired
from traces.tools.families import families

pytestmark = pytest.mark.dist

MS = 1_000_000
LINK = wired({0: MS, 1 << 20: 3 * MS}, name="two")
TWO = replace(LINK, **dict.fromkeys(("all_gather", "reduce_scatter", "broadcast"), LINK.all_reduce))
# DDP without switches or hooks, in buckets of any kind.
PLAIN = ("DDP default", "small ddp", "list", "even and odd")


def replayed(
    workload: Workload, candidates: list[Candidate], folder: Path, hardware: Hardware = TWO
) -> dict[str, Measurement]:
    """Two rounds over loopback; every candidate has its own buckets, and a prediction."""
    start_record(folder, workload, hardware)
    replay(order(workload, candidates, rounds=2), Place(ranks=hardware.world_size), folder)
    record = load_record(folder)
    predicted = {row.name: row.predicted for row in sim.agreement(record).rows}
    assert list(predicted) == [candidate.name for candidate in candidates]
    for candidate, measured in zip(candidates, record.candidates, strict=True):
        assert measured.asked == candidate.assignment
        assert measured.observed is not None
        wanted = [sorted(bucket) for bucket in candidate.assignment.bucket_indices]
        assert [sorted(bucket) for bucket in measured.observed] == wanted, candidate.name
        assert len(measured.iterations) == 2
        assert len(measured.traced) == 2 * candidate.is_traced
        assert predicted[candidate.name].policy == candidate.assignment.policy
        assert predicted[candidate.name].step_ns > 0
        for iteration in measured.traced:
            assert len(iteration.buckets) == len(wanted), candidate.name
        if candidate.name in PLAIN:
            check_order(workload, measured)
    return {measured.name: measured for measured in record.measurements}


def check_order(workload: Workload, measured: Measurement) -> None:
    """A bucket is ready, launched, and ended before DDP lets go; its last gradient is never early."""
    assert measured.observed is not None
    assert measured.traced
    for iteration in measured.traced:
        assert [bucket.index for bucket in iteration.buckets] == list(range(len(measured.observed)))
        for indices, bucket in zip(measured.observed, iteration.buckets, strict=True):
            assert bucket.ready_ns is not None
            assert bucket.launch_ns is not None
            assert bucket.end_ns is not None
            assert bucket.ready_ns <= bucket.launch_ns <= bucket.end_ns <= iteration.sync_end_ns
            assert bucket.ready_ns >= max(workload.gradients[index].ready_ns or 0 for index in indices)


def floor_ns(workload: Workload, assignment: Assignment) -> int:
    """What a step takes at least: all that is slept through."""
    steps = assignment.settings.get("accumulation_steps", 1)
    return int(steps * (workload.forward_ns + workload.backward_ns))


# Switches and hooks of DDP that ranks can be asked for, by a name of the candidate.
VIEW, FINDS = {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}
SWITCHES: dict[str, dict[str, Any]] = {
    "DDP default": {},
    "small ddp": {"bucket_cap_mb": 1},
    "list": {"bucket_cap_mb_list": [0.6, 1.0, 0.5]},
    "view": VIEW,
    "batched_grad_copy": {"batched_grad_copy": True},
    "set_to_none=False": {"set_to_none": False},
    "view, set_to_none=False": VIEW | {"set_to_none": False},
    "find_unused_parameters": FINDS,
    "skip_all_reduce_unused_params": FINDS | {"skip_all_reduce_unused_params": True},
    "static_graph": {"static_graph": True},
    "accumulation_steps=2": {"accumulation_steps": 2},
    **{f"hook {name}": {"comm_hook": name} for name in HOOKS if not HOOKS[name].needs_nccl},
}
OF_UNUSED = ("find_unused_parameters", "skip_all_reduce_unused_params", "static_graph")


def switched(workload: Workload, *names: str) -> list[Candidate]:
    made = {name: sim.assign(workload, **SWITCHES[name]) for name in names or SWITCHES}
    return [Candidate(name=name, assignment=one) for name, one in made.items()]


def test_every_switch_is_replayed_with_its_own_buckets(
    small_workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks_ranks(monkeypatch)
    workload = shrunk(small_workload, pace=12)
    # And what no keyword of DDP reaches, so that the Reducer is given it; and what other systems are in DDP.
    apart = Assignment(bucket_indices=(tuple(range(8, -1, -2)), tuple(range(9, 0, -2))))
    candidates = [*switched(workload), Candidate(name="even and odd", assignment=apart)]
    for policy in ("per-parameter", "single"):
        candidates.append(Candidate(name=policy, assignment=sim.assign(workload, policy)))
    measured = replayed(workload, candidates, tmp_path / "record")
    for one in candidates:
        assert one.assignment is not None
        for iteration in measured[one.name].iterations:
            assert iteration.step_ns >= floor_ns(workload, one.assignment), one.name


@pytest.mark.slow
def test_unused_parameters_are_in_no_graph(small_workload: Workload, tmp_path: Path) -> None:
    workload = shrunk(small_workload, unused=3)
    with pytest.raises(NotModelledError, match="never ready"):
        check_replayable(workload, switched(workload, "DDP default"))
    replayed(workload, switched(workload, *OF_UNUSED), tmp_path / "record")


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("ddp", {"accumulation_steps": 2, "no_sync": False}, "no_sync=false is not replayed"),
        ("ddp", {"comm_hook": "bf16_compress"}, "bf16_compress is not replayed: torch refuses it"),
        *((policy, {}, f"{policy} is not replayed, only predicted") for policy in ("zero2", "flat-views")),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(
    small_workload: Workload, policy: str, options: dict[str, Any], words: str
) -> None:
    made = Candidate(name="it", assignment=sim.assign(small_workload, policy, **options))
    with pytest.raises(NotModelledError, match=words):
        check_replayable(small_workload, [made])


def test_hooks_do_not_go_over_an_emulated_link(small_workload: Workload) -> None:
    made = [Candidate(name="it", assignment=sim.assign(small_workload, comm_hook="allreduce"))]
    check_replayable(small_workload, made)
    with pytest.raises(NotModelledError, match="is not replayed"):
        check_replayable(small_workload, made, "paced", Carrier(emulated=TWO))


# What the tuner says that each knob and rule reaches, replayed for real.


@pytest.mark.slow
def test_every_knob_is_replayed_with_its_own_buckets(small_workload: Workload, tmp_path: Path) -> None:
    candidates = families(small_workload, LINK)
    expected = {one.name: one.assignment for one in candidates}
    assert {"bucket_cap_mb", "DDP default", "recommended"} <= set(expected)
    start_record(tmp_path, small_workload, LINK)
    replay(order(small_workload, candidates, rounds=1), Place(), tmp_path)
    measured = load_record(tmp_path).candidates
    assert {one.name for one in measured} == set(expected)
    for candidate in measured:
        asked = expected[candidate.name]
        assert candidate.observed is not None
        assert [set(bucket) for bucket in candidate.observed] == [set(b) for b in asked.bucket_indices]
