"""anchor: a machine whose parts were measured apart, made true for one step of the job as it runs."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.next_steps import suggest, to_tune_written
from sim.cli.options import (
    FITTING,
    AsJson,
    WorkloadFile,
    caps_of,
    file_option,
    flag,
    key_value,
    option,
    write,
)
from sim.cli.printing import emit, say, table
from sim.costs.own_costs import with_memory_bandwidth
from sim.errors import AssignmentError, InputError
from sim.formats.documents import json_text, load
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.systems.simulate import simulated_step_ns
from sim.truth.in_step import InStepTimes, in_step_times
from sim.units import NS_PER_MS, format_ms, format_number, format_percent, in_ms, parse_cap_mb

if TYPE_CHECKING:
    from sim.truth.anchor import Anchored, MeasuredStep


_TIMES = ("step_ms", "backward_ms", "noise_ms")
_CAPS = ("bucket_cap_mb", "first_bucket_mb")
_BYTES_PER_GB = 1e9


class FactorName(StrEnum):
    """What one measured step can fix."""

    MUTUAL = "mutual"
    COMPUTE_SLOWDOWN = "compute_slowdown"
    COMM_SLOWDOWN = "comm_slowdown"
    CURVE = "curve"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One step as the command line gives it: options of ``sim.assign``, and what was measured."""

    label: str
    options: dict[str, Any]
    measured: "MeasuredStep"


def anchor(
    workload_file: WorkloadFile,
    hardware_file: Path = option(
        "A hardware file: a link measured beside the step.", "--hardware", default=...
    ),
    measured: list[str] = option(
        "A step as it runs now: bucket_cap_mb=25,step_ms=159.6 and, where known, backward_ms, "
        "noise_ms and DDP's switches. The first corrects the hardware; others are compared with it.",
        default=...,
    ),
    in_step: str | None = option(
        "Durations of that step's all-reduces in ms, in launch order, comma-separated; or the "
        "measurement that import made of a trace, whose buckets are the step's where it names none.",
        panel=FITTING,
    ),
    after_backward_ms: float | None = option(
        "How much of these durations lies after the end of backward, ms.", panel=FITTING
    ),
    factor: FactorName | None = option(
        "The factor to determine; default: the slow-down that is not known.", panel=FITTING
    ),
    launch_cost: bool = flag(
        "Also determine the fixed cost of a collective, from the second --measured.",
        "--launch-cost",
        panel=FITTING,
    ),
    memory_bandwidth: float | None = option(
        "Bandwidth of the GPU's memory, GB/s: what copies cost, where the file has no cost.", panel=FITTING
    ),
    caps: str | None = option("Further caps to predict, MiB, comma-separated."),
    output: Path | None = file_option("Write the hardware here.", default=None),
    as_json: AsJson = False,
) -> None:
    """Fit a hardware file to one measured step: how much link and computing slow each other down."""
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    if memory_bandwidth is not None:
        hardware = with_memory_bandwidth(hardware, memory_bandwidth * _BYTES_PER_GB)
    seen, trace = _seen(in_step, after_backward_ms)
    rows = [_row(workload, text, None if place else trace) for place, text in enumerate(measured)]
    if launch_cost and len(rows) < 2:
        raise InputError("--launch-cost: takes a second --measured, with another number of buckets")
    found = sim.anchor(
        workload,
        hardware,
        rows[0].measured,
        factor=None if factor is None else factor.value,
        seen=seen,
        second=rows[1].measured if launch_cost else None,
    )
    checks = [_check(workload, hardware, found, row) for row in rows]
    predictions = [_predict(workload, hardware, found, rows[0], cap) for cap in caps_of(caps, "--caps") or ()]
    if output is not None:
        write(output, sim.to_text(found.hardware))
    if as_json:
        emit(json_text({"kind": "anchor", **_facts(found), "checks": checks, "predictions": predictions}))
        return
    _print(found, checks, predictions)
    if found.fits:
        suggest(to_tune_written(workload_file, output, corrected=hardware_file))


def _row(workload: Workload, text: str, trace: Measurement | None) -> _Row:
    """One ``--measured``; of a step whose durations are a trace's, with the trace's buckets."""
    from sim.truth.anchor import MeasuredStep

    given: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name or not equals or not value:
            raise InputError(
                f"--measured: {pair!r} is not legal; give name=value, such as bucket_cap_mb=25,step_ms=159.6"
            )
        if name in given:
            raise InputError(f"--measured: {name} occurs twice in {text!r}; each may occur once")
        given[name] = _value(name, value)
    times = {name: given.pop(name) for name in _TIMES if name in given}
    if "step_ms" not in times:
        raise InputError(f"--measured: {text!r} has no step_ms; give it, such as step_ms=159.6")
    if {"workload", "iteration"} & given.keys():
        raise InputError(f"--measured: {text!r} is not legal; workload and iteration are no switches")
    label, assignment = _label(given) or "default", None
    if trace is not None:
        assert trace.asked is not None
        if not given:
            label, assignment = trace.name, trace.asked
            try:
                assignment.check_fits(workload)
            except AssignmentError as error:
                raise InputError(f"--in-step: the trace is of other gradients: {error}") from None
            switches = {**assignment.ddp_kwargs, **assignment.settings}
            given = {name: value for name, value in switches.items() if name not in CAP_KWARGS}
        elif sim.assign(workload, **given).bucket_indices != trace.asked.bucket_indices:
            raise InputError(
                f"--measured: {label} does not make the {len(trace.asked.bucket_indices)} buckets that "
                f"--in-step has durations of; leave the options out, and they are the trace's"
            )
    return _Row(
        label=label,
        options=given,
        measured=MeasuredStep(
            assignment=sim.assign(workload, **given) if assignment is None else assignment,
            step_ns=round(times["step_ms"] * NS_PER_MS),
            sync_end_ns=round(times["backward_ms"] * NS_PER_MS) if "backward_ms" in times else None,
            noise_ns=round(times["noise_ms"] * NS_PER_MS) if "noise_ms" in times else None,
        ),
    )


