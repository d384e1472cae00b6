"""One row of a sweep."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One candidate of a sweep. ``bucket_cap_mb`` (MiB) is None for DDP's default, its own point (A2.1).

    Times in ns; ``largest_bucket_bytes`` in parameter bytes.
    """

    label: str
    bucket_cap_mb: float | None
    num_buckets: int
    largest_bucket_bytes: int
    step_ns: int
    sync_end_ns: int
    exposed_comm_ns: int
    overlap_ratio: float
