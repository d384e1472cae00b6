"""Take the figures that tests need from the public measurements: ``python -m tests.published.take``.

``BUCKETSIM_DATA`` names the folder of the measurements. Of a curve with hundreds of sizes a sample is kept.
"""

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sim
from sim.importer.links.link_hardware import read_nccl_tests
from sim.importer.readers import reader
from sim.nouns.hardware import Curve
from sim.nouns.imported import ImportOptions
from sim.nouns.records import Record
from tests.clusters.published_fabrics import SYSTEMS, System, between_mib_and_gib, three_of
from tests.public_data import DATA, HAS_DATA
from tests.published.figures import FOLDER

# Sizes of a curve beyond which one in ``EVERY`` is kept.
MANY, EVERY = 100, 16

GITHUB = "https://github.com"
KOPERNIK = f"{GITHUB}/kopernik278/nccl-network-benchmark"
DOMINATOR = f"{GITHUB}/Dominator-Index/Dominator-Index.github.io, assets/blog/code"
NONE_FOUND = "none found: figures only"
# Source and licence, by how the names of files begin.
SOURCES = {
    "thanos": ("notes on NCCL, their repository unknown: mpirun -np 8 all_reduce_perf -g 1", NONE_FOUND),
    "stas00": (f"{GITHUB}/stas00/ml-engineering 744d01e1, network/README.md", "CC-BY-SA-4.0"),
    "aws": (
        f"{GITHUB}/aws-samples/awsome-distributed-training 7217859f, micro-benchmarks/nccl-tests/README.md",
        "MIT-0",
    ),
    "ofi": (
        f"{GITHUB}/boeschf/nccl-benchmark-on-alps-2025 897cff44, "
        "results/nccl-tests_nccl-2.23.4-1-aws-1.13.0-v0",
        NONE_FOUND,
    ),
    "hkbu": (f"{GITHUB}/dexhunter/allreduce-experiments b49158f0, data/nccl-results/nccl-32gpus", "MIT"),
    "vidur": (f"{GITHUB}/microsoft/vidur 7d475133, data/profiling/network", "MIT"),
    "kopernik_2xL4": (f"{KOPERNIK} cbb1f68b, results/raw/p1-nccl-baseline", NONE_FOUND),
    "kopernik_4xA40": (
        f"{KOPERNIK} 69fb1efe, docs/experiments/p8-contention.md, p9-ddp-training.md",
        NONE_FOUND,
    ),
    "kopernik_a40x4": (f"{KOPERNIK} 7a36c0dd, results/raw/p9-ddp-training", NONE_FOUND),
    "dominator_rtxpro6000_": (
        f"{DOMINATOR}/01-collective-communication/results 12db3f8e",
        "MIT, by the repository",
    ),
    "dominator_rtxpro6000x8": (
        f"{DOMINATOR}/02-data-parallel-ddp/results 12db3f8e",
        "MIT, by the repository",
    ),
    "schemmy": (f"{GITHUB}/schemmy/exp-llm ecd8d6ad, experiments/wk16_bucket_sweep", NONE_FOUND),
}
META = f"traces of {GITHUB}/facebookresearch/HolisticTraceAnalysis and {GITHUB}/facebookresearch/param"

# Of one rank or of all, as they lie below ``traces``.
TRACES = {
    "DLRM, all ranks of 8 V100": "param/param_dlrm_v100x8_r*.pt.trace.json.gz",
    "ResNet-50, one rank of 2 A100": "hta/hta_nccl_data_a100x2.json.gz",
    "a model with all-to-alls, one rank of 8 A100": "hta/hta_trace_diff_control_a100x8_r3.json.gz",
}

T = TypeVar("T")


def entry(name: str, **kept: Any) -> dict[str, Any]:
    """What is kept of the file ``name``, behind its source and licence."""
    ((source, licence),) = (said for start, said in SOURCES.items() if name.startswith(start))
    return {"source": source, "licence": licence, **kept}


