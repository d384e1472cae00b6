"""What of the inputs is not measured, or cannot be relied on: in figures, and in the sentences of answers.

DDP's own costs on a GPU where nobody measured them, sizes at which a curve's times are guesses, and doubts:
another link than the one that trains, a step that the link cannot have given, points and recordings that
are marked. Ranges are in ``spread.ranges`` of a hardware, marks in ``provenance.doubtful``; see CONTRACT.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from math import inf, isqrt, log
from statistics import geometric_mean
from typing import Any, NamedTuple

from sim.costs.service_time import measured_ranks, service_ns
from sim.nouns.devices import backend_of, device_type, devices_of_job, ranks_of_job
from sim.nouns.gpus import GPUS, GpuSheet, gpus_named
from sim.nouns.hardware import RATES, SCALARS, Curve, Hardware
from sim.nouns.workload import Workload
from sim.units import format_number, format_size, format_sizes, format_time


class OwnCost(NamedTuple):
    """What is taken of a cost, and where 95 % of it lies; in words in ``unit``, of so many of the field's.

    Copies: as shares of the memory's bandwidth that gradients reach, each byte read and written.
    """

    words: str
    low: float
    taken: float
    high: float
    unit: str = " times"
    of_unit: float = 1.0


# A curve of collectives holds no copy, no hook and no launch. By PyTorch's own benchmark of DDP (DGX-1 V100,
# benchmarks/distributed/ddp of pytorch/pytorch) a gradient takes 10 to 27 us more than its copy, a bucket up
# to 60; a H100 whose host is ahead is at the lower ends (traces/gpu). The 40 us of a launch were chosen after
# the benchmark's sign of cap 1 against 25 had been seen: of it they are no prediction. Of slow-downs 1 is
# taken, so that one measured step can still fix them (``sim.anchor``).
OWN_COSTS = {
    "hook_cost_ns": OwnCost("a gradient's hook", 3_000, 15_000, 30_000, " us", 1e3),
    "launch_cost_ns": OwnCost("a bucket's launch", 5_000, 40_000, 100_000, " us", 1e3),
    "copy_in_bytes_per_s": OwnCost("copies into buckets", 0.35, 0.8, 1.0, " GB/s", 1e9),
    "copy_out_bytes_per_s": OwnCost("copies out of buckets", 0.35, 0.8, 1.0, " GB/s", 1e9),
    "compute_slowdown": OwnCost("computing beside communication", 1.0, 1.0, 1.2),
    "comm_slowdown": OwnCost("communication beside computing", 1.0, 1.0, 1.5),
}
UNMEASURED_COSTS = tuple(name for name in OWN_COSTS if not name.endswith("_slowdown"))
FACTORS = ("link", "tilt", *OWN_COSTS)  # that one measured step can fix
_FREE = {field.name: field.default for field in fields(Hardware) if field.name in OWN_COSTS}


def with_own_costs(
    hardware: Hardware, gpus: Sequence[GpuSheet] = (), names: Iterable[str] = tuple(OWN_COSTS)
) -> Hardware:
    """``hardware`` with those costs of DDP that ``names`` names as one of ``gpus`` has them (none: any of the
    table), each with its range in ``spread.ranges``; what it has already stays. One rank needs no DDP."""
    if hardware.world_size == 1:
        return hardware
    rates = [gpu.bytes_per_s / 2 for gpu in gpus or GPUS.values()]
    values: dict[str, Any] = {}
    ranges = dict(hardware.spread.get("ranges", {}))
    for name, cost in ((name, OWN_COSTS[name]) for name in names):
        if getattr(hardware, name) == _FREE[name]:
            by = (min(rates), geometric_mean(rates), max(rates)) if name.endswith("_per_s") else (1, 1, 1)
            values[name] = cost.taken * by[1]
            ranges[name] = {"low": cost.low * by[0], "high": cost.high * by[2]}
    if "launch_cost_ns" in values:
        values["launch_blocks_compute"] = True
    return replace(hardware, **values, spread={**hardware.spread, "ranges": ranges})


def without_own_costs(hardware: Hardware) -> Hardware:
    """``hardware`` without the costs that are of other machines: one step that was measured holds them."""
    ranges = hardware.spread.get("ranges", {})
    free: dict[str, Any] = {name: value for name, value in _FREE.items() if name in ranges}
    if "launch_cost_ns" in free:
        free["launch_blocks_compute"] = False
    left = {name: ends for name, ends in ranges.items() if name not in free}
    return replace(hardware, **free, spread={**hardware.spread, "ranges": left})


def scale_own_costs(hardware: Hardware, times: float) -> Hardware:
    """``hardware`` with hooks, launches and copies that take so many times as long, each within its range."""
    made = dict[str, Any]()
    for name, ends in open_ranges(hardware).items():
        if name in UNMEASURED_COSTS:
            own = getattr(hardware, name)
            value = own / times if name in RATES else round(own * times)
            made[name] = min(max(value, ends["low"]), ends["high"])
    return replace(hardware, **made)


def told_unmeasured(workload: Workload, hardware: Hardware) -> tuple[str, ...]:
    """Sentences on the costs of DDP's own that are not measured, and on a host that a rank shares with its
    all-reduces."""
    told, said, ranges = list[str](), list[str](), _not_fitted(hardware)
    for name in [name for name in OWN_COSTS if name in ranges]:
        words, *_, unit, of_unit = OWN_COSTS[name]
        figures = (ranges[name]["low"], ranges[name]["high"], getattr(hardware, name))
        low, high, taken = (format_number(figure / of_unit) for figure in figures)
        told.append(f"{words} {low} to {high}{unit} ({taken} taken)")
    if told:
        said.append(f"not measured on this machine, but as others have it: {', '.join(told)}")
    if (shared := with_shared_host(workload, hardware)) is not hardware:
        times = format_number(shared.spread["ranges"]["compute_slowdown"]["high"])
        said.append(
            f"beside all-reduces on its own host a rank computes up to {times} times as long: steps are told "
            "without that, the interval of a gain with it; record the job (sim.record), whose step tells, or "
            "replay it with validate --model"
        )
    return tuple(said)


_MOST_SHARE = 0.75  # of a core, that communication takes from a rank that computes on it


def beside_all_reduces(hardware: Hardware, pick: Callable[[list[float]], float]) -> dict[str, float]:
    """The slow-downs of all-reduces and of a rank that computes on their host, by name: ``pick`` of what was
    measured by size of a message; empty where nothing was. All-reduces take ``spread.host_share`` of the rank
    and ``spread.comm_beside_compute`` times as long; where only the processor's time was measured, in a job
    that trains (``spread.processor_share``), they are taken to slow down as much as computing does."""
    kept = (hardware.spread.get(name) for name in ("host_share", "processor_share", "comm_beside_compute"))
    known = [each.values() if isinstance(each, dict) else () for each in kept]
    of_host, of_processor, slower = ([one for one in each if isinstance(one, float)] for each in known)
    if not (shares := of_host or of_processor):
        return {}
    computing = 1 / (1 - min(_MOST_SHARE, max(0.0, pick(shares))))
    return {"compute_slowdown": computing, "comm_slowdown": max(1.0, pick(slower)) if slower else computing}


def with_shared_host(workload: Workload, hardware: Hardware) -> Hardware:
    """``hardware`` with ranges of what all-reduces and a rank that computes on their host take of each other:
    from nothing, as in a paced replay, to the most that was measured. The same where no rank does, or it is
    in the slow-downs already."""
    most = beside_all_reduces(hardware, max)
    is_counted = hardware.compute_slowdown > 1 or "own_step" in hardware.spread
    is_counted = is_counted or "anchored" in hardware.provenance or hardware.world_size == 1
    if is_counted or most.get("compute_slowdown", 1) <= 1 or devices_of_job(workload) != ("cpu",):
        return hardware
    ends = {name: (getattr(hardware, name), getattr(hardware, name) * times) for name, times in most.items()}
    ranges = {name: {"low": low, "high": high} for name, (low, high) in ends.items()}
    return replace(hardware, spread={**hardware.spread, "ranges": ranges | hardware.spread.get("ranges", {})})


# ---- What is not measured.

FAR = 4  # within so many times of a measured size a time is taken as it is
_KINK = 0.3  # a curve bends where time grows by so much less with size than before, as powers
_STRAIGHT = 0.1  # a stretch of the curve whose slope a neighbour has, to this share, is a line
_WORTH = 1.1  # a guess that is open by less is none
_LEAST = 0.1  # of a time that is a guess: less nobody would believe
# Beyond the last size time may grow as the last two points do, in any case by so much less, or by so much
# more where messages do not fit into caches any more.
_GOES_ON, _LOSES = 0.9, 1.25


class Unknown(NamedTuple):
    """What is not measured of a machine: in ``words``, with its ranges and readings (``spread``), and the
    ``guesses``: sizes in bytes at which a time is so many times, low to high, what the curve says, and
    straight from there to the curve's points."""

    words: tuple[str, ...]
    guesses: dict[int, tuple[float, float]]


