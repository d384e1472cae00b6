"""Real ranks: calibrated, replayed, checked, and heard when they fail."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sim
from sim.cli.main import app
from sim.errors import InputError, NotModelledError, ReplayError
from sim.formats.records import load_record, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.calibrate import calibrate
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Candidate, replay
from tests.dist.conftest import needs_box

pytestmark = pytest.mark.dist

FLAT = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=10**6),))


def candidates(workload: Workload) -> list[Candidate]:
    caps = [3.0, 5.0, 2.0]
    return [
        Candidate(name="DDP default", assignment=sim.assign(workload)),
        Candidate(name="cap 2", assignment=sim.assign(workload, bucket_cap_mb=2)),
        Candidate(name="list", assignment=sim.assign(workload, bucket_cap_mb_list=caps)),
        Candidate(name="first 2, cap 5", assignment=sim.assign(workload, bucket_cap_mb=5, first_bucket_mb=2)),
    ]


def test_replay_runs_the_buckets_asked_for_and_measures_them(
    small_workload: Workload, tmp_path: Path
) -> None:
    asked = candidates(small_workload)
    directory = start_record(tmp_path / "record", small_workload, FLAT)
    replay(small_workload, asked, Place(), directory, rounds=3)
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


def test_buckets_other_than_those_asked_for_fail_loudly(small_workload: Workload, tmp_path: Path) -> None:
    right = sim.assign(small_workload, bucket_cap_mb=2)
    wrong = replace(right, ddp_kwargs={"bucket_cap_mb": 5})
    directory = start_record(tmp_path / "record", small_workload, FLAT)
    with pytest.raises(ReplayError, match=r"'wrong'.*not the 5 asked for"):
        replay(small_workload, [Candidate(name="wrong", assignment=wrong)], Place(), directory, rounds=1)


def test_a_rank_that_fails_is_named_with_its_reason(small_workload: Workload, tmp_path: Path) -> None:
    gradients = tuple(replace(g, dtype="int32", num_bytes=4 * 512 * 512) for g in small_workload.gradients)
    integers = replace(small_workload, gradients=gradients)
    directory = start_record(tmp_path / "record", integers, FLAT)
    one = [Candidate(name="default", assignment=sim.assign(integers))]
    with pytest.raises(ReplayError, match=r"rank [01]: RuntimeError: .*[Gg]radients"):
        replay(integers, one, Place(), directory, rounds=1)


def test_a_rank_that_hangs_is_given_up() -> None:
    job = {"task": "calibrate", "backend": "gloo", "rounds": 0, "copy_repeats": 10**6}
    with pytest.raises(ReplayError, match="nothing heard from the ranks for 4 s"):
        run_ranks(Place(), job, lambda event: None, timeout_s=4)


def test_what_cannot_be_replayed_is_refused_before_any_rank_starts(
    small_workload: Workload, tmp_path: Path
) -> None:
    free = Assignment(bucket_indices=(tuple(range(0, 10, 2)), tuple(range(1, 10, 2))))
    last = sim.assign(small_workload, set_last_bucket_cap=True)
    unused = replace(
        small_workload,
        gradients=(replace(small_workload.gradients[0], ready_ns=None), *small_workload.gradients[1:]),
    )
    default = Candidate(name="default", assignment=sim.assign(small_workload))
    for workload, candidate, words in (
        (small_workload, Candidate(name="free", assignment=free), "no ddp_kwargs"),
        (small_workload, Candidate(name="last", assignment=last), "DDP_SET_LAST_BUCKET_CAP"),
        (unused, default, "never ready"),
    ):
        with pytest.raises(NotModelledError, match=words):
            replay(workload, [candidate], Place(), tmp_path)
    with pytest.raises(InputError, match="occur once"):
        replay(small_workload, [default, default], Place(), tmp_path)


@pytest.mark.parametrize(
    "place", [Place(), pytest.param(Place(box=2, rate_bits=10**9), marks=needs_box)], ids=["loopback", "box"]
)
def test_calibrate_measures_a_machine(place: Place) -> None:
    hardware = calibrate(place, largest=8 * MIB, rounds=2, small_repeats=10)
    sizes = [point.num_bytes for point in hardware.all_reduce]
    assert sizes[0] == 4096
    assert sizes[-1] == 8 * MIB
    assert hardware.all_reduce[-1].duration_ns > hardware.all_reduce[0].duration_ns > 0
    assert hardware.comm_channels == 2
    assert 0 < hardware.launch_cost_ns < 5_000_000
    assert hardware.launch_blocks_compute
    assert hardware.copy_in_bytes_per_s is not None
    assert 1e8 < hardware.copy_in_bytes_per_s < 1e12
    assert hardware.spread["all_reduce"]["4096"]["count"] == 20
    assert hardware.provenance["source"] == "bucketsim calibrate"
    if place.rate_bits is not None:
        # Two ranks send each byte once: the wire alone needs 67 ms for 8 MiB at 1 Gbit/s.
        wire_ns = 8 * MIB * 8
        assert 0.95 * wire_ns < hardware.all_reduce[-1].duration_ns < 1.4 * wire_ns
        # Two collectives at once share that wire.
        assert 1.5 < hardware.channel_slowdown < 2.6


@needs_box
def test_the_loop_closes_through_the_command_line(small_workload: Workload, tmp_path: Path) -> None:
    """calibrate, then validate on assignments that calibration has not seen; the gate here is loose,
    for machines that do other things at the same time."""
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    runner = CliRunner()
    box = ["--box", "2", "--rate", "1gbit"]
    done = runner.invoke(app, ["calibrate", *box, "--largest", "16MiB", "--rounds", "3", "-o", str(hardware)])
    assert done.exit_code == 0, done.output
    arguments = [
        "validate",
        str(workload),
        "--hardware",
        str(hardware),
        *box,
        "--caps",
        "1,3",
        "--rounds",
        "5",
    ]
    done = runner.invoke(app, [*arguments, "-o", str(record)])
    assert done.exit_code == 0, done.output
    agreement = sim.agreement(sim.load_record(record))
    names = {row.name for row in agreement.rows}
    assert names == {"DDP default", "bucket_cap_mb=1", "bucket_cap_mb=3", "single", "recommended"}
    assert agreement.median_step_error < 0.10
    single = next(row for row in agreement.rows if row.name == "single")
    best = min(agreement.rows, key=lambda row: row.measured_step_ns)
    assert single.measured_step_ns > 1.1 * best.measured_step_ns, "candidates differ by tens of percent"
    assert agreement.order_right >= 0.8 * agreement.order_pairs > 0
    # A threshold that nothing can meet gives exit 3; and the record refuses to be overwritten.
    assert runner.invoke(app, ["agree", str(record), "--max-error", "0"]).exit_code == 3
    assert isinstance(runner.invoke(app, [*arguments, "-o", str(record)]).exception, InputError)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_keeps_what_it_has_and_leaves_no_process(
    small_workload: Workload, tmp_path: Path, sent: signal.Signals
) -> None:
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(FLAT))
    command = [sys.executable, "-m", "sim", "validate", str(workload), "--hardware", str(hardware)]
    process = subprocess.Popen(
        [*command, "-o", str(record), "--rounds", "2000", "--caps", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # Long enough for warm-up and some rounds; what counts is what is left afterwards.
    time.sleep(25)
    ranks = children(process.pid)
    assert ranks
    process.send_signal(sent)
    assert process.wait(timeout=30) != 0
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    kept = load_record(record)
    assert kept.candidates
    assert not any(measurement.complete for measurement in kept.measurements)
    assert all(0 < len(measurement.iterations) < 2000 for measurement in kept.measurements)


def children(parent: int) -> list[int]:
    """Process ids below ``parent``."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found, frontier = [], [parent]
    while frontier:
        frontier = [pid for pid, above in pairs if above in frontier]
        found += frontier
    return found
