"""Dumps of torch's flight recorder, as JSON."""

from sim.importer.trace_format import Tells, TraceFormat

_BESIDE = {"pg_config", "pg_status", "nccl_version", "comm_lib_version", "version"}

FLIGHT_RECORDER = TraceFormat(
    name="flight-recorder",
    called="a flight recorder's dump as JSON",
    tells=Tells.COLLECTIVES,
    module="sim.importer.flight_recorder.dumps",
    function="read_flight_recorder",
    by_head=lambda keys: "entries" in keys.top and bool(_BESIDE & keys.top.keys()),
    by_keys=lambda keys: "entries" in keys.top,
    keys="launch_after_first_ns library",
)
