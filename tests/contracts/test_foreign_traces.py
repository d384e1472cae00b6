"""The manual's table of public traces is what is kept of them; tests/published holds that to the traces."""

from collections.abc import Iterator

from sim.units import NS_PER_MS
from tests.manual.pages import TRUTH, assert_holds
from tests.published.figures import figures


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


def test_the_page_has_the_table() -> None:
    assert_holds(TRUTH, list(rows()))
