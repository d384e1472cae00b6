"""nccl-tests' output, and other tables of collectives, as Hardware."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.costs.doubts import doubts_about
from sim.errors import InputError, SimError
from sim.formats.documents import parse_text, to_text
from sim.importer.imported import Imported, ImportOptions
from sim.importer.links.link_hardware import read_nccl_tests
from sim.importer.readers import read_auto
from sim.nouns.hardware import Curve, Hardware
from sim.tuner.draws import read_scatter
from tests.effort import DATA, needs_data, tries
from tests.importer.corpus import MODEL
from tests.importer.link_texts import WRITERS, Line, bus, head, old, report, today

quick = settings(max_examples=tries(40), suppress_health_check=[HealthCheck.function_scoped_fixture])

hundredths = st.integers(200, 9_999_999).map(lambda number: number / 100)
four_bytes = st.integers(1, 1 << 28).map(lambda words: 4 * words)
curves = st.lists(
    st.builds(Line, num_bytes=four_bytes, in_us=hundredths, out_us=hundredths),
    min_size=3,
    max_size=8,
    unique_by=lambda line: line.num_bytes,
).map(lambda lines: sorted(lines, key=lambda line: line.num_bytes))
ranks_of = st.integers(2, 24)
Writer = Callable[[Sequence[Line], int], list[str]]
each_writer = pytest.mark.parametrize("write", WRITERS)


def imported(tmp_path: Path, text: str | list[str], **options: Any) -> Imported:
    path = tmp_path / "log.txt"
    path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n", newline="")
    return read_auto([path], ImportOptions(**options))


def read(tmp_path: Path, text: str | list[str], **options: Any) -> Hardware:
    """The only Hardware of one file."""
    (hardware,) = imported(tmp_path, text, **options).hardware
    return hardware


def outcome(tmp_path: Path, text: str | list[str]) -> Hardware | str:
    """What a file gives: its Hardware, or the words that refuse it."""
    try:
        return read(tmp_path, text)
    except SimError as error:
        return str(error)


def points(curve: Curve | None) -> dict[int, int]:
    return {point.num_bytes: point.duration_ns for point in curve or ()}


def expected(lines: Sequence[Line]) -> dict[int, int]:
    """In place, to the nanosecond."""
    return {line.num_bytes: round(line.in_us * 1000) for line in lines}


# What is written comes back


@each_writer
@quick
@given(lines=curves, ranks=ranks_of)
def test_what_was_written_comes_back(write: Writer, lines: list[Line], ranks: int, tmp_path: Path) -> None:
    hardware = read(tmp_path, write(lines, ranks))
    assert (points(hardware.all_reduce), hardware.world_size) == (expected(lines), ranks)
    assert read(tmp_path, "\n".join(write(lines, ranks))) == hardware  # no end of the last line
    assert parse_text(to_text(hardware), Hardware, "again") == hardware
    read_scatter(hardware)


@quick
@given(lines=curves, ranks=ranks_of)
def test_a_report_comes_back(lines: list[Line], ranks: int, tmp_path: Path) -> None:
    for gpus in {1, ranks if ranks % 2 else ranks // 2, ranks}:  # one device a process is listed
        hardware = read(tmp_path, report(lines, ranks, gpus=gpus))
        assert (points(hardware.all_reduce), hardware.world_size) == (expected(lines), ranks)


PREFIXES: list[Callable[[int], str]] = [
    lambda n: "",
    lambda n: "0: ",
    lambda n: f"[1,{n}]<stdout>:",
    lambda n: "[prterun-node0-9@1,0]<stdout>: ",
    lambda n: "Thu Jul 18 15:41:05 2024<stdout>:",
    lambda n: f"\x1b[32mnode-{n}:\x1b[0m ",
    lambda n: "[pod/nccl-launcher-x7k/launcher] ",
    lambda n: f"Jul 18 15:41:{10 + n} node-a nccl[123]: ",
    lambda n: "worker_1  | ",
]
NOISE = [
    "node3:14031:14077 [0] NCCL INFO Channel 00/02 :    0   1   2   3",
    "node3:14031:14077 [2] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "2026-11-21 10:00:00 WARNING: size and time of something else",
    "[node0:901] 7 more processes have sent help message help-mpi-btl.txt",
    "[node-a:rank 0] WARNING: falling back to copies through host memory for this size",
    *("[...]", "", "   ", "# ", "Traceback (most recent call last):"),
    "slurmstepd: error: *** STEP 1.0 ON node3 CANCELLED AT 2026-11-21 ***",
]


@each_writer
@quick
@given(
    lines=curves.flatmap(st.permutations),
    noise=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(NOISE)), max_size=12),
    prefix=st.sampled_from(PREFIXES),
    ending=st.sampled_from(["\n", "\r\n"]),
)
def test_order_noise_and_prefixes_change_nothing(
    write: Writer, lines: Any, noise: Any, prefix: Callable[[int], str], ending: str, tmp_path: Path
) -> None:
    text = [prefix(number) + line for number, line in enumerate(write(lines, 4))]
    for place, line in noise:
        text.insert(place, line)
    hardware = read(tmp_path, ending.join(text) + ending)
    assert (points(hardware.all_reduce), hardware.world_size) == (expected(lines), 4)


@each_writer
@quick
@given(lines=curves, ranks=ranks_of, data=st.data())
def test_a_text_cut_anywhere_is_a_prefix_or_an_error(
    write: Writer, lines: list[Line], ranks: int, data: st.DataObject, tmp_path: Path
) -> None:
    text = "\n".join(write(lines, ranks)) + "\n"
    cut = text[: data.draw(st.integers(0, len(text)))]
    hardware = outcome(tmp_path, cut)
    if isinstance(hardware, str):
        assert "log.txt" in hardware
        return
    found = points(hardware.all_reduce)
    assert list(found.items()) == list(expected(lines).items())[: len(found)]
    assert hardware.world_size == ranks or cut.count(" on node") < ranks


@pytest.mark.parametrize("digits", [1, 4, 6, 7])
def test_a_last_time_without_decimals_is_whole_where_a_digit_more_would_be_out_of_line(
    digits: int, tmp_path: Path
) -> None:
    times = {1 << 16: 30_100, 1 << 20: 110_200, 1 << 24: 1_500_000, 1 << 26: 6_000_000}
    rows = "".join(f"4,{size},{time}\n" for size, time in times.items())
    found = imported(tmp_path, f"ranks,size_B,time_ns\n{rows[: len(rows) - 8 + digits]}")
    assert points(found.hardware[0].all_reduce) == dict(list(times.items())[: 4 if digits == 7 else 3])
    assert any("line 5 (4 67108864)" in line for line in found.said("dropped")) == (digits < 7)


@quick
@given(lines=curves, ranks=st.integers(2, 512))
def test_ranks_told_by_bandwidths_are_right_or_not_told(
    lines: list[Line], ranks: int, tmp_path: Path
) -> None:
    rows = [f"{one.num_bytes} {one.in_us:.2f} {bus(one.num_bytes, one.in_us, ranks):.2f}" for one in lines]
    text = ["size_B time_us busbw_GBps", *rows]
    made = outcome(tmp_path, text)
    if isinstance(made, str):
        assert "give --world-size N" in made
        made = read(tmp_path, text, world_size=ranks)
    assert made.world_size == ranks


def test_lines_without_end_take_no_time(tmp_path: Path) -> None:
    for line in (
        "a" * (1 << 19) + "_perfx ",
        "nThread 1 nGpus 1 " * 20_000,
        "size_" * 13_000,
        '"size,' * 9999,
    ):
        assert points(read(tmp_path, [line, *today(LINES, 4), line]).all_reduce) == expected(LINES)


# What a table says of its run

LINES = [
    Line(num_bytes=4 << 20, in_us=100.0, out_us=110.0),
    Line(num_bytes=16 << 20, in_us=300.0, out_us=310.0),
    Line(num_bytes=64 << 20, in_us=1000.0, out_us=990.0),
]
OSU = "# OSU {} Allreduce Latency Test v7.0\n# Size   Avg Latency(us)\n4 9.5\n8 9.6\n16 9.7\n"
GROUP = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
OF_ITERATIONS = [
    *head(4),
    f"# size count type redop root {GROUP} {GROUP} timestamp",
    "# (B) (elements) (us) (GB/s) (GB/s) (us) (us) (us) (%) (us) (GB/s) (GB/s) (us) (us) (us) (%) %Y",
    *(
        f"{size} {size // 4} float sum -1 {size / 4e4:.1f} 40.00 60.00 0 99 9999 999 2.5 "
        f"{size / 4e4:.1f} 40.00 60.00 N/A 99 9999 999 2.5 2026-01-01 10:00:00"
        for size in (4_000_000, 8_000_000, 16_000_000)
    ),
]


def runs(*in_us: float) -> list[str]:
    """As many runs, whose first size takes so long."""
    each = [[Line(num_bytes=4 << 20, in_us=us, out_us=us + 10), *LINES[1:]] for us in in_us]
    return [line for lines in each for line in today(lines, 4)]


@pytest.mark.parametrize(
    ("text", "size", "told"),
    [
        (runs(102.0, 100.0, 107.0), 4 << 20, (3, 100_000, 102_000, 107_000, "median")),
        (runs(100.0), 4 << 20, (2, 100_000, 100_000, 110_000, "mean")),  # its two columns
        (OF_ITERATIONS, 4_000_000, (2, 100_000, 100_000, 100_000, "mean")),
        (OSU.format("MPI"), 8, (None,) * 5),
    ],
    ids=["repeated", "two columns", "of iterations", "one column"],
)
def test_how_times_scatter(text: Any, size: int, told: tuple[int | str | None, ...], tmp_path: Path) -> None:
    hardware = read(tmp_path, text, world_size=4)
    known = hardware.spread.get("all_reduce", {}).get(str(size), {})
    assert tuple(known.get(key) for key in ("count", "min_ns", "median_ns", "max_ns", "quantile")) == told
    read_scatter(hardware)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((write(LINES, 2), "nccl cuda") for write in (today, old, report)),
        ("$ ./all_reduce_perf -g 2\nsize_B time_us ranks\n4 9.5 2\n8 9.6 2\n16 9.7 2\n", "nccl cuda"),
        (OSU.format("MPI"), "mpi cpu"),
        (OSU.format("MPI-CUDA"), "mpi cuda"),
        (OSU.format("MPI-ROCM"), "mpi cuda"),
        (OSU.format("NCCL-CUDA"), "nccl cuda"),
        (OSU.format("MPI-OPENACC"), "None None"),  # on whose devices it does not say
        ("size_B,time_us\n4,9.5\n8,9.6\n16,9.7\n", "None None"),
    ],
)
def test_a_table_says_between_what_it_was_measured(text: Any, told: str, tmp_path: Path) -> None:
    hardware = read(tmp_path, text, world_size=2)
    assert f"{hardware.provenance.get('backend')} {hardware.provenance.get('device')}" == told
    assert bool(hardware.spread.get("ranges")) == (told != "mpi cpu")  # what DDP costs is that of a GPU


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("$ mpirun -np 4 ./osu_allreduce -d cuda", 4),
        ("mpirun -H a,b \\\n  -np 4 \\\n  ./osu_allreduce", 4),
        ("$ srun -N 2 -n 8 ./osu_allreduce", 8),
        ("## 16 ranks, 8 ranks per node", 16),
    ],
)
def test_the_text_says_how_many_ranks(said: str, ranks: int, tmp_path: Path) -> None:
    text = f"{said}\n{OSU.format('MPI-CUDA')}"
    assert read(tmp_path, text).world_size == ranks
    with pytest.raises(InputError, match=rf"--world-size: 3 is not legal here; .* {ranks} \(told by"):
        imported(tmp_path, text, world_size=3)


# Cells with units, and times by bandwidths: tables of 64 KiB, 1 MiB and 64 MiB on four ranks; in us. A line
# ends at each " / ".
TABLES = {
    "| payload | busbw | algbw | / |--:|--:|--:| / | 64KiB | 3.23GBps | 2.15GBps | / "
    "| 1MiB | 14.00GBps | 9.33GBps | / | 64MiB | 17.92GBps | 11.95GBps | / ": (30.482, 112.388, 5615.805),
    "message size\ttime\talgbw (MB/s)\tranks / 64K\t30.1us\t2177\t4 / 1M\t0.1102 ms\t9515\t4 / "
    "64M\t6.000ms\t11185\t4 / ": (30.1, 110.2, 6000),
    "# OSU MPI Allreduce Latency Test / # 4 ranks / # Size (B)    Latency (us) / 65536 30.46 /  / "
    "srun: job 12 queued / 1048576 112.38 / 67108864 1423.10 / ": (30.46, 112.38, 1423.1),
    "size,time,world_size / 64KiB,30us,4 / 1M,0.11ms,4 / 64MiB,0.006s,4": (30, 110, 6000),
    "| Size (B) | Time (us) | busbw (GB/s) | / |--:|--:|--:| / | 65,536 | 6.6 | 15.0 | / "
    "| 1,048,576 | 104.9 | 15.0 | / | 67,108,864 | 6,710.9 | 15.0 |": (6.6, 104.9, 6710.9),
    # sizes that double say that a KB is 2^10 bytes
    "| payload | busbw | algbw | / |--:|--:|--:| / | 64KB | 3.23GBps | 2.15GBps | / "
    "| 1MB | 14.00GBps | 9.33GBps | / | 64MB | 17.92GBps | 11.95GBps | / ": (30.482, 112.388, 5615.805),
    "# OSU MPI-CUDA Allreduce Latency Test v7.4 / # 4 ranks / # Size   Avg Latency(us)   Min Latency(us)  "
    "Max Latency(us) Iterations P50 Tail Lat(us) P99 Tail Lat(us) / 65536 30.46 30.1 31 10 30.9 31 / "
    "1048576 112.38 9 9 10 9 9 / 67108864 1423.10 9 9 10 9 9 / ": (30.46, 112.38, 1423.1),
    "all_reduce on 4 ranks /  / | Message size | busbw (GB/s) | / |---|---| / | 64 KiB | 3.0 | / "
    "| 1 MiB | 15.0 | / | 64 MiB | 20.0 | / ": (32.768, 104.858, 5033.165),
    # DeepSpeed's benchmark, whose throughput of an all-reduce is twice its algorithm's bandwidth
    "n1: ---- Performance of all_reduce on 4 devices ---------- / "
    "n1: Size (Bytes)         Description    Duration       Throughput (Gbps)    BusBW (Gbps) / "
    "n1: ----------------------------------------------------- / "
    "n1: 64.0 KB              16384x4        30.000 us      34.953               26.214 / "
    "n1: 1.0 MB               262144x4       0.110 ms       152.520              114.390 / "
    "n1: 64.0 MB              16777216x4     6.000 ms       178.957              134.218 / ": (30, 110, 6000),
    "size (B),oop time (us),oop busbw (GB/s),ip time (us),ip busbw (GB/s),ranks / "
    "65536,31.0,3.17,30.0,3.28,4 / "
    "1048576,111.0,14.17,110.0,14.30,4 / 67108864,6001,16.77,6000,16.78,4 / ": (30, 110, 6000),
}


@pytest.mark.parametrize("text", TABLES)
def test_cells_with_units_and_times_by_bandwidths(text: str, tmp_path: Path) -> None:
    hardware = read(tmp_path, text.replace(" / ", "\n"))
    assert hardware.world_size == 4
    times = [round(1000 * us) for us in TABLES[text]]
    assert points(hardware.all_reduce) == dict(zip((1 << 16, 1 << 20, 1 << 26), times, strict=True))


@pytest.mark.parametrize("kilo", [1000, 1024])
@pytest.mark.parametrize("unit", ["KB", "MB", "GB"])
@pytest.mark.parametrize("write", ["{},{:.4f},{:.3f}", "{}{unit},{:.4f},{:.3f}"], ids=["header", "cells"])
@pytest.mark.parametrize("numbers", [(1, 2, 4, 8), (5, 10, 25, 100)])
def test_bandwidths_tell_what_a_megabyte_is(
    numbers: tuple[int, ...], write: str, unit: str, kilo: int, tmp_path: Path
) -> None:
    """And where there are none, sizes that double; nothing else, and never the unit of a time."""
    power = 1 + "KMG".index(unit[0])
    sizes = [number * kilo**power for number in numbers]
    times = [0.02 + size / 1e7 for size in sizes]  # ms
    pairs = [*zip(numbers, sizes, times, strict=True)]
    rows = [write.format(number, ms, size / ms / 1e6, unit=unit) for number, size, ms in pairs]
    names = [f"Size ({unit})" if "unit" not in write else "Size", "Time (ms)", "Algbw (GB/s)"]
    made = read(tmp_path, [",".join(names), *rows], world_size=4)
    assert list(points(made.all_reduce)) == sizes
    told = outcome(tmp_path, ["# 4 ranks", ",".join(names[:2]), *(row.rpartition(",")[0] for row in rows)])
    if isinstance(told, str):
        assert numbers[0] > 1
        assert "10^n to some, 2^n to others" in told
    else:
        assert list(points(told.all_reduce)) == [number * 1024**power for number in numbers]


# Collectives

NAMES = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
SIZES = [1 << power for power in (16, 20, 24, 26)]


def test_an_all_gather_goes_with_the_all_reduce_of_as_many_ranks(tmp_path: Path) -> None:
    timings = {size: f"{size / 1e4:.1f} 10.00 7.50 0" for size in SIZES}
    rows = [f"{size} {size // 16} float none -1 {timing} {timing}" for size, timing in timings.items()]
    gather, reduce = tmp_path / "gather.txt", tmp_path / "reduce.txt"
    reduce.write_text("\n".join(today(LINES, 4)) + "\n")
    for count in (2, 4):  # two sizes are too few, which is told as well
        gather.write_text("\n".join([*head(4, "all_gather_perf")[:2], NAMES, *rows[:count], ""]))
        alone = read_nccl_tests([gather], ImportOptions())
        assert (alone.hardware, len(alone.said("missing"))) == ((), 2 if count == 2 else 1)
        assert "of the 4 ranks" in alone.said("missing")[0]  # by its counts: a part a rank
    (hardware,) = read_nccl_tests([gather, reduce], ImportOptions()).hardware
    assert points(hardware.all_gather) == {size: round(size / 1e4, 1) * 1000 for size in SIZES}
    gather.write_text("\n".join([*today(LINES[:2], 4), gather.read_text()]))  # an all-reduce of two sizes
    (hardware,) = read_nccl_tests([gather, reduce], ImportOptions()).hardware
    assert points(hardware.all_gather).keys() == {*SIZES}


@pytest.mark.parametrize(("redop", "collective"), [("sum", "reduce_scatter"), ("none", "all_gather")])
def test_sizes_and_counts_tell_which_collective_it_is(redop: str, collective: str, tmp_path: Path) -> None:
    rows = [f"{size} {size // 32} float {redop} {size / 1e4:.1f} 10.00 8.75 0e+00" for size in SIZES]
    found = imported(tmp_path, ["# size count type redop time algbw busbw error", *rows])
    assert found.hardware == ()
    assert f"of the 8 ranks of log.txt, without which its {collective}" in found.said("missing")[0]
    found_text = ["size_B time_us algbw busbw", *(f"{size} {size / 1e4:.1f} 10.00 8.75" for size in SIZES)]
    with pytest.raises(InputError, match="a reduce_scatter or an all_gather"):
        imported(tmp_path, found_text)
    found = imported(tmp_path, [f"# {collective}", *found_text])
    assert f"of the 8 ranks of log.txt, without which its {collective}" in found.said("missing")[0]


def osu(test: str, over: str = "MPI") -> str:
    """A test of OSU's on four ranks."""
    return "# 4 ranks\n" + OSU.replace("{} Allreduce Latency", f"{over} {test}")


