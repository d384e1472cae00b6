"""What runs on a measured rank: torch and the standard library are all that it needs there.

Tasks are here (``replaying``) and in ``probes`` (calibration). ``lanes`` holds what a replay runs in turns, a
file a system; ``wrapping`` and ``systems`` put a system around a module; ``pacing`` keeps the recorded
schedule; ``process`` is the rank itself among its peers. Each imports only from those after it.
"""
