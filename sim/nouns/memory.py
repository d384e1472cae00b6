"""What buckets cost in memory."""

from dataclasses import dataclass

from sim.nouns.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Memory that a system takes for its buckets on one rank, for a while or for good.

    ``start_ns`` and ``end_ns`` count from the start of backward; both None: held all through it, by most
    systems from step to step. What ends in the instant in which something else starts is gone by then.
    """

    what: str
    num_bytes: int
    start_ns: int | None = None
    end_ns: int | None = None

    def __post_init__(self) -> None:
        at_least("num_bytes", self.num_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What buckets cost on one rank, in bytes, beside the gradients themselves.

    ``buffers_bytes`` are held all through a backward (by DDP from step to step), ``transient_peak_bytes`` is
    the most that is held on top of them at any one moment. ``largest_bucket_bytes`` are parameter bytes, as
    DDP's logger counts them (A4.4). Not counted: what the communication library takes for itself (gloo's and
    NCCL's scratch), maps of one number a parameter, and gradients or partitions that a system keeps whatever
    its buckets are.
    """

    buffers_bytes: int
    transient_peak_bytes: int
    largest_bucket_bytes: int

    def __post_init__(self) -> None:
        for name in ("buffers_bytes", "transient_peak_bytes", "largest_bucket_bytes"):
            at_least(name, getattr(self, name), 0)

    @property
    def peak_bytes(self) -> int:
        """The most that buckets ever hold at once."""
        return self.buffers_bytes + self.transient_peak_bytes
