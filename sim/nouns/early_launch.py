"""What goes wrong under last-hook bucketing: a bucket that is sent before all its gradients are there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LateGradient:
    """A gradient that its bucket did not wait for; it is ready ``late_ns`` after the hooked one."""

    index: int
    name: str
    late_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyLaunch:
    """A bucket whose hooked parameter is not the last to be ready (A6.2): what is sent of ``late`` is stale.

    ``is_sent`` False: the hooked parameter is never ready, so that the bucket is never sent and ranks drift
    apart (A6.4); then ``late`` is empty.
    """

    bucket: int
    hooked: int
    hooked_name: str
    late: tuple[LateGradient, ...] = ()
    is_sent: bool = True
