"""What ``sim.record`` wrote beside a real training run: ``rank-<r>.jsonl`` of each rank."""

from sim.importer.trace_format import Tells, TraceFormat

# It is recognised by its directory, or by the ``kind`` that its files name, as bucketsim's documents do.
RECORDING = TraceFormat(
    name="recording",
    called="a recording",
    tells=Tells.GRADIENTS,
    module="sim.importer.recorded.recording_import",
    function="read_recording",
    keys="backward_starts dropped_warmup_steps missing_ranks no_sync_backward_ns optimizer_seen rank_is "
    "recorded_ranks torn_ranks",
)
