"""Many visitors at once on one server, each with files of its own: all are answered, none sees another's.

The server remembers results for all sessions together, in caches of a fixed number of entries, and a
session's uploads for as long as it is open: so memory grows with the first visitors and then no more.
"""

import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser import harness
from tests.app.browser.client import Client
from tests.app.conftest import make_hardware, make_workload
from tests.bench.machines import model
from tests.effort import PATIENCE_S

pytestmark = pytest.mark.browser

MIB = 1 << 20
CAPS = (2.0, 7.0, 1.0, 12.0, 3.0)
# Per open session: its pages' messages, its uploads (below 1 MiB here) and its share of the caches.
SESSION_BYTES = 24 * MIB
IMPORTED_BYTES = 200 * MIB  # numba, pandas and the searches as machine code, once


@dataclass
class Visitor:
    """One user: a workload and a machine of a name and of numbers of its own."""

    number: int
    answers: dict[float | None, str] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"upload": [], "move": []})
    seen: str = ""
    error: BaseException | None = None

    @property
    def mark(self) -> str:
        return f"visitor-{self.number:02d}"

    @property
    def workload(self) -> Workload:
        """Every third uploads a model of 161 tensors, the others one of 20 layers, each of its own pace."""
        made = model(161, "affine") if self.number % 3 == 0 else make_workload()
        factor = 1 + self.number / 50
        return sim.scale(replace(made, name=f"{self.mark} job"), make_hardware(), backward=factor)[0]

    @property
    def hardware(self) -> Hardware:
        return make_hardware(f"{self.mark} machine")

    def visit(self, port: int, start: threading.Barrier) -> None:
        try:
            start.wait()
            with Client(port, "start=upload") as client:
                client.load()
                documents = {"workload.json": self.workload, "hardware.json": self.hardware}
                files = {name: sim.to_text(made).encode() for name, made in documents.items()}
                self.seconds["upload"].append(client.upload("Files", files))
                self.take(client, None)
                for cap in CAPS:
                    self.seconds["move"].append(client.turn("Cap, MiB", cap))
                    self.take(client, cap)
        except BaseException as error:  # noqa: BLE001 - told by the test, in the main thread
            self.error = error

    def take(self, client: Client, cap: float | None) -> None:
        self.answers[cap] = client.metrics().get("Step time", f"nothing: {client.errors()}")
        self.seen += client.everything()

    def expected(self) -> dict[float | None, str]:
        workload, hardware = self.workload, self.hardware
        return {
            cap: format_ms(
                sim.summarize(
                    sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=cap))
                ).step_ns
            )
            for cap in (None, *CAPS)
        }


def visits(count: int, port: int) -> list[Visitor]:
    """All begin at the same moment; returns when the last has left."""
    visitors = [Visitor(number) for number in range(count)]
    start = threading.Barrier(count)
    threads = [threading.Thread(target=one.visit, args=(port, start)) for one in visitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    return visitors


def told(visitors: list[Visitor]) -> str:
    lines = []
    for kind in ("upload", "move"):
        seconds = [value for one in visitors for value in one.seconds[kind]]
        p50, p95 = np.percentile(seconds, [50, 95])
        lines.append(f"{kind}: p50 {p50:.2f} s, p95 {p95:.2f} s, {len(seconds)} of them")
    return "; ".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 20], ids=lambda count: f"{count} visitors")
def test_visitors_at_once_are_all_answered_and_see_their_own(
    count: int, traces: Path, tmp_path: Path
) -> None:
    with harness.serve(tmp_path, traces) as site:
        with Client(site.port, "start=upload") as first:
            first.load()  # a page that computes nothing: what is imported late, all visitors import at once
        start = site.memory_bytes()
        visitors = visits(count, site.port)
        peak, after = site.memory_bytes("VmHWM"), site.memory_bytes()
        assert site.process.poll() is None, site.log.read_text()
        said = site.log.read_text()
    assert [one.error for one in visitors] == [None] * count
    memory = ", ".join(f"{value / MIB:.0f} MiB" for value in (start, peak, after))
    print(f"{count} visitors: {told(visitors)}; memory at start, peak, after: {memory}")
    for one in visitors:
        assert one.answers == one.expected()
        assert set(re.findall(r"visitor-\d\d", one.seen)) == {one.mark}
    assert len({one.answers[None] for one in visitors}) > count // 2, "numbers that differ between visitors"
    assert "Traceback" not in said, said
    assert peak - start < IMPORTED_BYTES + 100 * MIB + count * SESSION_BYTES
