"""What is asked, by subject: command lines run in this process, and pages without a browser.

Files are named as in a checkout; ``made/`` is where earlier lines of the same subject wrote theirs.
"""

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

from streamlit.testing.v1 import AppTest

import sim
from tests.app.conftest import a_page, charts, make_traces
from tests.commands import bucketsim
from tests.importer.corpus import corpus

Answers = Iterator[tuple[str, Any]]
ROOT = Path(__file__).parents[2]
WORKLOADS = sorted(path.stem for path in (ROOT / "traces" / "workloads").glob("*.json"))
MACHINES = sorted(path.stem for path in (ROOT / "traces" / "hardware").glob("*.json"))
GPT, EVERY = "traces/workloads/gpt-13.8M-cpu.json", "traces/hardware/box-2x1gbit-every-collective.json"
WIRE, FOUR = "traces/hardware/box-2x1gbit.json", "traces/hardware/box-4x1gbit.json"
# Systems, and settings of each (+: several at once), on the machine that has a curve of every collective.
_TEXTBOOK = (
    "single per-parameter per-parameter-sync after-backward per-parameter-async arrival-counted flat-views"
)
_ZERO = (
    "overlap_comm=false reduce_scatter=false contiguous_gradients=false cpu_offload=true+accelerator=cpu "
    "communication_data_type=fp16 prescale_gradients=true+reduce_scatter=false gradient_accumulation_steps=4"
)
_SETTINGS = {
    "": "bucket_cap_mb_list=[1,4,16] find_unused_parameters=true static_graph=true comm_hook=fp16_compress "
    "gradient_as_bucket_view=true broadcast_buffers=false comm_hook=bf16_compress set_to_none=false "
    "accumulation_steps=4 accumulation_steps=4+no_sync=false optimize_ddp=ddp_optimizer",
    "--policy zero1 ": _ZERO,
    "--policy zero2 ": f"reduce_bucket_size=2000000 {_ZERO}",
    "--policy megatron ": "bucket_size=1000000 overlap_grad_reduce=false use_distributed_optimizer=false "
    "overlap_param_gather=true+use_distributed_optimizer=true num_microbatches=4",
    "--policy fully_shard ": "units=blocks.*",
}
SYSTEMS = (
    *("--bucket-cap-mb 1", "--bucket-cap-mb 25", "--set first_bucket_mb=2 --bucket-cap-mb 8"),
    *(f"--policy {name}" for name in f"{_TEXTBOOK} zero1 zero2 megatron fully_shard".split()),
    *(f"--policy {name} --bucket-cap-mb 4" for name in ("last-hook", "last-hook-safe")),
    *(f"--iteration {number}" for number in (1, 2, 3)),
    *(
        f"{policy}--set {setting.replace('+', ' --set ')}"
        for policy, settings in _SETTINGS.items()
        for setting in settings.split()
    ),
)
PRESETS = (
    *("dgx_a100", "dgx_h100", "p4de", "p5", "gh200_slingshot", "nvl72", "dgx_v100"),
    "pcie_hosts gpus=2 gbit_per_s=10",
)
EXPORTS = ("snippet", "assignment", "transformers", "accelerate", "lightning", "ray")
_WHILE_WAITING = re.compile(r"^compiling loops|\bafter \d+ s$")  # on stderr, and only where it takes long


def said(line: str) -> tuple[str, Any]:
    """The words of a command line: what it answers, and what it says of itself."""
    told = bucketsim(*shlex.split(line))
    err = [row for row in told.err.splitlines() if not _WHILE_WAITING.search(row)]
    answer = {"code": told.code, "out": told.out.splitlines(), "err": err}
    return line, {name: value for name, value in answer.items() if value}


def document(line: str) -> tuple[str, Any]:
    """The ``--json`` document of a command line; where it refuses, why."""
    told = bucketsim(*shlex.split(line), "--json")
    return f"{line} --json", told.err if told.code else json.loads(told.out)


def words(folder: Path) -> Answers:
    """What is printed: a line or two a command."""
    yield said(f"simulate {GPT} --hardware {WIRE}")
    yield said(f"simulate {GPT} --hardware {EVERY} --policy zero2 --set reduce_bucket_size=2000000")
    yield said(f"simulate {GPT} --hardware {FOUR} --bucket-cap-mb 4 --slowest 1.2")
    yield said(f"simulate {GPT} --hardware {WIRE} --policy none")
    yield said(f"explain {GPT} --set find_unused_parameters=true")
    yield said(f"sweep {GPT} --hardware {WIRE} --caps 1,4,25 --bandwidth 0.5,2 --latency 2 --backward 0.5")
    yield said(f"tune {GPT} --hardware {WIRE} --draws 100 -o made/best.json")
    yield said(f"tune {GPT} --hardware made/none.json")
    yield said(f"simulate {GPT} --hardware {WIRE} --assignment made/best.json")
    for form in EXPORTS:
        yield said(f"export {GPT} --hardware {WIRE} --assignment made/best.json --as {form}")
    yield said("import recording traces/nccl/resnet50-h100-2.recording -o made/nccl")
    yield said(
        "tune made/nccl/workload.json --hardware traces/nccl/resnet50-h100-2/hardware.json --draws 100"
    )
    yield said(f"cluster {PRESETS[1]} hosts=4 -o made/cluster.json")
    yield said(f"tune {GPT} --hardware made/cluster.json --draws 100")
    yield said(f"scaling {GPT} pcie_hosts gpus=1 gbit_per_s=10 --hosts 1,2,4,16 --caps 1,4,25,100")
    yield said(f"ranks {GPT} --hardware {FOUR} --slow 1=1.2 --pace-jitter 0.02 --samples 40")
    yield said(f"anchor {GPT} --hardware {WIRE} --measured bucket_cap_mb=25,step_ms=900 -o made/own.json")
    yield said(f"tune {GPT} --hardware made/own.json --draws 100")
    yield said("agree traces/measured/gpt-box-2x1gbit traces/contention --markdown")
    yield said("agree traces/measured/gpt-box-4x1gbit")


