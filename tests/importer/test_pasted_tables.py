"""Tables of collectives as people paste them: with prefixes, units, ends, and several runs in one text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.formats.record_files import load_record
from sim.importer.auto import read_auto
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, ImportOptions

UNITS = "(us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
GROUP = "time   algbw   busbw #wrong"
SIZES = [1 << power for power in (16, 20, 24, 26)]
FOOTER = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 10"]


def run(hosts: str, rate: float = 10.0, device: str = "A100", footer: bool = True) -> list[str]:
    """nccl-tests' output of an all-reduce over one rank a host, at ``rate`` GB/s."""
    ranks = len(hosts.split())
    rows = []
    for size in SIZES:
        timing = f"{size / rate / 1000:.1f} {rate:.2f} {rate * 2 * (ranks - 1) / ranks:.2f} 0"
        rows.append(f"{size:12d} {size // 4:12d} float sum -1 {timing} {timing}")
    return [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {rank:6d} on {host} device  0 [0x05] {device}"
            for rank, host in enumerate(hosts.split())
        ),
        f"#       size         count      type   redop    root     {GROUP}     {GROUP}",
        f"#        (B)    (elements)                               {UNITS}",
        *rows,
        *(FOOTER if footer else []),
    ]


def imported(tmp_path: Path, text: str | list[str], name: str = "log.txt", **options: object) -> Imported:
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
    return read_auto([path], ImportOptions(**options))  # type: ignore[arg-type]


def curve(hardware: Hardware) -> dict[int, int]:
    return {point.num_bytes: point.duration_ns for point in hardware.all_reduce}


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
    ],
)
@pytest.mark.parametrize("size", [1 << 24, 1 << 28])
def test_a_row_below_the_end_of_a_table_is_of_another_run(
    between: list[str], size: int, tmp_path: Path
) -> None:
    timing = f"{size / 2000:.1f} 2.00 2.00 0"
    stray = f"{size} {size // 4} float sum -1 {timing} {timing}"
    found = imported(tmp_path, [*run("a b", footer=False), *between, stray])
    (hardware,) = found.hardware
    assert curve(hardware) == {each: round(each / 10_000, 1) * 1000 for each in SIZES}
    assert any(str(size) in line for line in found.dropped)


def test_machines_of_one_text_are_never_mixed(tmp_path: Path) -> None:
    text = [*run("a1 a2"), *run("b1 b2", rate=2.0)]
    with pytest.raises(InputError, match=r"a1, a2; A100; .*\| b1, b2; A100; .*--machine"):
        imported(tmp_path, text)
    (hardware,) = imported(tmp_path, text, machine="b1").hardware
    assert curve(hardware)[1 << 24] == 8_388_600
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
    ],
)
def test_devices_headlines_and_commands_tell_runs_apart(other: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 machines or runs of 2 ranks"):
        imported(tmp_path, [*run("a1 a2"), *other])


def test_a_run_that_is_repeated_is_one_machine(tmp_path: Path) -> None:
    text = [
        "## run 1",
        *run("a1 a2"),
        "## run 2",
        *run("a1 a2", rate=5.0),
        "## run 3",
        *run("a1 a2", rate=4.0),
    ]
    (hardware,) = imported(tmp_path, text).hardware
    assert curve(hardware)[1 << 24] == 3_355_400


@pytest.mark.parametrize(
    "prefix",
    [
        lambda n: "Thu Jul 18 15:41:05 2024<stdout>:",
        lambda n: f"[1,{n}]<stdout>:",
        lambda n: f"{n}: ",
        lambda n: f"\x1b[32mnode-{n}:\x1b[0m ",
        lambda n: "[pod/nccl-launcher-x7k/launcher] ",
        lambda n: f"Jul 18 15:41:{10 + n} node-a nccl[123]: ",
        lambda n: "worker_1  | ",
    ],
)
def test_what_stands_before_every_line_is_no_part_of_it(prefix: Callable[[int], str], tmp_path: Path) -> None:
    lines = [prefix(number) + line for number, line in enumerate(run("a a b b"))]
    lines.insert(-4, "[node-a:rank 0] WARNING: falling back to copies through host memory for this size")
    (hardware,) = imported(tmp_path, lines).hardware
    assert hardware.world_size == 4
    assert curve(hardware) == {each: round(each / 10_000, 1) * 1000 for each in SIZES}


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("$ mpirun -np 4 ./osu_allreduce -d cuda", 4),
        ("mpirun -H a,b \\\n  -np 4 \\\n  ./osu_allreduce", 4),
        ("$ srun -N 2 --ntasks-per-node=4 ./osu_allreduce", 8),
        ("$ torchrun --nnodes 2 --nproc-per-node 8 bench.py", 16),
        ("## 2 nodes x 8 GPUs", 16),
    ],
)
def test_the_text_says_how_many_ranks(said: str, ranks: int, tmp_path: Path) -> None:
    rows = "65536 30.46\n1048576 112.38\n16777216 1423.10\n"
    text = f"{said}\n# OSU MPI-CUDA Allreduce Latency Test\n# Size       Avg Latency(us)\n{rows}"
    (hardware,) = imported(tmp_path, text).hardware
    assert hardware.world_size == ranks
    assert curve(hardware) == {1 << 16: 30_460, 1 << 20: 112_380, 1 << 24: 1_423_100}
    with pytest.raises(InputError, match=rf"--world-size: 3 is not legal here; .* {ranks} \(told by"):
        imported(tmp_path, text, world_size=3)