@pytest.mark.parametrize("over", ["MPI", "MPI-CUDA", "MPI_Put", "NCCL", "MPI-OPENACC"])
@pytest.mark.parametrize(
    "name",
    [
        *("Reduce", "Gatherv", "Scatter", "All-to-All Personalized Exchange", "Neighborhood Allgather"),
        *("Non-blocking Allreduce", "Multi-threaded", ""),
    ],
)
def test_a_test_of_osu_that_reduces_no_bucket_is_told_by_its_name(
    name: str, over: str, tmp_path: Path
) -> None:
    text, told = osu(f"{name} Latency".strip(), over), f"OSU's {name or 'Latency'} Test, which reduces no"
    assert f"log.txt: {told}" in str(outcome(tmp_path, text))
    both = imported(tmp_path, f"{text}\n{osu('Allreduce Latency')}")
    assert points(both.hardware[0].all_reduce) == {4: 9_500, 8: 9_600, 16: 9_700}
    assert [told in line for line in both.said("dropped")] == [True]


def test_a_test_of_osu_without_times_is_told_by_its_name(tmp_path: Path) -> None:
    text = osu("Bi-Directional Bandwidth").replace("Avg Latency(us)", "Bandwidth (MB/s)")
    headline, _, _ = osu("Allreduce Latency").partition("# Size")
    assert "OSU's Bi-Directional Bandwidth Test, which reduces no" in str(outcome(tmp_path, text))
    assert "no table of collectives" in str(outcome(tmp_path, headline))


