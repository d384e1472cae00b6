"""Overlap as HolisticTraceAnalysis's own ``get_comm_comp_overlap`` has it, on real and on built traces.

Its percentages are rounded to 0.01; it is told to keep nanoseconds and the last step, which it drops else.
"""

import importlib.util
import os
from functools import partialmethod
from pathlib import Path

import pytest

from sim.importer.imported import ImportOptions
from tests.effort import DATA, needs_data
from tests.importer.built_traces import Dialect, Job, build, read_kineto, write

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")
GPU_TRACES = {
    "A100 x 2": {0: "hta/hta_nccl_data_a100x2.json.gz"},
    "A100 x 8": {3: "hta/hta_trace_diff_control_a100x8_r3.json.gz"},
    "V100 x 2": {1: "hta/hta_df_index_resolver_v100x2_r1.json.gz"},
    "V100 x 8": {rank: f"param/param_dlrm_v100x8_r{rank}.pt.trace.json.gz" for rank in range(8)},
}


@pytest.fixture
def hta(monkeypatch: pytest.MonkeyPatch) -> None:
    """HolisticTraceAnalysis; skips without it, or fails where it is demanded."""
    if importlib.util.find_spec("hta") is None:
        missing = "no HolisticTraceAnalysis: pip install --no-deps HolisticTraceAnalysis"
        if os.environ.get("BUCKETSIM_REQUIRE_HTA") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    from hta.common.trace import Trace

    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    # Its pool forks, and what a thread of this process holds at that moment stays held there for ever.
    alone = partialmethod(Trace.load_traces, use_multiprocessing=False)
    monkeypatch.setattr(Trace, "load_traces", alone)


def theirs(paths: dict[int, Path], folder: Path) -> dict[int, float]:
    from hta.trace_analysis import TraceAnalysis

    files = {rank: str(path) for rank, path in paths.items()}
    analysis = TraceAnalysis(trace_files=files, trace_dir=str(folder), include_last_profiler_step=True)
    table = analysis.get_comm_comp_overlap(visualize=False)
    return dict(zip(table["rank"], table["comp_comm_overlap_pctg"], strict=True))


def ours(paths: dict[int, Path]) -> dict[int, float]:
    ratios = read_kineto(list(paths.values()), ImportOptions()).overlaps
    return {rank: 100 * (ratio or 0) for rank, ratio in ratios.items()}


SLOWER = ("A100 x 2", "A100 x 8", "V100 x 2")  # a built trace has two ranks


@needs_data
@pytest.mark.parametrize("job", [*(pytest.param(one, marks=pytest.mark.slow) for one in SLOWER), "V100 x 8"])
def test_overlaps_of_real_traces_are_theirs(job: str, hta: None, tmp_path: Path) -> None:
    paths = {rank: DATA / "traces" / name for rank, name in GPU_TRACES[job].items()}
    assert ours(paths) == pytest.approx(theirs(paths, tmp_path), abs=0.0051)


@pytest.mark.parametrize("copy_in_ns", [0, 31_007])
def test_overlaps_of_built_traces_are_theirs(copy_in_ns: int, hta: None, tmp_path: Path) -> None:
    job = Job(
        shapes=((64, 64), (64,), (32, 64), (32,), (16, 16)),
        buckets=(1, 2, 2),
        gradient_ns=(150_001, 50_003, 90_011, 30_029, 70_039),
        transfer_ns=(90_001, 160_007, 80_003),
        forward_ns=((200_000, 317_003), (255_500, 203_001), (240_007, 260_009)),
        copy_in_ns=copy_in_ns,
        copy_out_ns=20_011,
        offsets_ns=(0, 7_000_123),
    )
    dialect = Dialect()
    texts = build(job, dialect, begin_ns=0)[0]  # HTA keeps times as floats of us
    paths = dict(enumerate(write(texts, tmp_path, dialect)))
    found = ours(paths)
    assert 5 < min(found.values()) < max(found.values()) < 95
    assert found == pytest.approx(theirs(paths, tmp_path), abs=0.0051)
