"""What runs on a measured rank: torch and the standard library are all that it needs there.

``joining`` to ``peers`` bring a rank to its place and keep an eye on it, ``replaying`` and ``probes`` are its
tasks, ``pacing`` to ``model_lanes`` what a step is, ``building`` and ``injection`` DDP with given buckets,
``wrapping`` any system but ZeRO, ``systems`` those that are not DDP, ``zero_lanes`` DeepSpeed itself.
"""