@pytest.mark.parametrize(
    ("name", "collective", "parts"),
    [("Allgather", "all_gather", 4), ("Reduce_scatter", "reduce_scatter", 1), ("Broadcast", "broadcast", 1)],
)
@pytest.mark.parametrize("over", ["MPI", "NCCL"])
def test_sizes_are_those_of_the_whole_tensor(
    name: str, collective: str, parts: int, over: str, tmp_path: Path
) -> None:
    """OSU's of an all-gather are those of one rank's part."""
    made = read(tmp_path, f"{osu('Allreduce Latency', over)}\n{osu(f'{name} Latency', over)}")
    assert points(getattr(made, collective)) == {4 * parts: 9_500, 8 * parts: 9_600, 16 * parts: 9_700}
    assert points(made.all_reduce) == {4: 9_500, 8: 9_600, 16: 9_700}


def test_a_collective_is_named_in_a_column_of_any_name(tmp_path: Path) -> None:
    """rccl-tests' CSV, which has the two timings of a size in two rows."""
    rows = [
        f"0,AllReduce,4,4,1,{one.num_bytes},float,sum,{place},{us:.2f},{one.num_bytes / us / 1000:.3f},0"
        for one in LINES
        for place, us in enumerate((one.out_us, one.in_us))
    ]
    names = "numCycle, name, nranks, ranksPerNode, gpusPerRank, size, type, redop, inPlace, time_us, algbw, "
    found = imported(tmp_path, [f"{names}#wrong", *rows])
    assert points(found.hardware[0].all_reduce) == expected(LINES)
    assert not any("does not name its collective" in line for line in found.said("assumed"))
    other = [row.replace("AllReduce", "AlltoAll") for row in rows]
    assert "alltoall, which reduces no bucket" in str(outcome(tmp_path, [f"{names}#wrong", *other]))


