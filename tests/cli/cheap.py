"""Every command on small files, in less than a second each: what real ranks would measure is at hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
import sim.validator.calibrate
import sim.validator.replay
from sim.formats import record_files as records
from sim.nouns.measurement import MeasuredIteration
from tests.handmade import handmade, measurement, wired
from tests.importer.link_texts import Line, today
from tests.saving import save_measurement

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"
MIB, MS = 1 << 20, 1_000_000
# 1 ms a MiB: 10 ms of all-reduce beside 20 ms of backward, then 2 ms that nothing hides.
PAIR = handmade([30 * MS, 10 * MS], [2 * MIB, 10 * MIB], name="pair", forward_ns=50 * MS)
LINK = wired({0: 0, MIB: MS}, name="link", world_size=4)
GPT = ("sim.recorder.models:gpt", "layers=1", "width=16", "heads=2", "vocab=32", "context=8")


def save_measurements(folder: Path) -> None:
    """Two candidates of the example, each 10 % slower than predicted."""
    workload, hardware = sim.load_workload(W), sim.load_hardware(H)
    for number, cap in enumerate((4, 25)):
        assignment = sim.assign(workload, bucket_cap_mb=cap)
        told = sim.summarize(sim.simulate(workload, hardware, assignment))
        iteration = MeasuredIteration(
            step_ns=round(told.step_ns * 1.1),
            backward_end_ns=told.backward_end_ns,
            sync_end_ns=told.sync_end_ns,
        )
        plain = {"plain_backward_ns": workload.backward_ns, "plain_step_ns": workload.backward_ns}
        made = measurement(f"cap {cap}", assignment, [iteration] * 3, **plain)
        save_measurement(folder, number, made)


def save_inputs(folder: Path) -> None:
    """A cluster, a log of nccl-tests and a record."""
    sizes = ((1 << 20, 100.0), (4 << 20, 280.0), (16 << 20, 1e3))
    lines = [Line(num_bytes=size, in_us=us, out_us=us) for size, us in sizes]
    (folder / "log.txt").write_text("\n".join(today(lines, 4)) + "\n")
    (folder / "a.json").write_text(sim.to_text(sim.assign(sim.load_workload(W))))
    save_measurements(records.start_record(folder / "record", sim.load_workload(W), sim.load_hardware(H)))


def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts ranks finds what they would have measured."""
    read = sim.load_hardware(H)
    hardware = replace(read, name="a wire of two", provenance={**read.provenance, "doubtful": []})

    def replay(job: object, place: object, folder: Path, **_: Any) -> None:
        save_measurements(folder)

    monkeypatch.setattr(sim.validator.calibrate, "calibrate", lambda *_, **__: hardware)
    monkeypatch.setattr(sim.validator.replay, "replay", replay)
    monkeypatch.setattr(sim.validator.replay, "gather_record", lambda _: None)


def _args(words: tuple[str, ...]) -> list[str]:
    return [part for word in words for part in ("--arg", word)]


def commands(at: Path) -> dict[str, tuple[object, ...]]:
    """Each command that has an answer, with arguments; files are those of ``save_inputs`` in ``at``."""
    model, hardware = (W, "--hardware", H), ("--hardware", H)
    return {
        "record": ("record", GPT[0], *_args(GPT[1:]), "--repeats", 1, "--warmup", 1),
        "estimate": ("estimate", *GPT, "--backward-ms", 5),
        "calibrate": ("calibrate",),
        "import": ("import", "nccl-tests", at / "log.txt", "--name", "my wire"),
        "simulate": ("simulate", *model, "--set", "accumulation_steps=2"),
        "explain": ("explain", W),
        "sweep": ("sweep", *model, "--caps", "4,8"),
        "tune": ("tune", *model, "--draws", 1),
        "export": ("export", W, "--assignment", at / "a.json"),
        "validate": ("validate", *model, "--rounds", 1, "--caps", "4"),
        "agree": ("agree", at / "record"),
        "gather": ("gather", at / "record"),
        "cluster": ("cluster", "pcie_box", "gpus=2"),
        "scaling": ("scaling", W, "pcie_box", "--world-size", "1,2", "--caps", "4"),
        "ranks": ("ranks", *model, "--slow", "1=1.5", "--samples", 20),
        "anchor": ("anchor", W, *hardware, "--measured", "bucket_cap_mb=4,step_ms=75"),
        "doctor": ("doctor",),
    }
