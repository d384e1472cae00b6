"""Records of a box: other rates than the hardware's, slow ranks; each predicted as measured."""

from dataclasses import replace
from pathlib import Path

import pytest

import sim
from sim.errors import InputError
from sim.formats import record_files as records
from sim.nouns.assignment import Assignment
from sim.nouns.box import Box
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredIteration
from sim.nouns.records import Record
from sim.nouns.workload import Workload
from sim.truth import in_box
from tests.handmade import handmade, measurement, wired
from tests.saving import save_measurement

MS = 1_000_000
GBIT = 10**9
LINE = 1448 / 1514  # data of a full frame (RFC 791, 9293, 7323; IEEE 802.3)


def workload_of(count: int = 6, spacing_ns: int = 5 * MS) -> Workload:
    ready = [(count - index) * spacing_ns for index in range(count)]
    return handmade(ready, 1 << 20, forward_ns=7 * MS, optimizer_ns=MS)


def hardware_of(rate_bits: int, latency_ns: int = MS, ranks: int = 2) -> Hardware:
    """A ring over wires of this rate and nothing else: what the box's graph says, plus a latency."""

    def lasts(num_bytes: int) -> int:
        return latency_ns + round(num_bytes * 2 * (ranks - 1) / ranks * 8 * GBIT / (rate_bits * LINE))

    return wired({size: lasts(size) for size in (1 << 12, 1 << 20, 1 << 26)}, world_size=ranks)


def record_of(
    hardware: Hardware,
    box: Box | None,
    *,
    workload: Workload | None = None,
    calibrated_in: Box | None = None,
    slow: tuple[tuple[int, float], ...] = (),
    assignment: Assignment | None = None,
    step_ns: int = 100 * MS,
) -> Record:
    workload = workload or workload_of()
    asked = assignment or sim.assign(workload)
    row = MeasuredIteration(step_ns=step_ns, backward_end_ns=step_ns // 2, sync_end_ns=step_ns - 8 * MS)
    one = measurement(
        "DDP default",
        asked,
        [row] * 3,
        world_size=hardware.world_size,
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
    )
    return Record(
        name="made",
        workload=workload,
        hardware=hardware,
        measurements=(one,),
        box=box,
        calibrated_in=calibrated_in,
        slow=slow,
    )


def test_a_slow_port_slows_the_whole_ring() -> None:
    """Four hosts of which one has half the rate: every byte waits for it."""
    even = Box(rates_bits=(GBIT,) * 4, uplink_bits=None, hosts=(0, 1, 2, 3))
    slow = Box(rates_bits=(GBIT, GBIT, GBIT, GBIT // 2), uplink_bits=None, hosts=(0, 1, 2, 3))
    calibrated = hardware_of(GBIT, ranks=4)
    record = record_of(calibrated, slow, calibrated_in=even)
    carried = in_box.as_measured(record).hardware
    wanted = hardware_of(GBIT // 2, ranks=4)
    for point, right in zip(carried.all_reduce, wanted.all_reduce, strict=True):
        assert point.duration_ns == pytest.approx(right.duration_ns, abs=2)
    assert in_box.limits_of(record).worst_step == 0.1
    there = record_of(calibrated, even, calibrated_in=even)
    assert in_box.as_measured(there).hardware is calibrated
    assert in_box.as_measured(record_of(calibrated, slow)).hardware is calibrated, "it does not say where"
    assert in_box.limits_of(there).worst_step == 0.05


def test_a_slow_rank_s_own_schedule_is_what_the_slowest_rank_is_held_against() -> None:
    workload, hardware = workload_of(), hardware_of(GBIT, ranks=4)
    record = record_of(hardware, None, workload=workload, slow=((3, 1.5), (1, 1.2)))
    slower, _ = sim.scale(workload, hardware, backward=1.5)
    (row,) = sim.agreement(record).rows
    assert (
        row.predicted_step_ns == sim.summarize(sim.simulate(slower, hardware, sim.assign(workload))).step_ns
    )
    beside = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload), slowest=slower))
    assert row.predicted_step_ns >= beside.step_ns, "no rank is later than the slowest"


def write_record(folder: Path, record: Record, **environment: object) -> Path:
    records.start_record(folder, record.workload, record.hardware)
    for number, one in enumerate(record.measurements):
        save_measurement(folder, number, replace(one, environment=dict(environment)))
    return folder


def test_where_hardware_was_calibrated_is_read_from_its_provenance(tmp_path: Path) -> None:
    hardware = replace(
        hardware_of(GBIT),
        provenance={"box": {"rates_bits": [5, 6], "uplink_bits": None, "hosts": [1, 0]}},
    )
    back = sim.load_record(write_record(tmp_path / "r", record_of(hardware, None), slow={"1": 1.3}))
    assert back.calibrated_in == Box(rates_bits=(5, 6), uplink_bits=None, hosts=(1, 0))
    assert back.slow == ((1, 1.3),)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"box": 7}, "box: '7' is not legal"),
        ({"box": {"rates_bits": [1], "hosts": [0]}}, "uplink_bits: missing"),
        ({"box": {"rates_bits": [1, 1], "uplink_bits": None, "hosts": [2]}}, "hosts 0 to 1"),
        ({"slow": [1]}, "slow: "),
        (
            {"beside": "steps on hosts 1 and 3"},
            "measured beside steps on hosts 1 and 3, which",
        ),
        ({"slow": {"2": 1.3}}, "rank from 0 to 1"),
        ({"slow": {"0": 0.5}}, "factors of 1 or more"),
    ],
)
def test_what_is_no_box_and_no_slow_rank_is_refused(
    tmp_path: Path, environment: dict[str, object], words: str
) -> None:
    folder = write_record(tmp_path / "r", record_of(hardware_of(GBIT), None), **environment)
    with pytest.raises(InputError, match=words):
        sim.load_record(folder)