# What is left out, and what is refused


def test_rows_that_contradict_themselves_or_are_wrong_are_left_out(tmp_path: Path) -> None:
    lines = [Line(num_bytes=1 << power, in_us=100.0, out_us=100.0) for power in range(20, 26)]
    text = today(lines, 4)
    rows = [number for number, line in enumerate(text) if line.startswith("  ")]
    text[rows[1]] = text[rows[1]].replace("100.00", "900.00")
    text[rows[2]] = text[rows[2]].replace(str(1 << 20), str((1 << 20) + 1))  # the count of floats
    text[rows[3]] = "  ".join([*text[rows[3]].split()[:-1], "512"])
    text[rows[4]] = text[rows[4]].replace("100.00", "100.50")  # which one of a mean of bandwidths may be
    found = imported(tmp_path, text)
    # The row with wrong results in place stands by its time out of place.
    took = dict.fromkeys((1 << power for power in (20, 23, 25)), 100_000)
    assert points(found.hardware[0].all_reduce) == took | {1 << 24: 100_500}
    said = " ".join(found.said("dropped"))
    assert "4 timings that contradict themselves" in said
    assert "8388608 B, 512 wrong" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size time\n8 5.0\n", "'time': its unit cannot be told"),
        ("size_MB time_us\n8 5.0\n", "10^n to some, 2^n to others"),
        ("size_B time_us\n8 5.0\n", "give --world-size N"),
        ("size_B time_us nranks\n", "no whole row in it"),
        ("size_B busbw_GBps\n8 5.0\n", "give a column ranks"),
        ("# size count type cputime algbw busbw\n8 2 float 5.0 1 1\n", "without -C"),
        ("size_B time_us algbw_GBps nranks\n1000000 10.0 7.0 4\n", "algbw says 7"),
        ("op,size_B,time_us\nalltoall,8,5.0\n", "no collective that fills a curve"),
        ('{"nccl_version": 1, "results": []}', "no whole row in it"),
        (report(LINES, 4)[:900], "truncated"),
        ("\n".join(today(LINES, 4)[:6] + today(LINES, 8)[14:]), "1 ranks by its list of ranks, 8 by bus"),
    ],
)
def test_what_makes_no_curve_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(("count", "told"), [(1, "1 size of all_reduce on 4 ranks (4 MiB)"), (2, "2 sizes")])
def test_fewer_than_three_sizes_are_no_link(count: int, told: str, tmp_path: Path) -> None:
    """Sizes, not rows: a size that is repeated counts once. Beside a link they are named."""
    with pytest.raises(InputError) as caught:
        imported(tmp_path, today(LINES[:count], 4) * 3)
    assert str(caught.value).startswith(f"log.txt: {told}")
    assert "all_reduce_perf -b 64K -e 512M -f 2 -g 4, or mpirun -np 4 " in str(caught.value)
    (tmp_path / "8.txt").write_text("\n".join(today(LINES, 8)) + "\n")
    both = read_nccl_tests([tmp_path / "log.txt", tmp_path / "8.txt"], ImportOptions())
    assert [one.world_size for one in both.hardware] == [8]
    assert both.said("missing")[0].startswith(f"log.txt: {told}")