def unknown(hardware: Hardware, sizes: Iterable[int]) -> Unknown:
    """What is not measured of a machine that all-reduces messages of ``sizes`` bytes."""
    sent, curve = [size for size in sizes if size > 0], hardware.all_reduce
    if hardware.world_size == 1 or not sent:
        return Unknown((), {})
    ranges, readings = _not_fitted(hardware), hardware.spread.get("readings", ())
    guesses, said = dict(_guesses(curve, min(sent), max(sent))), list[str]()
    if (known := ranges.get("all_reduce")) is not None:
        low, high = format_number(known["low"]), format_number(known["high"])
        said.append(f"all-reduces of {low} to {high} times their time")
    if any(name in SCALARS for name in ranges):  # ``told_unmeasured`` has their figures
        said.append("what DDP itself costs here (see the notes)")
    if guesses:
        measured = format_sizes(point.num_bytes for point in curve)
        said.append(f"times of messages between or beyond the sizes that were measured, {measured}")
    if len(readings) > 1:
        said.append(f"the measured step read as {' or '.join(one['what'] for one in readings)}")
    return Unknown(tuple(said), guesses)


def open_ranges(hardware: Hardware) -> dict[str, Any]:
    """Those of ``spread.ranges`` that leave something open: between equal ends a value is known exactly, and
    what is free (None) lies in none."""
    ranges = hardware.spread.get("ranges", {}).items()
    is_open = {name: known for name, known in ranges if known["low"] < known["high"]}
    return {name: known for name, known in is_open.items() if getattr(hardware, name) is not None}