def table(name: str) -> list[dict[str, str]]:
    """A CSV of measured steps, without its comments."""
    with (DATA / "bucket_sweeps" / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "ddp_logging" / name).read_text())
    return found


@cache
def every_point(system: System) -> Curve:
    """All that was measured, as the import of nccl-tests reads it."""
    imported = read_nccl_tests([DATA / system.path], ImportOptions(world_size=system.ranks))
    (hardware,) = (each for each in imported.hardware if system.place in each.name)
    assert hardware.world_size == system.fabric.world_size
    return hardware.all_reduce


def whole(system: System) -> Curve:
    """Every point of 1 MiB to 1 GiB."""
    return between_mib_and_gib(every_point(system))


def sample(rows: Sequence[T], beside: Iterable[T] = ()) -> list[T]:
    """All rows, or of many one in sixteen, and those beside them."""
    if len(rows) <= MANY:
        return list(rows)
    return [row for number, row in enumerate(rows) if number % EVERY == 0 or row in beside]


def pairs(points: Iterable[Any]) -> list[list[int]]:
    return [[point.num_bytes, point.duration_ns] for point in points]


def fabrics() -> dict[str, Any]:
    """Each system's points of 1 MiB to 1 GiB, and those of small messages that a test needs."""
    found = {}
    for system in SYSTEMS:
        points = whole(system)
        kept = sample(points, three_of(points))
        small = [point for point in every_point(system) if point.num_bytes <= system.small_bytes]
        of = {"of": len(points)} if len(kept) < len(points) else {}
        found[system.name] = entry(Path(system.path).name, **of, points=pairs([*small, *kept]))
    return found


def link(name: str, world_size: int) -> list[list[int]]:
    found = read_nccl_tests([DATA / "nccl_tests" / name], ImportOptions(world_size=world_size)).hardware
    (hardware,) = (one for one in found if one.world_size == world_size)
    return pairs(hardware.all_reduce)


def clusters() -> dict[str, Any]:
    """Steps of two clusters, the durations of all-reduces in them, and their links' curves."""
    a40, rtx = "kopernik_a40x4_gpt82M_hostA.csv", "dominator_rtxpro6000x8_nanogpt124M.csv"
    a40_link = "kopernik_4xA40_shm_partial.txt"
    rtx_link = "dominator_rtxpro6000_pcie_allreduce_n2_n4_n8.csv"
    profiles = document("kopernik_a40x4_hostA_timelines.json")["timelines"]
    (profile,) = (one for one in profiles if one["cap_mb"] == 25)
    rows = table(rtx)
    (alone,) = (float(row["step_ms"]) for row in rows if row["mode"] == "single")
    return {
        "a40": entry(
            a40,
            step_ms={
                row["bucket_cap_mb"]: float(row["step_ms"])
                for row in table(a40)
                if row["bucket_cap_mb"].isdigit()
            },
            all_reduce_ms={
                str(one["cap_mb"]): one["allreduce_durations_ms"]
                for one in profiles
                if one["cap_mb"] in (4, 25)
            },
            after_backward_ms=profile["after_bwd_ms"],
        ),
        "a40 link": entry(a40_link, points=link(a40_link, 4)),
        "rtx": entry(
            rtx,
            single_gpu_ms=alone,
            steps=[
                {
                    "bucket_cap_mb": float(row["bucket_cap_mb"]),
                    "accumulation_steps": int(row["gas"]),
                    "no_sync": row["no_sync"] == "1",
                    "step_ms": float(row["step_ms"]),
                }
                for row in rows
                if row["mode"] == "ddp"
            ],
        ),
        "rtx link": entry(rtx_link, points=link(rtx_link, 8)),
    }


