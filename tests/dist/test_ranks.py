"""Real ranks: calibrated, replayed, checked, and heard when they fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import InputError, NotModelledError, ReplayError
from sim.formats.record_files import start_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.calibrate import calibrate
from sim.validator.jobs import CalibrationJob, Candidate, Carrier, sizes_to
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Collected, replay
from tests import ranks
from tests.commands import bucketsim
from tests.dist.conftest import MS, needs_box
from tests.dist.starting import FLAT, forks_ranks, order

pytestmark = pytest.mark.dist

EVEN_AND_ODD = Assignment(bucket_indices=(tuple(range(8, -1, -2)), tuple(range(9, 0, -2))))


@pytest.mark.slow
def test_a_free_partition_of_several_dtypes_is_replayed(small_workload: Workload, tmp_path: Path) -> None:
    mixed = replace(
        small_workload,
        gradients=tuple(
            replace(g, dtype="float64", num_bytes=2 * g.num_bytes) if g.index % 2 else g
            for g in small_workload.gradients
        ),
    )
    directory = start_record(tmp_path / "record", mixed, FLAT)
    job = order(mixed, [Candidate(name="by dtype", assignment=EVEN_AND_ODD)], rounds=1)
    (_, _, measured) = replay(job, Place(), directory)
    assert measured.observed is not None
    assert [set(bucket) for bucket in measured.observed] == [set(b) for b in EVEN_AND_ODD.bucket_indices]
    assert [len(iteration.buckets) for iteration in measured.traced] == [2]


def test_buckets_other_than_those_asked_for_fail_loudly(small_workload: Workload) -> None:
    asked = Candidate(name="asked", assignment=sim.assign(small_workload, bucket_cap_mb=2))
    right = [list(bucket) for bucket in asked.assignment.bucket_indices]
    wrong = [[*right[0], *right[1]], *right[2:]]
    collected = Collected(order(small_workload, [asked], rounds=1))
    event = {"event": "buckets", "lane": "asked", "traced": False}
    collected.take({**event, "ranks": [right, right]})
    with pytest.raises(ReplayError, match=r"'asked'.*not the 5 asked for"):
        collected.take({**event, "ranks": [right, wrong]})


def test_a_rank_that_hangs_is_given_up(small_workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    forks_ranks(monkeypatch)
    monkeypatch.setitem(ranks.SETTINGS, "sim.validator.ranks.probes._SWEEP_BYTES", MIB)
    # A probe goes on without a word.
    carrier = Carrier(emulated=FLAT)
    job = CalibrationJob(workload=small_workload, carrier=carrier, copy_repeats=10**6, quiet_s=4.0)
    with pytest.raises(ReplayError, match=r"nothing heard from the ranks for 4 s: rank 0 in .*; rank 1 in "):
        run_ranks(Place(), job, lambda event: None)


@pytest.mark.parametrize(
    ("first", "names", "kwargs", "words"),
    [
        ({"ready_ns": None}, ["default"], {}, "never ready"),
        ({"sparse": True}, ["default"], {}, "sparse"),
        ({}, [], {}, "none given"),
        ({}, ["default", "default"], {}, "occur once"),
        ({}, ["plain"], {}, "is a run without communication"),
        ({}, ["other"], {"bucket_cap_mb": 5}, "makes DDP use 2 bucket"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_any_rank_starts(
    small_workload: Workload, tmp_path: Path, first: Any, names: list[str], kwargs: Any, words: str
) -> None:
    one, *others = small_workload.gradients
    made = sim.assign(small_workload, **({"bucket_cap_mb": 2} if kwargs else {}))
    made = replace(made, ddp_kwargs=kwargs or made.ddp_kwargs)
    workload = replace(small_workload, gradients=(replace(one, **first), *others))
    with pytest.raises(NotModelledError if first else InputError, match=words):
        replay(order(workload, [Candidate(name=name, assignment=made) for name in names]), Place(), tmp_path)


@pytest.mark.slow
def test_calibrate_measures_a_machine() -> None:
    job = CalibrationJob(sizes=sizes_to(8 * MIB), rounds=2, small_repeats=10, computes=True)
    hardware = calibrate(job, Place())
    sizes = [point.num_bytes for point in hardware.all_reduce]
    assert (sizes[0], sizes[-1], hardware.comm_channels) == (4096, 8 * MIB, 2)
    assert 0 < hardware.launch_cost_ns < 5_000_000
    assert hardware.launch_blocks_compute
    for curve in (hardware.all_reduce, hardware.all_gather, hardware.reduce_scatter, hardware.broadcast):
        assert curve[-1].duration_ns > curve[0].duration_ns > 0
    for name in ("search_unused_ns", "mark_used_ns"):
        assert 0 <= getattr(hardware, name) < MS
        assert hardware.spread[name]["count"] == 24
    assert hardware.copy_in_bytes_per_s is not None
    assert 1e8 < hardware.copy_in_bytes_per_s < 1e12
    assert hardware.spread["all_reduce"]["4096"]["count"] == 20
    assert hardware.provenance["source"] == "bucketsim calibrate"
    # Both ranks and their network threads want the same cores: each slows the other down, or nearly not.
    assert all(1.0 <= getattr(hardware, name) < 50 for name in SLOWDOWNS)
    for name in ("copy_in_slowdown", "copy_out_slowdown", "comm_copy_out_slowdown"):
        assert {"alone", "beside"} <= hardware.spread[name].keys()


@pytest.mark.slow
@needs_box
def test_the_loop_closes_through_the_command_line(small_workload: Workload, tmp_path: Path) -> None:
    """calibrate, then validate on assignments that calibration has not seen.

    Times are held against predictions where the machine had time for them: where a paced backward without
    communication, which mostly sleeps, took as long as it is paced.
    """
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    box = ["--box", "2", "--rate", "1gbit"]
    quick = ["--largest", "8MiB", "--rounds", "2", "--budget", "0"]
    said = bucketsim("calibrate", *box, *quick, "-o", hardware)
    assert said.code == 0, said.err
    calibrated = sim.load_hardware(hardware)
    # Two ranks send each byte once: the wire alone needs 67 ms for 8 MiB at 1 Gbit/s.
    assert calibrated.all_reduce[-1].duration_ns > 0.95 * 8 * MIB * 8
    assert calibrated.compute_slowdown == 1.0, "nothing computes beside a paced replay"
    arguments = ["validate", workload, "--hardware", hardware, *box, "--caps", "3", "--rounds", "4"]
    said = bucketsim(*arguments, "-o", record)
    assert said.code == 0, said.err
    agreement = sim.agreement(sim.load_record(record))
    names = {row.name for row in agreement.rows}
    standing = {"DDP default", "single", "recommended", "caps doubling from 1"}
    assert names == {*standing, "bucket_cap_mb=3"}
    plain = sim.load_record(record).measurements[0]
    slowest_ns = max(iteration.backward_end_ns for iteration in plain.iterations)
    print(f"the slowest of {len(plain.iterations)} plain backwards took {slowest_ns / MS:.1f} ms of 66")
    if slowest_ns < 1.05 * small_workload.backward_ns:
        assert calibrated.all_reduce[-1].duration_ns < 1.4 * 8 * MIB * 8
        assert 1.5 < calibrated.channel_slowdown < 2.6, "two collectives at once share that wire"
        assert agreement.median_step_error < 0.10
        single = next(row for row in agreement.rows if row.name == "single")
        best = min(agreement.rows, key=lambda row: row.measured_step_ns)
        assert single.measured_step_ns > 1.1 * best.measured_step_ns, "candidates differ by tens of percent"
        assert agreement.order_right >= 0.8 * agreement.order_pairs > 0
    # A threshold that nothing can meet gives exit 3; and the record refuses to be overwritten.
    assert bucketsim("agree", record, "--max-error", "0").code == 3
    assert bucketsim(*arguments, "-o", record).code == 1
