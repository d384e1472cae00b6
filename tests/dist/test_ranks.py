"""Real ranks: calibrated, replayed, checked, and heard when they fail."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sim
from sim.cli.commands import app
from sim.errors import InputError, NotModelledError, ReplayError
from sim.formats.record_files import load_record, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.calibrate import calibrate
from sim.validator.jobs import CalibrationJob, Candidate, Carrier, sizes_to
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Collected, replay
from tests.dist.conftest import MS, needs_box
from tests.dist.starting import order

pytestmark = pytest.mark.dist

FLAT = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=10**6),))


EVEN_AND_ODD = Assignment(bucket_indices=(tuple(range(8, -1, -2)), tuple(range(9, 0, -2))))


def candidates(workload: Workload) -> list[Candidate]:
    caps = [3.0, 5.0, 2.0]
    return [
        Candidate(name="DDP default", assignment=sim.assign(workload)),
        Candidate(name="cap 2", assignment=sim.assign(workload, bucket_cap_mb=2)),
        Candidate(name="list", assignment=sim.assign(workload, bucket_cap_mb_list=caps)),
        Candidate(name="first 2, cap 5", assignment=sim.assign(workload, bucket_cap_mb=5, first_bucket_mb=2)),
        # No keyword of DDP reaches these, so the Reducer is given them (B(ii)).
        Candidate(name="small last cap", assignment=sim.assign(workload, set_last_bucket_cap=True)),
        Candidate(name="even and odd", assignment=EVEN_AND_ODD),
    ]


@pytest.mark.slow  # by more systems, over smaller gradients: test_systems_replay
def test_replay_runs_the_buckets_asked_for_and_measures_them(
    small_workload: Workload, tmp_path: Path
) -> None:
    asked = candidates(small_workload)
    directory = start_record(tmp_path / "record", small_workload, FLAT)
    replay(order(small_workload, asked, rounds=3), Place(), directory)
    record = load_record(directory)
    assert record.workload == small_workload
    assert [m.name for m in record.measurements] == ["plain", "noop", *(c.name for c in asked)]
    assert all(m.complete and m.world_size == 2 and m.backend == "gloo" for m in record.measurements)
    plain = record.measurements[0]
    assert plain.plain_backward_ns >= small_workload.backward_ns
    for candidate, measured in zip(asked, record.candidates, strict=True):
        assert measured.observed is not None
        assert [sorted(b) for b in measured.observed] == [
            sorted(b) for b in candidate.assignment.bucket_indices
        ]
        assert len(measured.iterations) == len(measured.traced) == 3
        for iteration in measured.traced:
            assert [b.index for b in iteration.buckets] == list(range(len(measured.observed)))
            for bucket in iteration.buckets:
                assert bucket.ready_ns is not None
                assert bucket.launch_ns is not None
                assert bucket.end_ns is not None
                assert bucket.ready_ns <= bucket.launch_ns <= bucket.end_ns <= iteration.sync_end_ns
        # The last gradient of a bucket cannot be ready before its time.
        for bucket, row in zip(measured.observed, measured.traced[0].buckets, strict=True):
            due = max(small_workload.gradients[index].ready_ns or 0 for index in bucket)
            assert row.ready_ns is not None
            assert row.ready_ns >= due


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
    assert asked.assignment is not None
    right = [list(bucket) for bucket in asked.assignment.bucket_indices]
    wrong = [[*right[0], *right[1]], *right[2:]]
    collected = Collected(order(small_workload, [asked], rounds=1))
    event = {"event": "buckets", "lane": "asked", "traced": False}
    collected.take({**event, "ranks": [right, right]})
    with pytest.raises(ReplayError, match=r"'asked'.*not the 5 asked for"):
        collected.take({**event, "ranks": [right, wrong]})


@pytest.mark.slow  # what a rank leaves: test_failures; what is made of it: test_watching
def test_a_rank_that_fails_is_named_with_its_reason(small_workload: Workload, tmp_path: Path) -> None:
    gradients = tuple(replace(g, dtype="int32", num_bytes=4 * 512 * 512) for g in small_workload.gradients)
    integers = replace(small_workload, gradients=gradients)
    directory = start_record(tmp_path / "record", integers, FLAT)
    one = [Candidate(name="default", assignment=sim.assign(integers))]
    with pytest.raises(ReplayError, match=r"rank [01]: RuntimeError: .*[Gg]radients"):
        replay(order(integers, one, rounds=1), Place(), directory)


def test_a_rank_that_hangs_is_given_up(small_workload: Workload) -> None:
    # A probe goes on without a word.
    carrier = Carrier(emulated=FLAT)
    job = CalibrationJob(workload=small_workload, carrier=carrier, copy_repeats=10**6, quiet_s=4.0)
    with pytest.raises(ReplayError, match=r"nothing heard from the ranks for 4 s: rank 0 in .*; rank 1 in "):
        run_ranks(Place(), job, lambda event: None)


def test_what_cannot_be_replayed_is_refused_before_any_rank_starts(
    small_workload: Workload, tmp_path: Path
) -> None:
    unused, sparse = (
        replace(
            small_workload,
            gradients=(replace(small_workload.gradients[0], **one), *small_workload.gradients[1:]),
        )
        for one in ({"ready_ns": None}, {"sparse": True})
    )
    default = Candidate(name="default", assignment=sim.assign(small_workload))
    for workload, candidate, words in (
        (unused, default, "never ready"),
        (sparse, default, "sparse"),
    ):
        with pytest.raises(NotModelledError, match=words):
            replay(order(workload, [candidate]), Place(), tmp_path)
    plain = replace(default, name="plain")
    unreached = replace(sim.assign(small_workload, bucket_cap_mb=2), ddp_kwargs={"bucket_cap_mb": 5})
    for candidates, words in (
        ([], "none given"),
        ([default, default], "occur once"),
        ([plain], "is a run without communication"),
        ([Candidate(name="other", assignment=unreached)], "makes DDP use 2 bucket"),
    ):
        with pytest.raises(InputError, match=words):
            replay(order(small_workload, candidates), Place(), tmp_path)


@pytest.mark.slow
def test_calibrate_measures_a_machine() -> None:
    job = CalibrationJob(sizes=sizes_to(8 * MIB), rounds=2, small_repeats=10, computes=True)
    hardware = calibrate(job, Place())
    sizes = [point.num_bytes for point in hardware.all_reduce]
    assert sizes[0] == 4096
    assert sizes[-1] == 8 * MIB
    assert hardware.all_reduce[-1].duration_ns > hardware.all_reduce[0].duration_ns > 0
    assert hardware.comm_channels == 2
    assert 0 < hardware.launch_cost_ns < 5_000_000
    assert hardware.launch_blocks_compute
    for curve in (hardware.all_gather, hardware.reduce_scatter, hardware.broadcast):
        assert curve is not None
        assert curve[-1].duration_ns > curve[0].duration_ns > 0
    assert 0 <= hardware.search_unused_ns < MS
    assert 0 <= hardware.mark_used_ns < MS
    assert hardware.spread["search_unused_ns"]["count"] == hardware.spread["mark_used_ns"]["count"] == 24
    assert hardware.copy_in_bytes_per_s is not None
    assert 1e8 < hardware.copy_in_bytes_per_s < 1e12
    assert hardware.spread["all_reduce"]["4096"]["count"] == 20
    assert hardware.provenance["source"] == "bucketsim calibrate"
    # Both ranks and their network threads want the same cores: each slows the other down, or nearly not.
    for name in SLOWDOWNS:
        assert 1.0 <= getattr(hardware, name) < 50
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
    runner = CliRunner()
    box = ["--box", "2", "--rate", "1gbit"]
    done = runner.invoke(
        app, ["calibrate", *box, "--largest", "8MiB", "--rounds", "2", "--budget", "0", "-o", str(hardware)]
    )
    assert done.exit_code == 0, done.output
    calibrated = sim.load_hardware(hardware)
    # Two ranks send each byte once: the wire alone needs 67 ms for 8 MiB at 1 Gbit/s.
    assert calibrated.all_reduce[-1].duration_ns > 0.95 * 8 * MIB * 8
    assert calibrated.compute_slowdown == 1.0, "nothing computes beside a paced replay"
    arguments = [
        "validate",
        str(workload),
        "--hardware",
        str(hardware),
        *box,
        "--caps",
        "3",
        "--rounds",
        "4",
    ]
    done = runner.invoke(app, [*arguments, "-o", str(record)])
    assert done.exit_code == 0, done.output
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
    assert runner.invoke(app, ["agree", str(record), "--max-error", "0"]).exit_code == 3
    assert isinstance(runner.invoke(app, [*arguments, "-o", str(record)]).exception, InputError)
