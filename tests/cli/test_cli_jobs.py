"""bucketsim jobs: what jobs on one cluster cost each other, and what it refuses."""

import json
from pathlib import Path

import pytest

import sim
from sim.clusters.boxes import boxed_cluster
from tests.commands import Said, bucketsim

TRACES = Path(__file__).parents[2] / "traces"
WORKLOAD = TRACES / "workloads" / "gpt-13.8M-cpu.json"
HARDWARE = TRACES / "hardware" / "box-2x1gbit.json"
GBIT = 10**9
A = f"{WORKLOAD},hardware={HARDWARE},ranks=host0.gpu0+host2.gpu0"
B = f"{WORKLOAD},hardware={HARDWARE},ranks=host1.gpu0+host3.gpu0"


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Four hosts of 1 Gbit/s behind an uplink of as much."""
    path = tmp_path / "box.json"
    path.write_text(sim.to_text(boxed_cluster([GBIT] * 4, GBIT)))
    return path


def play(box: Path, *jobs: str) -> Said:
    return bucketsim(
        "jobs", box, *(word for job in jobs for word in ("--job", job)), "--steps", 4, "--warmup", 1
    )


def test_two_jobs_on_one_uplink(box: Path) -> None:
    said = play(box, f"{A},bucket_cap_mb=5", f"{B},bucket_cap_mb=5,name=other,offset_ms=1.5")
    assert said.code == 0
    _, _, *rows, shared = said.out.splitlines()
    assert [row.split()[0] for row in rows] == ["A", "other"]
    assert shared == "A and other share switch0 -> switch1: 59.8 of 120 MB/s each (and so 1 more)"
    assert said.err == "next: the same with -o DIRECTORY, to tune each job beside the others\n"


def test_its_document_is_what_the_facade_says(box: Path) -> None:
    said = bucketsim("jobs", box, "--job", A, "--job", B, "--steps", 4, "--warmup", 1, "--json")
    made = json.loads(said.out)
    assert (made["kind"], made["steps"], made["warmup"], made["offsets_ns"]) == ("jobs", 4, 1, [0, 0])
    workload = sim.load_workload(WORKLOAD)
    step = sim.summarize(sim.simulate(workload, sim.load_hardware(HARDWARE), sim.assign(workload))).step_ns
    for job in made["jobs"]:
        assert job["alone_step_ns"] == step
        assert step < job["mean_step_ns"] <= job["always_beside_step_ns"]
        assert job["slowdown"] == pytest.approx(job["mean_step_ns"] / step)


def test_other_starts_are_told_as_a_range(box: Path) -> None:
    said = bucketsim("jobs", box, "--job", A, "--job", B, "--steps", 8, "--warmup", 4, "--starts", 3)
    *_, first, second, _ = said.out.splitlines()
    for name, line in (("A:", first), ("B:", second)):
        assert line.startswith(name)
        assert line.endswith(" ms, by when the jobs start")
        low, _, _, high = line.split()[1:5]
        assert float(low) < float(high)


def test_jobs_that_share_nothing_say_so(box: Path) -> None:
    near = A.replace("host2", "host1")
    far = B.replace("host1", "host2")
    said = play(box, near, far)
    assert said.code == 0, said.err
    assert said.out.endswith("no job gets less of any link beside the others than alone\n")
    assert said.out.count("1.00") == 2


def test_hardware_beside_the_others_is_written_to_be_tuned(box: Path, tmp_path: Path) -> None:
    said = bucketsim("jobs", box, "--job", A, "--job", B, "--steps", 2, "--warmup", 0, "-o", tmp_path)
    assert said.code == 0
    alone, beside = sim.load_hardware(HARDWARE), sim.load_hardware(tmp_path / "hardware-1.json")
    assert beside.all_reduce[-1].duration_ns == pytest.approx(2 * alone.all_reduce[-1].duration_ns, rel=0.01)
    assert beside.provenance["carried"]["beside"] == [["host0.gpu0", "host2.gpu0"]]


def test_without_hardware_it_is_computed(tmp_path: Path) -> None:
    """Eight hosts on two leaves, with an eighth of the bandwidth between them."""
    cluster = tmp_path / "cluster.json"
    bucketsim(
        *("cluster", "dgx_a100", "hosts=4", "hosts_per_leaf=2", "oversubscription=8"),
        *("--save-cluster", cluster),
    )
    jobs = [
        f"{WORKLOAD},ranks={'+'.join(f'host{host}.gpu{gpu}' for host in hosts for gpu in range(8))}"
        for hosts in ((0, 2), (1, 3))
    ]
    said = play(cluster, *jobs)
    assert said.code == 0
    assert "A and B share leaf0.0 -> spine0: 3.12 of 6.25 GB/s each (and so 31 more)" in said.out


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([A], "--job: one job shares nothing; give two or more"),
        ([A, A], "'host0.gpu0' of B is not legal; A has it"),
        ([A, B.replace("host3", "host8")], "--job B: ranks.1: 'host8.gpu0' is not legal"),
        ([A, B.replace("+host3.gpu0", "")], "B: ranks: 1 GPUs are not legal; hardware"),
        ([A, str(WORKLOAD)], "--job B: ranks: missing; give the GPU of each rank"),
        ([A, B + ",name=A"], "jobs.1.name: 'A' occurs twice"),
        ([A, B + ",name="], "--job B: name: an empty text is not legal"),
        ([A, B + ",offset_ms=-1"], "--job B: offset_ms: '-1' is not legal"),
        ([A, B + ",offset_ms=soon"], "--job B: offset_ms: 'soon' is not legal"),
        ([A, B + ",offset_ms=nan"], "--job B: offset_ms: 'nan' is not legal"),
        ([A, B + ",offset_ms=100000000"], "offsets_ns: 100000000000000 is not legal here"),
        ([A, B + ",bucket_cap_mb=-1"], "--job B: bucket cap: '-1' is not legal"),
        ([A, B + ",bucket_cap_mb=true"], "--job B: bucket cap: 'true' is not legal"),
        ([A, B + ",bucket_cap_mb_list=1+"], "--job B: bucket cap: '' is not legal"),
        ([A, f"{WORKLOAD},ranks=host1.gpu0+host3.gpu0,hardware=0"], "--job B: 0: cannot be read"),
        ([A, B + ",policy=0"], "--job B: policy: '0' is not modelled"),
        ([A, B + ",workload=0"], "--job B: workload: is no switch"),
        ([A, B + ",bucket_cap_mb=1,bucket_cap_mb=2"], "--job B: bucket_cap_mb is given twice"),
        (
            [A, B + ",bucket_cap_mb=1,assignment=none.json"],
            "bucket_cap_mb: is not legal beside assignment",
        ),
        ([A, B + ",policy=none"], "--job B: policy: 'none' is not modelled"),
        ([A, B + ",hardware"], "--job B: 'hardware' is not legal; give key=value"),
        ([A, "none.json,ranks=host1.gpu0+host3.gpu0"], "--job B: none.json: cannot be read"),
    ],
)
def test_what_it_refuses(box: Path, jobs: list[str], said: str) -> None:
    made = play(box, *jobs)
    assert made.code == 1
    assert said in made.err


def test_caps_are_written_as_anywhere_else(box: Path) -> None:
    """A job with caps as sizes does what one with as many MiB does; a list has a plus, as ranks have."""
    sizes, bare = (
        play(box, f"{A},{first}", f"{B},{second}").out
        for first, second in (
            ("bucket_cap_mb=5MiB,first_bucket_mb=512KiB", "bucket_cap_mb_list=1024KiB+8MiB"),
            ("bucket_cap_mb=5,first_bucket_mb=0.5", "bucket_cap_mb_list=1+8"),
        )
    )
    assert sizes == bare
    assert sizes != play(box, A, B).out


def test_a_directory_that_is_not_there_is_made(box: Path, tmp_path: Path) -> None:
    made = bucketsim(
        "jobs", box, "--job", A, "--job", B, "--steps", 2, "--warmup", 0, "-o", tmp_path / "none"
    )
    assert made.code == 0
    assert len(list((tmp_path / "none").iterdir())) == 2