@pytest.mark.parametrize(
    ("text", "ranks", "times"),
    [
        (
            "| payload | busbw | algbw |\n| ---: | ---: | ---: |\n| 64KiB | 3.23GBps | 2.15GBps |\n"
            "| 1MiB | 14.00GBps | 9.33GBps |\n| 64MiB | 17.92GBps | 11.95GBps |\n",
            4,
            [30_482, 112_388, 5_615_805],
        ),
        (
            "# 2 nodes x 4 GPUs\n\n| size | busbw |\n|---|---|\n| 64 KiB | 1.0 GB/s |\n"
            "| 1 MiB | 10.0 GB/s |\n| 64 MiB | 80.0 Gbps |\n",
            8,
            [114_688, 183_501, 11_744_051],
        ),
        (
            "message size\ttime\talgbw (MB/s)\tranks\n64K\t30.1us\t2177\t4\n1M\t0.1102 ms\t9515\t4\n"
            "64M\t6.000ms\t11185\t4\n",
            4,
            [30_100, 110_200, 6_000_000],
        ),
        (
            "size,time,world_size\n64KiB,30us,4\n1M,0.11ms,4\n64MiB,0.006s,4\n",
            4,
            [30_000, 110_000, 6_000_000],
        ),
        (
            "| Size (B) | Time (us) | busbw (GB/s) |\n|--:|--:|--:|\n| 65,536 | 6.6 | 15.0 |\n"
            "| 1,048,576 | 104.9 | 15.0 |\n| 67,108,864 | 6,710.9 | 15.0 |\n",
            4,
            [6_600, 104_900, 6_710_900],
        ),
    ],
)
def test_cells_with_units_and_times_by_bandwidths(
    text: str, ranks: int, times: list[int], tmp_path: Path
) -> None:
    (hardware,) = imported(tmp_path, text).hardware
    assert hardware.world_size == ranks
    assert curve(hardware) == dict(zip((1 << 16, 1 << 20, 1 << 26), times, strict=True))


def parts(ranks: int, redop: str) -> str:
    busbw = 10 * (ranks - 1) / ranks
    rows = "".join(
        f"{size} {size // 4 // ranks} float {redop} {size / 1e4:.1f} 10.00 {busbw:.2f} 0e+00\n"
        for size in SIZES
    )
    return f"# size count type redop time algbw busbw error\n# (B) (elements) (us) (GB/s) (GB/s)\n{rows}"