def simulate(folder: Path) -> Answers:
    """Every bundled workload on every bundled machine; every system and switch on one."""
    for workload, machine in product(WORKLOADS, MACHINES):
        files = f"traces/workloads/{workload}.json --hardware traces/hardware/{machine}.json"
        for system in ("", " --policy per-parameter"):
            yield document(f"simulate {files}{system}")
        played = sim.simulate(
            sim.load_workload(f"traces/workloads/{workload}.json"),
            sim.load_hardware(f"traces/hardware/{machine}.json"),
            sim.assign(sim.load_workload(f"traces/workloads/{workload}.json"), bucket_cap_mb=4),
        )
        yield f"timeline of {workload} on {machine}, caps of 4", json.loads(sim.perfetto_json(played))
    for system in SYSTEMS:
        yield document(f"simulate {GPT} --hardware {EVERY} {system}")
        if "--iteration" not in system:
            yield document(f"explain {GPT} {system}")


def tune(folder: Path) -> Answers:
    """What is recommended, and what caps reach."""
    for workload, machine in product(WORKLOADS, ("box-2x1gbit", "box-2x4gbit", "loopback-2")):
        yield document(
            f"tune traces/workloads/{workload}.json --hardware traces/hardware/{machine}.json --draws 100"
        )
        yield document(f"sweep traces/workloads/{workload}.json --hardware traces/hardware/{machine}.json")
    yield document(f"tune {GPT} --hardware {WIRE} --draws 100 --set find_unused_parameters=true")


def clusters(folder: Path) -> Answers:
    """Every preset at 1 to 1,000 hosts, and every collective."""
    for preset, hosts in product(PRESETS, (1, 2, 4, 16, 1000)):
        yield document(f"cluster {preset} hosts={hosts}")
    yield document("cluster hgx_ethernet gbit_per_s=100 hosts=4")
    for gpus in (2, 4, 8):
        yield document(f"cluster pcie_box gpus={gpus}")


def jobs(folder: Path) -> Answers:
    """How a job scales and what ranks cost; a job's own step; an estimate without a device."""
    for preset in ("dgx_h100", "pcie_hosts gpus=2"):
        yield document(f"scaling {GPT} {preset} --hosts 1,2,4,16,1000 --caps 1,4,25,100")
    yield document(f"ranks {GPT} --hardware {FOUR} --slow 1=1.2 --pace-jitter 0.02 --caps 4,25 --samples 40")
    yield document(f"anchor {GPT} --hardware {WIRE} --measured bucket_cap_mb=25,step_ms=900 -o made/own.json")
    yield document(f"tune {GPT} --hardware made/own.json --draws 100")
    model = "sim.recorder.models:gpt layers=2 width=64 heads=2 vocab=128 context=32"
    yield document(f"estimate {model} --backward-ms 20 --forward-ms 10 -o made/estimated.json")
    yield document(f"tune made/estimated.json --hardware {WIRE} --draws 100")


def records(folder: Path) -> Answers:
    """All bundled records, scored by today's model."""
    for record in sim.find_records("traces"):
        yield document(f"agree {record}")


def imports(folder: Path) -> Answers:
    """Built traces in several dialects, link tables and recordings: every noun that is made of them."""
    seen: Counter[str] = Counter()
    for case in corpus():
        if case.is_public:
            continue
        seen[case.form] += 1
        name = f"{case.form}-{seen[case.form]}"
        given = folder / name
        given.mkdir()
        paths = " ".join(str(path.relative_to(folder)) for path in case.write(given))
        yield document(f"import auto {paths} -o made/{name}")
        made = sorted((folder / "made" / name).glob("*.json"))
        for path in made:
            yield f"made/{name}/{path.name}", json.loads(path.read_text())
        if {"workload.json", "hardware.json", "measurement-00-as-run.json"} <= {path.name for path in made}:
            yield document(f"agree made/{name}")


def pages(folder: Path) -> Answers:
    """Of each page that computes its cards, sentences and tables, on a small made-up world."""
    traces = make_traces(folder / "world")
    for name in ("main", "compare", "validate", "cluster"):
        with mock.patch.object(sys, "argv", ["main.py", "--traces", str(traces)]):
            yield "Tune" if name == "main" else name.capitalize(), _seen(a_page(name).run())


def _seen(page: AppTest) -> dict[str, Any]:
    """All words but styles and the line of versions; rows of tables; which figures there are."""
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "exception")
    told = {kind: [str(getattr(one, "value", "")) for one in page.get(kind)] for kind in kinds}
    seen: dict[str, Any] = {
        kind: [text for text in texts if not text.lstrip().startswith(("<", "bucketsim "))]
        for kind, texts in told.items()
    }
    seen["cards"] = {card.label: [card.value, card.delta] for card in page.metric}
    seen["tables"] = [table.value.astype(str).values.tolist() for table in page.dataframe]
    seen["figures"] = list(charts(page))
    return {kind: found for kind, found in seen.items() if found}


SUBJECTS: dict[str, Callable[[Path], Answers]] = {
    one.__name__: one for one in (words, simulate, clusters, imports, pages, tune, jobs, records)
}
SLOW = {"pages", "tune", "jobs", "records"}