# Several runs and machines: told apart, one picked, never mixed

FOOTER = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 10"]


def run(hosts: str, rate: float = 10.0, device: str = "A100", footer: bool = True) -> list[str]:
    """nccl-tests' output of an all-reduce over one rank a host, at ``rate`` GB/s."""
    each = hosts.split()
    ways = {
        size: f"{size / rate / 1000:.1f} {rate:.2f} {bus(size, size / rate / 1000, len(each)):.2f} 0"
        for size in SIZES
    }
    return [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1",
        *(f"#  Rank {n} Group  0 Pid {n} on {host} device  0 [0x05] {device}" for n, host in enumerate(each)),
        NAMES,
        *(f"{size} {size // 4} float sum -1 {timing} {timing}" for size, timing in ways.items()),
        *(FOOTER if footer else []),
    ]


@pytest.mark.parametrize(
    "between",
    [
        [*FOOTER],
        ["$ egrep 268435456 other.log"],
        ["[user@host runs]$ cat other.log"],
        ["====== 2-node ======"],
        ["", "and on the other cluster"],
        ["# the other cluster"],
        ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1"],
        ["b.log: "],
    ],
)
@pytest.mark.parametrize("size", [1 << 24, 1 << 28])
def test_a_row_below_the_end_of_a_table_is_of_another_run(
    between: list[str], size: int, tmp_path: Path
) -> None:
    timing = f"{size / 2000:.1f} 2.00 2.00 0"
    stray = [*between, f"{size} {size // 4} float sum -1 {timing} {timing}"]
    lines = run("a b", footer=False)
    if between == ["b.log: "]:  # another prefix before the row
        lines, stray = [f"a.log:{line}" for line in lines], ["".join(stray)]
    found = imported(tmp_path, [*lines, *stray])
    assert points(found.hardware[0].all_reduce) == {each: round(each / 10_000, 1) * 1000 for each in SIZES}
    assert any(str(size) in line for line in found.said("dropped"))


