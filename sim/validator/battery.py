"""Everything that one GPU can tell, in one command: ``python -m sim.validator.battery --out DIR``.

Needs torch, numpy and the standard library; no network. Records models, measures what copies and launches
cost, replays assignments over emulated links at several speeds and with several real ranks: gloo ranks that
share one GPU, NCCL ranks where there are several. What lies in DIR afterwards is raw: ``bucketsim gather
DIR -o RECORDS`` turns it into records, on any machine. Every section has a share of the time; what was
measured when it is spent is kept.

How much a resident collective slows compute down is not measured with one GPU: a kernel that only spins
takes neither memory bandwidth nor more than one multiprocessor, as a real collective would.
"""

import argparse
import gc
import io
import json
import logging
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sim.errors import InputError, MachineError
from sim.formats.outputs import make_directory, write_atomically
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.recorder import load_factory
from sim.recorder import record as record_step
from sim.recorder.clocks import find_device
from sim.recorder.surroundings import surroundings
from sim.validator.battery_plan import (
    Plan,
    battery_candidates,
    emulated_hardware,
    gpu_plan,
    quick_plan,
)
from sim.validator.calibrate import default_sizes
from sim.validator.candidates.carriers import Carrier, measured_hardware, probe_job, with_local_costs
from sim.validator.candidates.replay_jobs import MIN_WARMUP, paced_job
from sim.validator.candidates.replayable import check_replayable
from sim.validator.hosts.launch import Place, run_ranks
from sim.validator.ranks.probes.local_probes import probe_machine
from sim.validator.ranks.replaying import replay

SUMMARY = "battery.json"
_SCHEMA_VERSION = 1
_RANKS_TIMEOUT_S = 90.0
_GRACE_S = 45.0
_SHARES = {"workloads": 0.2, "emulated": 0.55, "ranks-gloo": 0.15, "ranks-nccl": 0.1}

_log = logging.getLogger("battery")


class _OutOfTime(Exception):
    """A section's share of the time is spent."""


@dataclass(slots=True)
class _Rank:
    """The one rank of an emulated link, in this process; stops the job when ``until`` has come."""

    job: dict[str, Any]
    until: float
    rank: int = 0
    world_size: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, event: str, **content: Any) -> None:
        """Keep one event."""
        self.events.append({"event": event, **content})
        if time.monotonic() > self.until:
            raise _OutOfTime


