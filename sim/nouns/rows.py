"""One row of a sweep."""

from dataclasses import dataclass

WHAT_IFS = ("world_size", "precision", "bandwidth", "latency", "backward")  # fields of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One candidate of a sweep: the assignment, the what-ifs it was played under, and its figures.

    Flat and plain, so that rows are tidy: ``pandas.DataFrame(map(asdict, rows))``. ``label`` names the
    assignment. ``bucket_cap_mb`` (MiB) is None for DDP's default, its own point (A2.1); ``precision`` is a
    torch dtype of all gradients, None as they were recorded. ``bandwidth``, ``latency`` and ``backward`` are
    factors. Times in ns; ``largest_bucket_bytes`` in parameter bytes.
    """

    label: str
    bucket_cap_mb: float | None
    world_size: int
    precision: str | None
    bandwidth: float
    latency: float
    backward: float
    num_buckets: int
    largest_bucket_bytes: int
    step_ns: int
    sync_end_ns: int
    exposed_comm_ns: int
    overlap_ratio: float