def test_machines_of_one_text_are_never_mixed(tmp_path: Path) -> None:
    text = [*run("a1 a2"), *run("b1 b2", rate=2.0)]
    with pytest.raises(InputError, match=r"a1, a2; A100; .*\| b1, b2; A100; .*--machine"):
        imported(tmp_path, text)
    assert points(read(tmp_path, text, machine="b1").all_reduce)[1 << 24] == 8_388_600
    with pytest.raises(InputError, match="--machine: 'c1' is in none"):
        imported(tmp_path, text, machine="c1")


@pytest.mark.parametrize(
    "other",
    [
        run("a1 a2", rate=2.0, device="V100"),
        ["==> other.log <==", *run("a1 a2", rate=2.0)],
        ["", "And the other one", *run("a1 a2", rate=2.0)],
        [f"other.log:{line}" for line in run("a1 a2", rate=2.0)],
        ["## over TCP", *run("a1 a2", rate=2.0)],
        ["$ NCCL_IB_DISABLE=1 ./all_reduce_perf -b 8 -g 2", *run("a1 a2", rate=2.0)],
        run("a1 a2", rate=2.0),
    ],
)
def test_devices_headlines_commands_and_times_tell_runs_apart(other: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 machines or runs of 2 ranks"):
        imported(tmp_path, [*run("a1 a2"), *other])


def test_a_run_that_is_repeated_is_one_machine(tmp_path: Path) -> None:
    rates = {"## run 1": 10.0, "## run 2": 5.0, "## run 3": 4.0}
    text = [line for title, rate in rates.items() for line in (title, *run("a1 a2", rate=rate))]
    assert points(read(tmp_path, text).all_reduce)[1 << 24] == 3_355_400


def test_tables_that_nothing_tells_apart_are_repeats_only_if_they_are_near(tmp_path: Path) -> None:
    def text(*rates: float, sizes: Sequence[int] = SIZES) -> list[str]:
        rows = [
            ["size_B time_us nranks", *(f"{size} {size / rate / 1000:.1f} 4" for size in sizes)]
            for rate in rates
        ]
        return [line for each in rows for line in each]

    assert points(read(tmp_path, text(10.0, 8.0)).all_reduce)[1 << 20] == 118_000
    others = text(10.0, sizes=[4 * size for size in SIZES[-1:] * 3 + SIZES[2:]])
    for apart in (text(10.0, 2.0), [*text(10.0), *others]):
        with pytest.raises(InputError, match="2 machines or runs of 4 ranks"):
            imported(tmp_path, apart)
        assert points(read(tmp_path, apart, machine="line 2").all_reduce)[1 << 20] == 104_900


@quick
@given(factor=st.sampled_from([1.5, 10.0]), order=st.permutations(range(2 * len(SIZES))), words=st.booleans())
def test_rows_of_two_machines_in_one_table_are_never_mixed(
    factor: float, order: list[int], words: bool, tmp_path: Path
) -> None:
    """Words in rows tell them apart, in any order, else that they alternate; near ones are repeats."""
    times = {nic: {size: by * size / 1e4 for size in SIZES} for nic, by in (("ib", 1.0), ("roce", factor))}
    rows = [f"{nic if words else 7},{size},{times[nic][size]:.1f},4" for size in SIZES for nic in times]
    text = ["nic,size_B,time_us,nranks", *([rows[place] for place in order] if words else rows)]
    if factor == 1.5:
        assert points(read(tmp_path, text).all_reduce)[1 << 20] == 131_100
        return
    with pytest.raises(InputError, match="2 machines or runs of 4 ranks") as caught:
        imported(tmp_path, text)
    assert ("(nic ib; from " in str(caught.value) or "| nic ib; from " in str(caught.value)) == words
    for nic, machine in zip(times, ("ib", "roce") if words else ("line 2", "line 3"), strict=True):
        picked = points(read(tmp_path, text, machine=machine).all_reduce)
        assert picked == {size: round(us, 1) * 1000 for size, us in times[nic].items()}


def test_a_type_that_takes_longer_is_another_run(tmp_path: Path) -> None:
    """nccl-tests with -d all: types that take alike are one, beside one that does not."""
    types = {"int8": 1, "half": 2, "float": 4, "double": 8}
    rows = [
        f"{size} {size // width} {name} sum {us:.1f} {us:.1f}"
        for name, width in types.items()
        for size, us in ((size, size / (1e4 if width > 1 else 2e3)) for size in SIZES)
    ]
    text = ["# 4 ranks", "size count type redop time_us time_us", *rows]
    with pytest.raises(
        InputError, match=r"2 machines .*type int8; from log.txt: line 3 \| .*type half; from"
    ):
        imported(tmp_path, text)
    made = read(tmp_path, text, machine="half")
    assert points(made.all_reduce) == {size: round(size / 1e4, 1) * 1000 for size in SIZES}
    assert made.spread["all_reduce"]["1048576"]["count"] == 3


def test_rows_of_one_machine_that_words_tell_apart_are_one_curve(tmp_path: Path) -> None:
    """The algorithm by size, or a run by its time of day."""
    for words in (["tree", "tree", "tree", "ring", "ring", "ring"], [f"at {hour}:00" for hour in range(6)]):
        pairs = zip(words, [1 << power for power in range(16, 22)], strict=True)
        rows = (f"{word},{at},{at / 1e4},4" for word, at in pairs)
        made = read(tmp_path, ["algo,size_B,time_us,nranks", *rows])
        assert len(made.all_reduce) == 6


def test_two_files_are_two_systems_and_one_can_be_picked(tmp_path: Path) -> None:
    for name, ranks in (("4", 4), ("8", 8), ("again", 8)):
        (tmp_path / f"{name}.txt").write_text("\n".join(today(LINES, ranks)) + "\n")
    paths = sorted(tmp_path.iterdir())
    both = read_nccl_tests(paths, ImportOptions())
    assert [one.world_size for one in both.hardware] == [4, 8, 8]
    assert len({one.name for one in both.hardware}) == 3
    (four,) = read_nccl_tests(paths, ImportOptions(world_size=4)).hardware
    assert four.world_size == 4
    with pytest.raises(InputError, match="--world-size: 3 is not legal here"):
        read_nccl_tests(paths, ImportOptions(world_size=3))


@quick
@given(
    at=st.integers(0, 8),
    factor=st.sampled_from([1.0, 1.4, 0.6, 5.0, 30.0, 0.1]),
    base=st.sampled_from([20.0, 2.0, 0.1]),
    step=st.sampled_from([2, 4]),
)
def test_a_time_off_those_of_the_sizes_next_to_it_is_doubtful(
    at: int, factor: float, base: float, step: int, tmp_path: Path
) -> None:
    """Of the last size more is no sign: a link may lose its rate there."""
    sizes = [4096 * step**place for place in range(9)]
    times = [(base + size / 1e4) * (factor if place == at else 1.0) for place, size in enumerate(sizes)]
    rows = [f"{size} {us:.3f} 4" for size, us in zip(sizes, times, strict=True)]
    found = imported(tmp_path, ["# all_reduce", "size_B time_us nranks", *rows])
    marks = found.hardware[0].provenance.get("doubtful", [])
    falls = [times[place] > 2 * times[place + 1] for place in range(8)]
    is_odd = falls[at] if at < 8 and factor > 1 else at > 0 and falls[at - 1]
    told = [one["num_bytes"] for one in marks]  # of the last two nothing behind them says which is off
    assert told == [sizes[at]] * is_odd or (at == 8 and told == sizes[7:8])
    assert len(found.said("doubtful")) == len(marks)
    (told,) = [line for line in doubts_about(MODEL, found.hardware[0]) if "takes" in line] or [""]
    assert told.endswith("; measure it again") == is_odd


# Public measurements

CASES = [
    ("aws_p4de_2node_16xA100_80G_EFA400.txt", 16, 29, {8: 163_300, 2147483648: 51_406_000}),
    ("hkbu_32gpu_8node_100gIB_pow2.txt", 32, 28, {33554432: 12_302_000, 536870912: 188_878_000}),
    ("hkbu_32gpu_8node_10gbe_pow2.txt", 32, 28, {524288: 2_022_000, 536870912: 887_027_000}),
    ("kopernik_2xL4_pcie_allreduce.txt", 2, 18, {8: 6_910, 134217728: 12_205_400}),
    ("stas00_a100_8gpu_nvlink3.txt", 8, 20, {1048576: 101_900, 17179869184: 127_997_000}),
    ("alps_gh200/ofi1.13.0_job-n-00004-N-0001.csv", 4, 30, {8: 8_050, 4294967296: 19_023_000}),
    ("alps_gh200/ofi1.13.0_job-n-00008-N-0002.csv", 8, 30, {1048576: 912_300, 2097152: 127_800}),
    ("alps_gh200/ofi1.13.0_job-n-00016-N-0004.csv", 16, 30, {64: 86_500, 16384: 178_000}),
    ("alps_gh200/ofi1.13.0_job-n-00032-N-0008.csv", 32, 29, {16777216: 2_296_400}),
    ("kopernik_4xA40_shm_partial.txt", None, 4, {330405888: 85_400_000}),
]


@needs_data
@pytest.mark.parametrize(("path", "ranks", "sizes", "times"), CASES)
def test_public_benchmarks(path: str, ranks: int | None, sizes: int, times: dict[int, int]) -> None:
    paths = [DATA / "nccl_tests" / path]
    if ranks is None:
        with pytest.raises(InputError, match="give --world-size N"):
            read_nccl_tests(paths, ImportOptions())
    (hardware,) = read_nccl_tests(paths, ImportOptions(world_size=None if ranks else 4)).hardware
    assert hardware.world_size == (ranks or 4)
    found = points(hardware.all_reduce)
    assert (len(found), {size: found[size] for size in times}) == (sizes, times)
