"""The manual's table of public traces is what is kept of them: what today's model says of the traces."""

from collections.abc import Iterator

import pytest

import sim
from sim.importer.imported import ImportOptions
from sim.importer.readers import reader
from sim.nouns.measurement import Record
from sim.units import NS_PER_MS
from tests.public_data import DATA, needs_data
from tests.published.figures import figures

TRACES = {
    "DLRM, all ranks of 8 V100": "param/param_dlrm_v100x8_r*.pt.trace.json.gz",
    "ResNet-50, one rank of 2 A100": "hta/hta_nccl_data_a100x2.json.gz",
    "a model with all-to-alls, one rank of 8 A100": "hta/hta_trace_diff_control_a100x8_r3.json.gz",
}


@needs_data
@pytest.mark.parametrize("name", TRACES)
def test_what_is_kept_of_public_traces_is_what_is_predicted(name: str) -> None:
    imported = reader("kineto")(sorted((DATA / "traces").glob(TRACES[name])), ImportOptions())
    assert imported.workload is not None
    (hardware,) = imported.hardware
    read = Record(
        name=name, workload=imported.workload, hardware=hardware, measurements=imported.measurements
    )
    (row,) = sim.agreement(read).rows
    assert row.median_bucket_end_error is not None
    kept = figures("traces")[name]
    assert kept["exposed_ns"] == {"predicted": row.predicted_exposed_ns, "measured": row.measured_exposed_ns}
    assert kept["median_bucket_end_error"] == round(row.median_bucket_end_error, 4)
    assert kept["worst_bucket_end_error_ns"] == max(abs(end.error_ns) for end in row.bucket_ends)
    assert kept["step_error"] == round(row.step_error, 4)


def rows() -> Iterator[str]:
    yield "| trace | exposed, predicted of measured | bucket ends, median error | furthest off | step error |"
    yield "|---|---|---|---|---|"
    for name, kept in figures("traces").items():
        predicted, measured = (kept["exposed_ns"][which] / NS_PER_MS for which in ("predicted", "measured"))
        ends, worst_ms = kept["median_bucket_end_error"], kept["worst_bucket_end_error_ns"] / NS_PER_MS
        yield (
            f"| {name} | {predicted:.2f} of {measured:.2f} ms | {100 * ends:.1f} % | {worst_ms:.2f} ms | "
            f"{100 * kept['step_error']:+.1f} % |"
        )
