"""Many visitors without windows on one dashboard: ``python -m tests.chaos.light_visitors --minutes 30``.

As in ``visitors``, but they speak streamlit's own websocket and draw nothing, so that they upload and move
as often as the server answers, and what it keeps is full within minutes, on a busy machine too.
"""

import random
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import sim
from sim.units import format_ms
from tests.app.browser import harness
from tests.app.browser.client import Client
from tests.app.conftest import make_hardware, make_traces, make_workload
from tests.chaos.visitors import Told, command
from tests.effort import PATIENCE_S

_CAPS_MB = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 16.0, 20.0, 32.0, 40.0, 64.0)
_EVERY_S = 5


class LightVisitor(threading.Thread):
    """Comes, uploads a job and a machine of its own, turns the cap, goes, and comes again."""

    def __init__(self, number: int, seed: int, port: int, left: threading.Event) -> None:
        super().__init__(daemon=True)
        self._draw = random.Random(f"{seed} {number}")
        self._mark, self._port, self._left = f"visitor-{number:02d}", port, left
        self.did: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._left.is_set():
                self._visit()
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            self.error = error
            self._left.set()

    def _visit(self) -> None:
        hardware = make_hardware(f"{self._mark} machine")
        workload = replace(make_workload(), name=f"{self._mark} job")
        workload, _ = sim.scale(workload, hardware, backward=self._draw.uniform(0.5, 3))
        with Client(self._port, "start=upload") as client:
            client.load()
            files = {"workload.json": workload, "hardware.json": hardware}
            client.upload("Files", {name: sim.to_text(noun).encode() for name, noun in files.items()})
            self.did["uploads"] += 1
            for cap in (None, *self._draw.sample(_CAPS_MB, k=self._draw.randint(6, 12))):
                if self._left.is_set():
                    return
                if cap is not None:
                    client.turn("Cap, MiB", cap)
                    self.did["moves"] += 1
                played = sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=cap))
                right, shown = format_ms(sim.summarize(played).step_ns), client.metrics().get("Step time")
                assert shown == right, f"{self._mark}, cap {cap}: {shown}, not {right}: {client.errors()}"
                assert set(re.findall(r"visitor-\d\d", client.everything())) == {self._mark}


def soak(minutes: float, count: int, seed: int, *, is_printed: bool = False) -> Told:
    """``count`` light visitors for ``minutes``; raises what one of them met."""
    told, left = Told(), threading.Event()
    with TemporaryDirectory(prefix="visitors-") as folder:
        traces = make_traces(Path(folder) / "traces")
        with harness.serve(Path(folder), traces) as site:
            visitors = [LightVisitor(number, seed, site.port, left) for number in range(count)]
            for each in visitors:
                each.start()
            began = time.monotonic()
            while (now := (time.monotonic() - began) / 60) < minutes and not left.is_set():
                told.did = sum((each.did for each in visitors), Counter())
                told.see(now, site.memory_bytes(), is_printed=is_printed)
                left.wait(_EVERY_S)
            left.set()
            for each in visitors:
                each.join(timeout=PATIENCE_S)
            assert site.process.poll() is None
            said = site.log.read_text()
    for error in (each.error for each in visitors):
        if error is not None:
            raise error
    assert "Traceback" not in said, said
    return told


if __name__ == "__main__":
    command(soak, __doc__)