def _not_fitted(hardware: Hardware) -> dict[str, Any]:
    """Those of ``open_ranges`` that no recorded step of the job has fitted, which is measured here."""
    fitted = (hardware.spread.get("own_step") or {}).get("factors")
    fitted = ["all_reduce" if one == "link" else one for one in fitted] if isinstance(fitted, list) else []
    return {name: known for name, known in open_ranges(hardware).items() if name not in fitted}


def rests_on(hardware: Hardware, sizes: Iterable[int]) -> tuple[str, ...]:
    """The sentence on what is ``unknown`` of a machine that all-reduces ``sizes`` bytes, if anything is."""
    words = unknown(hardware, sizes).words
    return (f"this rests on {'; '.join(words)}",) if words else ()


def _guesses(curve: Curve, least: int, most: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """Where times of messages of ``least`` to ``most`` bytes are guesses: far outside of the curve's sizes,
    far between two of them, and where it bends. A time of 0 is none. Below the first it is anything from in
    proportion to its bytes to constant.

    In the middle of a gap it takes at least as long as at the rate of its end, and at most as long as at the
    rate of its begin; where nothing bends also not less than its begin, and not more than its end.
    """
    first, last, far = curve[0], curve[-1], FAR if len(curve) > 1 else 1
    least = max(least, -(-first.num_bytes // max(1, first.duration_ns)))  # of which no time is below 1 ns
    if least * far < first.num_bytes:
        of_first = first.duration_ns / service_ns(curve, least)
        yield least, (of_first * least / first.num_bytes, of_first)
    slopes = [(b.duration_ns - a.duration_ns) / (b.num_bytes - a.num_bytes) for a, b in pairwise(curve)]
    before = 0.0
    for at, (a, b) in enumerate(pairwise(curve)):
        beside = slopes[max(0, at - 1) : at] + slopes[at + 1 : at + 2]
        is_straight = any(abs(one - slopes[at]) <= _STRAIGHT * abs(slopes[at]) for one in beside)
        if not (a.num_bytes and a.duration_ns and b.duration_ns):
            continue
        power = log(b.duration_ns / a.duration_ns) / log(b.num_bytes / a.num_bytes)
        bends, before = before - power > _KINK, power
        is_open = (bends or b.num_bytes > FAR * a.num_bytes) and not is_straight
        middle = isqrt(a.num_bytes * b.num_bytes)
        if is_open and a.num_bytes < middle and a.num_bytes < most and least < b.num_bytes:
            ends = [0.0, inf] if bends else sorted((a.duration_ns, b.duration_ns))
            taken = service_ns((a, b), middle)
            low = min(taken, max(ends[0], b.duration_ns * middle / b.num_bytes)) / taken
            high = max(taken, min(ends[1], a.duration_ns * middle / a.num_bytes)) / taken
            if high > _WORTH * low:
                yield middle, (low, high)
    if most > far * last.num_bytes > 0 and last.duration_ns:
        line_ns = last.duration_ns + (slopes or [0.0])[-1] * (most - last.num_bytes)
        yield most, (min(_GOES_ON, max(_LEAST, line_ns / service_ns(curve, most))), _LOSES)


# ---- Doubts.

_ODD = 2  # times: beyond that far off the sizes next to it a time is no machine's


def odd_points(curve: Curve) -> list[dict[str, Any]]:
    """The sizes of a curve whose time lies off those of the two next to them, where these ascend: more than
    ``_ODD`` times the larger one's, or less than the smaller one's by as much. As ``provenance.doubtful``."""
    before, found, times = 0, list[dict[str, Any]](), [one.duration_ns for one in curve]
    afters = [*times[1:], inf]
    for k, (one, two) in enumerate(pairwise(curve[1:])):
        if two.duration_ns * one.num_bytes > _ODD * two.num_bytes * one.duration_ns:
            afters[k] = two.duration_ns  # ``one`` is off itself: from it time rises faster than bytes
    for point, took, after in zip(curve, times, afters, strict=True):
        if before <= after and not before <= _ODD * took <= _ODD**2 * after:
            beside = [format_time(one) for one in (before, after) if 0 < one < inf]
            where = f"{'between' if len(beside) > 1 else 'beside'} {' and '.join(beside)}"
            found.append({"num_bytes": point.num_bytes, "why": f"takes {format_time(took)} {where}"})
        else:
            before = took
    return found


_CPU, _ACCELERATOR = "the CPU", "an accelerator"
_ANEW = "Measure the link that trains"
_REDUCES_ON = {"gloo": _CPU, "mpi": _CPU, "nccl": _ACCELERATOR, "xccl": _ACCELERATOR, "hccl": _ACCELERATOR}


def notes_of(workload: Workload, hardware: Hardware, played: Iterable[str] = ()) -> tuple[str, ...]:
    """What every answer about a job on a machine says beside its figures: the notes of the steps that were
    ``played``, such as parts that are not counted, what is not measured, and what is in doubt."""
    return (*dict.fromkeys(played), *told_unmeasured(workload, hardware), *doubts_about(workload, hardware))


def doubts_about(workload: Workload, hardware: Hardware, *, of_any_size: bool = False) -> tuple[str, ...]:
    """Sentences about the inputs: a step that this link cannot have given, recorded times that cannot be
    true, another link than the one that trains, doubtful points of the curve.

    ``of_any_size``: what is asked is another number of ranks than the recorded one.
    """
    marks = [one.provenance.get("doubtful") for one in (workload, hardware)]
    lines, points = (mark if isinstance(mark, list) else [] for mark in marks)
    sizes = {
        one["num_bytes"]: one["why"]
        for one in points
        if isinstance(one, dict) and type(one.get("num_bytes")) is int and isinstance(one.get("why"), str)
    }
    what = [f"{format_size(size)} {why}" for size, why in sizes.items()]
    if len(sizes) > 1:
        what = [f"{len(sizes)} of {len(hardware.all_reduce)} sizes, {format_sizes(sizes)}"]
    differs = [
        f"its {name} is {theirs}, and the job's {ours}"
        for name, theirs, ours in _of_links(workload, hardware, of_any_size)
        if None not in (theirs, ours) and theirs != ours
    ]
    return (
        *doubts_about_step(hardware),
        *(f"doubtful recording: {line}" for line in lines if isinstance(line, str)),
        *([f"doubtful link: {'; '.join(differs)}. {_ANEW}"] if differs else []),
        *(f"doubtful link: {one}; measure it again" for one in what),
    )


def doubts_about_step(hardware: Hardware) -> tuple[str, ...]:
    """That a measured step of the job (``sim.own_step``, ``sim.anchor``) cannot have come from this link, and
    which link would give it."""
    said: list[str] = []
    for name, step in (("own_step", "the job's own recorded step"), ("anchor", "the measured step")):
        known: Any = hardware.spread.get(name) or {}
        if known.get("fits") is False:
            by, told = known.get("explained_by"), f"doubtful link: {step} cannot come from it"
            if by is not None:
                told += f"; one that takes {format_number(by)} times as long would explain it"
            said.append(f"{told}. {_ANEW}")
    return tuple(said)


def _of_links(
    workload: Workload, hardware: Hardware, of_any_size: bool
) -> Iterator[tuple[str, object, object]]:
    """What a link is told by, of ``hardware`` and of the job; None where it is not known."""
    yield "number of ranks", measured_ranks(hardware), None if of_any_size else ranks_of_job(workload)
    roofline = workload.provenance.get("roofline")  # of an estimate the GPU that its times are of
    named = roofline.get("device") if isinstance(roofline, dict) else None
    trains = devices_of_job(workload) or ((named,) if isinstance(named, str) else ())
    sides = {_CPU if one == "cpu" else _ACCELERATOR for one in map(device_type, trains) if one != "meta"}
    if hardware.world_size == 1 or not sides:
        return
    yield "device", _measured_on(hardware), " and ".join(sorted(sides))
    if sides == {_measured_on(hardware)}:
        told, known = hardware.provenance, workload.provenance
        theirs, own = _gpus(told.get("devices")), _gpus(named, known.get("device_name"), known.get("device"))
        if theirs and own and not set(theirs) & set(own):
            yield "GPU", " and ".join(theirs), " and ".join(own)
        ours = _backend(workload.provenance, trains[0])
        yield "backend", _backend(hardware.provenance, trains[0]), ours


def _gpus(*named: object) -> list[str]:
    """The GPUs of the table that are named, one by one or in lists."""
    words = [word for one in named for word in (one if isinstance(one, list) else [one])]
    return [gpu.name for gpu in gpus_named(word for word in words if isinstance(word, str))]


def _backend(told: dict[str, Any], device: str) -> str | None:
    """The backend of tensors on ``device`` that a file's provenance names; None where it names none."""
    said = told.get("backend", "nccl" if "fabric" in told else None)  # computed by NCCL's own cost model
    over = backend_of(said, device) if isinstance(said, str) else None
    return "nccl" if over == "rccl" else over  # which torch calls nccl


def _measured_on(hardware: Hardware) -> str | None:
    """Between what the curve was measured or computed; None where not told."""
    told = hardware.provenance
    device = told.get("device_type", told.get("device"))
    if not isinstance(device, str):
        return _REDUCES_ON.get(_backend(told, "cuda") or "")
    return _CPU if device_type(device) == "cpu" else _ACCELERATOR


def missing_curve(hardware: Hardware, kind: str) -> str:
    """That ``hardware`` has no curve of ``kind``, and what measures one where it was measured."""
    nccl_tests = f"{kind}_perf of nccl-tests, for bucketsim import auto beside the output of all_reduce_perf"
    by = {_CPU: "bucketsim calibrate", _ACCELERATOR: nccl_tests}
    told = by.get(_measured_on(hardware) or "", ", or ".join(by.values()))
    return f"hardware {hardware.name!r} has no {kind} curve; to measure it: {told}"
