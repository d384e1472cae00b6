"""Parts of an import that cannot be true together are named with their figures; sound ones are not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from sim.importer.joined_hardware import join_hardware
from sim.importer.kineto.contradictions import contradictions
from sim.importer.kineto.interference import Interference
from sim.importer.kineto.rank_trace import read_rank
from sim.importer.kineto.slowed import CommSlowdown
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.imported import no_progress
from tests.effort import tries
from tests.importer.built_traces import Dialect, build, write
from tests.importer.test_kineto_built import built, imported
from tests.importer.test_kineto_steps import STEP


@settings(max_examples=tries(40), deadline=None)
@given(built())
def test_a_sound_trace_contradicts_nothing(case) -> None:
    """Whatever is built by the rules can be: buckets of any sizes and times, but a link that is no link."""
    job, dialect = case
    found, _ = imported(job, dialect)
    assert not any("cannot be" in line and "is no transfer alone" not in line for line in found.assumed)


@pytest.mark.parametrize(("slower", "said"), [(0, False), (100_000, True)])
def test_a_backward_without_communication_is_no_longer_than_beside_it(
    slower: int, said: bool, tmp_path: Path
) -> None:
    """Under ``no_sync`` in the same step: 1.8 ms, or held up by something else."""
    job = replace(STEP, micro_batches=2, offsets_ns=(0,), copy_in_ns=0, copy_out_ns=0)
    text = build(job, Dialect())[0][0]
    if slower:
        events = json.loads(text)["traceEvents"]
        kernels = [one for one in events if one["name"] == "volta_sgemm_backward"]
        for place, one in enumerate(kernels):
            if place % 12 == 5:  # the last of a first micro-batch
                one["dur"] += slower / 1000
        text = json.dumps({"traceEvents": events})
    (path,) = write([text], tmp_path, Dialect())
    rank = read_rank(path, no_progress)
    assert [step.plain_busy_ns for step in rank.steps] == [(1_800_000 + slower,)] * 4
    lines = contradictions(rank.steps, rank.steps, None, None, ())
    assert lines == (
        [
            "WARNING: cannot be: backward computed for 1.90 ms where nothing was reduced (4 backwards) and "
            "1.80 ms beside all-reduces (4 backwards): the former were slowed by something else"
        ]
        if said
        else []
    )


def test_nothing_is_faster_for_what_runs_beside_it(tmp_path: Path) -> None:
    (path, _) = write(build(STEP, Dialect())[0], tmp_path, Dialect())
    steps = read_rank(path, no_progress).steps

    def told(compute: float, communication: float, last_ns: int) -> list[str]:
        curve = tuple(
            CurvePoint(num_bytes=size << 20, duration_ns=time) for size, time in ((1, 10**6), (2, last_ns))
        )
        quartiles = (compute,) * 3
        return contradictions(
            steps,
            steps,
            Interference(ratio=compute, kernels=30, quartiles=quartiles),
            CommSlowdown(ratio=communication, beside=5, after=5, sizes=1, quartiles=quartiles),
            curve,
        )

    assert told(1.2, 1.1, 2 * 10**6) == told(0.97, 0.97, 10**6 - 9_000) == []
    assert "computation took 0.80 times as long" in told(0.8, 1.1, 10**6)[0]
    assert "all-reduces took 0.85 times as long" in told(1.1, 0.85, 10**6)[0]
    assert "1 MiB took 1.00 ms and 2 MiB 0.90 ms" in told(1.1, 1.1, 9 * 10**5)[0]


@pytest.mark.parametrize("share", [0.5, 0.95, 1.5])
def test_a_step_does_not_carry_faster_than_the_link_does_alone(share: float) -> None:
    def wire(factor: float, source: str) -> Hardware:
        points = ((1 << 20, 10**6), (1 << 24, 10**7))
        curve = tuple(CurvePoint(num_bytes=size, duration_ns=round(factor * time)) for size, time in points)
        return Hardware(name=source, world_size=4, all_reduce=curve, provenance={"source": source})

    _, said, _ = join_hardware([], [wire(1.0, "bucketsim import nccl-tests")], [wire(share, "trace")], 4)
    doubts = [line for line in said if "cannot be of one link" in line]
    assert len(doubts) == (share < 0.9)
    assert not doubts or "2 of 2 sizes took less time in the step" in doubts[0]