@pytest.mark.parametrize(("redop", "collective"), [("sum", "reduce_scatter"), ("none", "all_gather")])
def test_sizes_and_counts_tell_which_collective_it_is(redop: str, collective: str, tmp_path: Path) -> None:
    found = imported(tmp_path, parts(8, redop))
    assert found.hardware == ()
    (orphan,) = found.details["curves_without_all_reduce"]
    assert (orphan["collective"], orphan["world_size"], len(orphan["points"])) == (collective, 8, 4)


def test_units_that_stand_apart_in_a_header_are_its_columns(tmp_path: Path) -> None:
    text = "# OSU MPI Allreduce Latency Test\n# Size (B)    Latency (us)\n"
    rows = "65536 30.46\n\nsrun: job 12 queued\n1048576 112.38\n16777216 1423.10\n"
    (hardware,) = imported(tmp_path, text + rows, world_size=2).hardware
    assert curve(hardware) == {1 << 16: 30_460, 1 << 20: 112_380, 1 << 24: 1_423_100}


def test_a_collective_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    rows = "65536 30.5 2.15 1.88\n1048576 112.4 9.33 8.16\n16777216 1423.1 11.79 10.32\n"
    text = f"size_B time_us algbw busbw\n{rows}"
    with pytest.raises(InputError, match="a reduce_scatter or an all_gather"):
        imported(tmp_path, text)
    found = imported(tmp_path, f"# reduce_scatter\n{text}")
    assert found.details["curves_without_all_reduce"][0]["world_size"] == 8


def test_tables_that_nothing_tells_apart_are_repeats_only_if_they_are_near(tmp_path: Path) -> None:
    def text(*rates: float) -> str:
        return "\n".join(
            "size_B time_us nranks\n" + "".join(f"{size} {size / rate / 1000:.1f} 4\n" for size in SIZES)
            for rate in rates
        )

    (hardware,) = imported(tmp_path, text(10.0, 8.0)).hardware
    assert curve(hardware)[1 << 20] == 118_000
    with pytest.raises(InputError, match="2 machines or runs of 4 ranks"):
        imported(tmp_path, text(10.0, 2.0))
    (hardware,) = imported(tmp_path, text(10.0, 2.0), machine="line 2").hardware
    assert curve(hardware)[1 << 20] == 104_900


def test_a_row_that_another_prefix_stands_before_is_of_another_file(tmp_path: Path) -> None:
    lines = [f"a.log:{line}" for line in run("a1 a2", footer=False)]
    stray = f"b.log: {1 << 28} {1 << 26} float sum -1 134217.7 2.00 2.00 0 134217.7 2.00 2.00 0"
    found = imported(tmp_path, [*lines, stray])
    assert list(curve(found.hardware[0])) == SIZES
    assert any(str(1 << 28) in line for line in found.dropped)


def test_files_of_one_stem_have_names_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("link.txt", "link.log")]
    for path in paths:
        path.write_text("\n".join(run("a b")) + "\n")
    names = {one.name for one in read_auto(paths, ImportOptions()).hardware}
    assert names == {"link.txt, 2 ranks", "link.log, 2 ranks"}


@pytest.mark.parametrize("several", [False, True])
def test_a_record_without_a_link_says_what_is_needed(several: bool, tmp_path: Path) -> None:
    record = Path(__file__).parents[2] / "traces"
    measurement = next(record.rglob("measurement-*.json"))
    (tmp_path / measurement.name).write_bytes(measurement.read_bytes())
    if several:
        (tmp_path / "hardware-2ranks.json").touch()
    needed = "copy that one to" if several else "a table of the link's times"
    with pytest.raises(InputError, match=f"no hardware.json in it: .*{needed}"):
        load_record(tmp_path)