def null_case() -> dict[str, Any]:
    """Steps of two A100 by model and cap, and links that theirs may be."""
    steps, pair = "schemmy_a100x2_gpt2.csv", "vidur_a100_pairwise_nvlink_all_reduce.csv.gz"
    slots = "kopernik_2xL4_pcie_allreduce.txt"
    models: dict[str, dict[str, float]] = {}
    for row in table(steps):
        models.setdefault(row["model"], {})[row["bucket_cap_mb"]] = float(row["step_ms"])
    with gzip.open(DATA / "link_calibration" / pair, "rt") as file:
        rows = {int(row["size"]): row for row in csv.DictReader(file) if row["num_workers"] == "2"}
    scatter = [
        [size, *(round(float(row[f"time_stats.all_reduce.{of}"]) * 1e6) for of in ("min", "median", "max"))]
        for size, row in sorted(rows.items())
    ]
    times = link(slots, 2)
    return {
        "steps": entry(steps, step_ms=models),
        "nvlink": entry(pair, of=len(scatter), bytes_min_median_max_ns=sample(scatter, scatter[-1:])),
        "pcie": entry(slots, least_ns=min(duration for _, duration in times), points=times[-1:]),
    }


def layouts() -> dict[str, Any]:
    """Bytes of each all-reduce in order, by cap in MiB."""
    cases = document("bucket_layouts.json")["cases"]
    (resnet50,) = (one["allreduce_elems_fp32"] for one in cases if one["model"] == "resnet50")
    older = [one for one in cases if "resnet18" in one["model"]]
    log = document("kopernik_a40x4_hostA_ddp_logging.json")
    return {
        "resnet18": {
            "source": f"{GITHUB}/pytorch/pytorch/issues/48880",
            "licence": NONE_FOUND,
            "bucket_bytes": {str(one["cap_mb"]): one["allreduce_bytes"] for one in older},
        },
        "resnet50": {
            "source": META,
            "licence": "MIT",
            "bucket_bytes": {"25": [4 * elements for elements in resnet50]},
        },
        "gpt": entry(
            "kopernik_a40x4_hostA_ddp_logging.json",
            param_tensors=log["model"]["param_tensors"],
            params=log["model"]["params"],
            bucket_bytes={str(one["cap_mb"]): one["rebuilt_bucket_sizes"] for one in log["records"]},
        ),
    }


def traces() -> dict[str, Any]:
    """What today's model says of steps of others, beside what their traces say."""
    found = {}
    for name, pattern in TRACES.items():
        paths = sorted((DATA / "traces").glob(pattern))
        imported = reader("kineto")(paths, ImportOptions())
        assert imported.workload is not None
        (hardware,) = imported.hardware
        (row,) = sim.agreement(
            Record(
                name=name,
                workload=imported.workload,
                hardware=hardware,
                measurements=imported.measurements,
            )
        ).rows
        assert row.median_bucket_end_error is not None
        found[name] = {
            "source": META,
            "licence": "MIT",
            "exposed_ns": {"predicted": row.predicted_exposed_ns, "measured": row.measured_exposed_ns},
            "median_bucket_end_error": round(row.median_bucket_end_error, 4),
            "worst_bucket_end_error_ns": max(abs(end.error_ns) for end in row.bucket_ends),
            "step_error": round(row.step_error, 4),
        }
    return found


FILES = {
    "clusters": clusters,
    "fabrics": fabrics,
    "layouts": layouts,
    "null_case": null_case,
    "traces": traces,
}


def text(name: str) -> str:
    """One file as it is kept: a line for each thing said of an entry."""
    entries = []
    for key, kept in FILES[name]().items():
        lines = ",\n".join(
            f"  {json.dumps(said)}: {json.dumps(what, separators=(',', ':'))}" for said, what in kept.items()
        )
        entries.append(f"{json.dumps(key)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


if __name__ == "__main__":
    if not HAS_DATA:
        raise SystemExit("BUCKETSIM_DATA does not name the public measurements")
    for each in FILES:
        (FOLDER / f"{each}.json").write_text(text(each))
