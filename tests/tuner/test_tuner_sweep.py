"""Sweeps: each row is a simulation, whatever computes it; axes that are not legal."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError, MachineError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner import sweep as sweeping
from sim.tuner.sweep import WHAT_IFS, SweepRow, process_pool, spread
from tests.effort import PATIENCE_S, tries
from tests.handmade import handmade
from tests.tuner.cases import Case, anything, link, resnet50

SMALL = handmade([0], 4, backward_ns=9)
(ONE,) = SMALL.gradients

# Rows.

some_factors = st.lists(st.sampled_from([1.0, 0.5, 2.0, 7.3, 1e-3]), min_size=1, max_size=2, unique=True)
some_ranks = st.none() | st.lists(st.sampled_from([2, 3, 8, 64]), min_size=1, max_size=2, unique=True)
some_dtypes = st.none() | st.lists(
    st.sampled_from([None, "float32", "bfloat16", "float64"]), min_size=1, max_size=2, unique=True
)


def check_row(case: Case, row: SweepRow) -> None:
    """By the public functions, one candidate alone."""
    what_ifs: dict[str, Any] = {name: getattr(row, name) for name in WHAT_IFS}
    workload, hardware = sim.scale(*case, **what_ifs)
    assignment = sim.assign(workload, bucket_cap_mb=row.bucket_cap_mb)
    report = sim.summarize(sim.simulate(workload, hardware, assignment, "analytic"))
    assert row.sync_end_ns == report.sync_end_ns
    assert row.step_ns == report.step_ns
    assert row.exposed_comm_ns == report.exposed_comm_ns
    assert row.overlap_ratio == report.overlap_ratio
    assert row.num_buckets == len(assignment.bucket_indices)
    assert row.largest_bucket_bytes == max(assignment.bucket_bytes or ())


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Case, dict[str, Any]]:
    """A job and the axes of a sweep."""
    workload, hardware = draw(anything(max_gradients=8))
    axes = {
        "caps_mb": draw(st.lists(st.floats(0, 50), max_size=5, unique=True)),
        **{name: draw(some_factors) for name in ("bandwidth", "latency", "backward")},
        "world_size": draw(some_ranks),
        "precision": draw(some_dtypes),
        "engine": draw(st.sampled_from(("simpy", "analytic"))),
    }
    return (workload, replace(hardware, world_size=max(2, hardware.world_size))), axes


@settings(max_examples=tries(100))
@given(sweeps())
def test_rows_are_the_product_of_all_axes(sweep: tuple[Case, dict[str, Any]]) -> None:
    case, axes = sweep
    rows = sim.sweep(*case, **axes)
    asked = product(
        axes["world_size"] or [case[1].world_size],
        axes["precision"] or [None],
        *(axes[name] for name in ("bandwidth", "latency", "backward")),
        [None, *axes["caps_mb"]],
    )
    assert [tuple(getattr(row, name) for name in (*WHAT_IFS, "bucket_cap_mb")) for row in rows] == [*asked]
    for row in rows:
        check_row(case, row)


def test_rows_are_tidy() -> None:
    """Flat, plain, and the same in JSON, CSV and pandas, even where numpy made the axes."""
    rows = sim.sweep(
        resnet50(),
        link(4),
        np.array([1.0, 25.0], dtype=np.float32),
        bandwidth=np.linspace(1, 2, 2),
        world_size=np.array([2, 4]),
        precision=[None, "bfloat16"],
    )
    assert json.loads(json.dumps([asdict(row) for row in rows])) == [asdict(row) for row in rows]
    frame = pd.read_csv(io.StringIO(sim.sweep_csv(rows)))
    assert list(frame.columns) == [field.name for field in fields(SweepRow)]
    assert len(frame) == 3 * 2 * 2 * 2
    assert not frame.duplicated([*WHAT_IFS, "bucket_cap_mb"]).any()


def test_what_cuts_alike_is_simulated_once_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = sweeping.simulate

    def counting(workload: Workload, hardware: Hardware, *further: Any) -> Any:
        calls.append(hardware.all_reduce)
        return real(workload, hardware, *further)

    monkeypatch.setattr(sweeping, "simulate", counting)
    done: list[tuple[int, int]] = []
    caps = [24.0, 24.0001, 1000.0, 2000.0, 3000.0]
    rows = sim.sweep(
        resnet50(), link(4), caps, "simpy", bandwidth=[1, 2, 4], progress=lambda *args: done.append(args)
    )
    layouts = {sim.assign(resnet50(), bucket_cap_mb=cap).bucket_indices for cap in (None, *caps)}
    assert len(rows) == 18
    assert len(calls) == 3 * len(layouts) < 18
    assert done == [(number, len(rows)) for number in range(1, len(rows) + 1)]


# Axes that are not legal.


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"bandwidth": []}, "bandwidth: an empty axis is not legal"),
        ({"bandwidth": [1, 0]}, "bandwidth: 0 is not legal; give a number >= 1e-06, at most 1000000"),
        ({"backward": [float("nan")]}, "backward: nan is not legal"),
        ({"latency": ["2"]}, "latency: '2' is not legal"),
        ({"bandwidth": 2.0}, r"bandwidth: 2.0 is not legal; give a sequence of values, such as \[2.0\]"),
        ({"precision": ["bf16"]}, "precision: 'bf16' is not legal; give one of float64, float32"),
        ({"world_size": [2, 1]}, "world_size: 1 is not legal; give an integer >= 2"),
        ({"caps_mb": [-1.0]}, "bucket cap: -1.0 MiB is not legal"),
        ({"caps_mb": ["25"]}, "caps_mb: '25' is not legal; give numbers of MiB"),
        ({"caps_mb": [1.0], "max_rows": 1}, "2 rows are more than 1; give fewer, or max_rows=2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_axes_that_are_not_legal_are_named(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.sweep(SMALL, link(4), **axes)


# Executors.


@settings(max_examples=tries(15, 4), deadline=None)
@given(sweeps())
def test_every_executor_gives_the_same_rows(executor: Executor, sweep: tuple[Case, dict[str, Any]]) -> None:
    """In order and equal to the serial ones."""
    case, axes = sweep
    done: list[int] = []
    rows = sim.sweep(*case, **axes, executor=executor, progress=lambda now, total: done.append(total - now))
    assert rows == sim.sweep(*case, **axes)
    assert done == list(reversed(range(len(rows))))


def fails(task: int) -> int:
    if task == 2:
        raise InputError("task: 2 is not legal")
    return os._exit(3) if task == 3 else task


def test_an_error_comes_back_as_it_is(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"^task: 2 is not legal$"):
        list(spread(fails, [1, 2, 1], executor))


def test_a_worker_that_dies_is_an_error_of_ours() -> None:
    with process_pool(1) as pool, pytest.raises(MachineError, match="a worker process died"):
        list(spread(fails, [1, 3], pool))


def test_ctrl_c_is_for_who_waits_and_for_no_worker_however_early() -> None:
    """One that came while a worker started broke the pool, and the parent waited for ever."""
    with process_pool(1) as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


SCRIPT = """
import sim, sys
from sim.tuner.sweep import process_pool

if __name__ == "__main__":
    bandwidth = [1 + k / 1000 for k in range(1000)]
    workload, hardware = sim.load_workload(sys.argv[1]), sim.load_hardware(sys.argv[2])
    with process_pool(1) as pool:
        sim.sweep(workload, hardware, progress=lambda *_: print("going", flush=True), executor=pool,
                  bandwidth=bandwidth)
"""


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """As a terminal sends it, to all processes of the group."""
    script = tmp_path / "sweeps.py"
    script.write_text(SCRIPT)
    inputs = {tmp_path / "w.json": resnet50(), tmp_path / "h.json": link(4)}
    for path, noun in inputs.items():
        path.write_text(sim.to_text(noun))
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.Popen([sys.executable, script, *inputs], **pipes, start_new_session=True, env=env)
    try:
        assert run.stdout.readline() == "going\n"
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE_S)
        assert "KeyboardInterrupt" in said
        assert run.returncode != 0
        deadline = time.monotonic() + PATIENCE_S
        with suppress(ProcessLookupError):  # once none of the group is left
            while time.monotonic() < deadline:
                os.killpg(run.pid, 0)
                time.sleep(0.1)
            pytest.fail("processes are left")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