class Battery:
    """Runs the sections of a plan and writes each one's raw output when it is over.

    Args:
        out: directory of the output; made if it is not there.
        device: ``cpu`` or ``cuda``.
        plan: what is done.
        budget_s: seconds for everything.
    """

    def __init__(self, out: Path, device: str, plan: Plan, budget_s: float) -> None:
        self._out = out
        self._place = find_device(device)
        self._device = device
        self._plan = plan
        self._budget_s = budget_s
        self._start = time.monotonic()
        self._end = self._start
        self._workloads: dict[str, Workload] = {}
        self._summary: dict[str, Any] = {
            "schema_version": _SCHEMA_VERSION,
            "kind": "battery",
            "environment": surroundings(self._place),
            "sections": {},
            "not_measured": "how much a resident collective slows compute: an emulated one takes nothing",
        }
        make_directory(out)
        if (out / SUMMARY).exists():
            raise InputError(f"{out}: holds a battery's output already; give a new or empty directory")

    def run(self) -> None:
        """Run all sections; if one fails, its error is written down, and the others still run."""
        self._write_summary()
        gpus = _device_count(self._place)
        self._section("workloads", self._record)
        with _alone():
            self._section("emulated", self._emulate)
        self._section("ranks-gloo", lambda until: self._ranks("gloo", 2, until))
        if gpus > 1:
            self._section("ranks-nccl", lambda until: self._ranks("nccl", gpus, until))

    def _section(self, name: str, work: Callable[[float], Iterator[tuple[str, dict[str, str]]]]) -> None:
        """Write the (folder, {file: text}) that ``work`` yields, until a time given, into one archive."""
        begun = time.monotonic()
        self._end = max(self._end, begun) + _SHARES[name] * self._budget_s
        folders: list[str] = []
        failures: list[str] = []
        with tarfile.open(self._out / f"{name}.tar.gz", "w:gz") as archive:
            try:
                for folder, files in work(self._end):
                    _log.info("%s: %s", name, folder)
                    folders.append(folder)
                    for file, text in files.items():
                        _add(archive, f"{folder}/{file}", text)
            except Exception as error:  # noqa: BLE001  (whatever a section dies of, the others run)
                _log.exception("%s", name)
                failures.append(f"{type(error).__name__}: {error}")
        self._summary["sections"][name] = {
            "wall_s": round(time.monotonic() - begun, 1),
            "folders": folders,
            "failures": failures,
        }
        self._write_summary()

    def _write_summary(self) -> None:
        write_atomically(self._out / SUMMARY, json.dumps(self._summary, indent=1) + "\n")

    def _record(self, until: float) -> Iterator[tuple[str, dict[str, str]]]:
        recipes = {one.name: one for one in (self._plan.shared, *self._plan.recipes)}
        for made in recipes.values():
            if time.monotonic() > until:
                return
            spec = f"sim.recorder.models:{made.factory}"
            workload = record_step(
                load_factory(spec, arguments=made.arguments),
                name=made.name,
                device=self._device,
                dtype=made.dtype,
                repeats=self._plan.record_repeats,
                factory_spec=spec,
                arguments=made.arguments,
            )
            self._workloads[made.name] = workload
            self._free()
            yield made.name, {"workload.json": _document("workload", workload)}

    def _emulate(self, until: float) -> Iterator[tuple[str, dict[str, str]]]:
        names = [one.name for one in self._plan.recipes if one.name in self._workloads]
        local: dict[str, dict[str, Any]] = {}
        todo = [(slowness, name) for slowness in self._plan.slowness for name in names]
        for number, (slowness, name) in enumerate(todo):
            now = time.monotonic()
            if now > until:
                return
            share = now + (until - now) / (len(todo) - number)
            workload = self._workloads[name]
            link = emulated_hardware(workload, slowness)
            carrier = Carrier(device=self._device, emulated=link)
            if name not in local:
                probe = _Rank(probe_job(workload, carrier, repeats=self._plan.probe_repeats), share)
                self._in_process(probe_machine, probe)
                if not probe.events:
                    continue
                local[name] = probe.events[-1]
            started = {
                "event": "started",
                "launcher": "the battery",
                "hosts": [_device_name(self._place)],
                "environment": self._summary["environment"],
            }
            rank = _Rank(self._job(workload, carrier), share, events=[started])
            if self._in_process(replay, rank):
                rank.events.append({"event": "finished"})
            yield (
                f"{name}-emulated-{slowness:g}",
                self._raw(workload, with_local_costs(link, local[name]), rank.job, rank.events, 1),
            )

    def _ranks(self, backend: str, count: int, until: float) -> Iterator[tuple[str, dict[str, str]]]:
        if self._plan.shared.name not in self._workloads:
            raise InputError(f"{self._plan.shared.name}: was not recorded, so ranks have nothing to replay")
        workload = self._workloads[self._plan.shared.name]
        carrier = Carrier(device=self._device, backend=backend)
        place = Place(ranks=count)
        sizes = default_sizes(self._plan.largest)[::2]
        probed: list[dict[str, Any]] = []
        run_ranks(
            place,
            probe_job(workload, carrier, sizes, self._plan.probe_repeats),
            probed.append,
            _RANKS_TIMEOUT_S,
        )
        found = next(event for event in probed if event["event"] == "local")
        name = f"{count} ranks over {backend} on {_device_name(self._place)} x {_device_count(self._place)}"
        hardware = measured_hardware(name, count, backend, found)
        events: list[dict[str, Any]] = []

        def take(event: dict[str, Any]) -> None:
            events.append(event)
            if time.monotonic() > until:
                raise _OutOfTime

        job = self._job(workload, carrier)
        try:
            run_ranks(place, job, take, _RANKS_TIMEOUT_S)
        except _OutOfTime:
            _log.info("%s: out of time after %d events", name, len(events))
        yield f"{workload.name}-{backend}-{count}", self._raw(workload, hardware, job, events, count)

    def _job(self, workload: Workload, carrier: Carrier) -> dict[str, Any]:
        candidates = battery_candidates(workload)
        check_replayable(workload, candidates, "paced")
        return paced_job(workload, candidates, self._plan.rounds, MIN_WARMUP[self._device], 0, carrier)

    def _raw(
        self,
        workload: Workload,
        hardware: Hardware,
        job: dict[str, Any],
        events: list[dict[str, Any]],
        world_size: int,
    ) -> dict[str, str]:
        """The files that ``sim.validator.gathering.gather_record`` reads."""
        assignments = {
            f"assignment-{number:02d}.json": _document("assignment", candidate.assignment)
            for number, candidate in enumerate(battery_candidates(workload))
        }
        return {
            "workload.json": _document("workload", workload),
            "hardware.json": _document("hardware", hardware),
            "job.json": json.dumps({**job, "world_size": world_size}),
            "events.jsonl": "".join(json.dumps(event) + "\n" for event in events),
            **assignments,
        }

    def _in_process(self, task: Callable[[Any], None], rank: _Rank) -> bool:
        """Run a task of the worker here; False where the time was spent before it ended."""
        try:
            task(rank)
        except _OutOfTime:
            return False
        finally:
            gc.enable()
            self._free()
        return True

    def _free(self) -> None:
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def _alone() -> Iterator[None]:
    """A process group of this process alone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        gc.collect()
        dist.destroy_process_group()


def _document(kind: str, noun: Any) -> str:
    """A noun as a JSON document, which is not checked here."""
    return json.dumps({"schema_version": _SCHEMA_VERSION, "kind": kind, **asdict(noun)})


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"


def _device_count(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 1


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m sim.validator.battery", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the raw output")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one small model, once through everything")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for everything")
    given = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    last = threading.Timer(given.budget + _GRACE_S, os._exit, (1,))
    last.daemon = True  # a GPU that hangs must not hold what is written already
    last.start()
    try:
        Battery(given.out, given.device, quick_plan() if given.quick else gpu_plan(), given.budget).run()
    except (InputError, MachineError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    last.cancel()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of gloo and of links must not outlive the interpreter's end