def _label(options: dict[str, Any]) -> str:
    told = (format_number(value, 6) if isinstance(value, float) else value for value in options.values())
    return ", ".join(f"{name}={value}" for name, value in zip(options, told, strict=True))


def _value(name: str, value: str) -> Any:
    if name in _CAPS:
        return parse_cap_mb(value)
    if name in _TIMES:
        return _ms("--measured: " + name, value)
    return key_value(name, value, "--measured")


def _ms(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise InputError(f"{what}: {text!r} is not legal; give milliseconds, 0 to 1e9")
    return value


def _seen(
    in_step: str | None, after_backward_ms: float | None
) -> tuple[InStepTimes | None, Measurement | None]:
    """Durations in the step, and the measurement that they are from, if they are from one."""
    if in_step is None:
        if after_backward_ms is not None:
            raise InputError("--after-backward-ms: belongs to --in-step; give the durations too")
        return None, None
    if in_step.endswith(".json"):
        if after_backward_ms is not None:
            raise InputError(
                "--after-backward-ms: a measurement says it itself; give durations, or leave it out"
            )
        trace = load(in_step, Measurement)
        if trace.asked is None:
            raise InputError(
                f"{in_step}: role={trace.role!r} is not legal here; give a candidate, as import's"
            )
        return in_step_times(trace), trace
    if after_backward_ms is not None:
        _ms("--after-backward-ms", str(after_backward_ms))
    typed = InStepTimes(
        durations_ns=tuple(round(_ms("--in-step", part) * NS_PER_MS) for part in in_step.split(",")),
        after_backward_ns=None if after_backward_ms is None else round(after_backward_ms * NS_PER_MS),
    )
    return typed, None


def _figures(
    workload: Workload, hardware: Hardware, found: "Anchored", assignment: Assignment
) -> dict[str, Any]:
    """The step of one row: by the parts alone, anchored, and the least and most by any factor."""
    anchored = simulated_step_ns(workload, found.hardware, assignment)
    alike = [
        anchored,
        *(simulated_step_ns(workload, other.hardware, assignment) for other in found.readings[1:]),
    ]
    return {
        "parts_alone_ns": simulated_step_ns(workload, hardware, assignment),
        "predicted_ns": anchored,
        "least_ns": min(alike),
        "most_ns": max(alike),
    }


def _check(workload: Workload, hardware: Hardware, found: "Anchored", row: _Row) -> dict[str, Any]:
    figures = _figures(workload, hardware, found, row.measured.assignment)
    measured_ns = row.measured.step_ns
    error = (figures["predicted_ns"] - measured_ns) / measured_ns
    return {"row": row.label, "measured_ns": measured_ns, **figures, "error": error}


def _predict(
    workload: Workload, hardware: Hardware, found: "Anchored", row: _Row, cap: float
) -> dict[str, Any]:
    assignment = sim.assign(workload, **{**row.options, "bucket_cap_mb": cap})
    return {"bucket_cap_mb": cap, **_figures(workload, hardware, found, assignment)}


def _facts(found: "Anchored") -> dict[str, Any]:
    return {
        "factor": found.factor,
        "value": found.value,
        "fits": found.fits,
        "launch_cost_ns": found.hardware.launch_cost_ns,
        "fitted": found.fitted,
        "measured_ns": found.measured_ns,
        "plain_ns": found.plain_ns,
        "predicted_ns": found.predicted_ns,
        "residual_ns": found.residual_ns,
        "readings": [{"what": one.what, "value": one.value, "weight": one.weight} for one in found.readings],
        "reasons": list(found.reasons),
        "notes": list(found.notes),
    }


def _print(found: "Anchored", checks: list[dict[str, Any]], predictions: list[dict[str, Any]]) -> None:
    for reason in found.reasons:
        say(reason)
    told = "step" if found.fitted == "step" else "backward"
    others = ", ".join(
        f"{one.what} {format_number(one.value, 4)} ({format_percent(one.weight, 0)})"
        for one in found.readings[1:]
    )
    say(
        f"{'' if found.fits else 'no fit: '}{found.factor} {format_number(found.value, 4)}: a {told} of "
        f"{format_ms(found.predicted_ns)}, measured {format_ms(found.measured_ns)}, "
        f"{format_ms(found.plain_ns)} without; "
        f"left over {found.residual_ns} ns" + (f"; or instead {others}" if others else "")
    )
    if found.fitted == "sync_end":
        say(
            "the given backward is made true, not the step: what is left in its row is the error of forward "
            "and optimizer"
        )
    columns = ["", "measured", "parts alone", "anchored", "by other factors", "error"]
    rows = [_cells(row["row"], row) for row in checks]
    rows += [_cells(f"bucket_cap_mb={format_number(row['bucket_cap_mb'], 6)}", row) for row in predictions]
    table("steps, ms", columns, rows)
    for line in found.notes:
        say(f"note: {line}")


def _cells(label: str, row: dict[str, Any]) -> list[str]:
    least, most = (in_ms(row[name]) for name in ("least_ns", "most_ns"))
    return [
        label,
        in_ms(row["measured_ns"]) if "measured_ns" in row else "",
        in_ms(row["parts_alone_ns"]),
        in_ms(row["predicted_ns"]),
        "" if least == most else f"{least} to {most}",
        format_percent(row["error"], 2, sign=True) if "error" in row else "",
    ]
