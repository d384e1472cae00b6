"""Words: what things are called, how they are defined, sentences made of figures."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Agreement
from sim.nouns.path import PathKind, PathSpan
from sim.nouns.robust import Robust
from sim.nouns.workload import Workload
from sim.units import format_ms, format_number, format_percent

Pick = Literal[
    "default",
    "cap",
    "cap-list",
    "recommended",
    "single",
    "per-parameter",
    "given",
    "per-parameter-sync",
    "per-parameter-async",
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook",
    "last-hook-safe",
    "zero1",
    "zero2",
    "megatron",
    "fully_shard",
]
PICKS: tuple[Pick, ...] = get_args(Pick)
# Buckets of DistributedDataParallel, whose switches each of them takes.
DDP_PICKS: tuple[Pick, ...] = (
    "default",
    "cap",
    "cap-list",
    "recommended",
    "single",
    "per-parameter",
    "given",
)
PICK_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "cap": "bucket_cap_mb",
    "cap-list": "bucket_cap_mb_list",
    "recommended": "best buckets found",
    "single": "single bucket",
    "per-parameter": "one per parameter",
    "given": "uploaded assignment",
    "per-parameter-sync": "not DDP: per parameter, after backward",
    "per-parameter-async": "not DDP: per parameter, from hooks",
    "after-backward": "not DDP: buckets after backward",
    "arrival-counted": "not DDP: arrival-counted buckets",
    "flat-views": "not DDP: gradients as views of flat storage",
    "last-hook": "not DDP: last-parameter hooks",
    "last-hook-safe": "not DDP: last-parameter hooks, put right",
    "zero1": "DeepSpeed ZeRO-1",
    "zero2": "DeepSpeed ZeRO-2",
    "megatron": "Megatron-Core DDP",
    "fully_shard": "FSDP2 fully_shard",
}

FAMILY_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "bucket_cap_mb": "bucket_cap_mb, one number",
    "first_bucket_mb+bucket_cap_mb": "bucket_cap_mb_list=[first, cap]",
    "DDP_SET_LAST_BUCKET_CAP": "DDP_SET_LAST_BUCKET_CAP=1 and a cap",
    "bucket_cap_mb_list": "bucket_cap_mb_list, one a bucket",
    "bucket_indices": "any buckets in ready order",
    "per-parameter": "one bucket per parameter",
    "single": "one bucket in all",
    "zero1 reduce_bucket_size": "DeepSpeed ZeRO-1, reduce_bucket_size",
    "zero2 reduce_bucket_size": "DeepSpeed ZeRO-2, reduce_bucket_size",
    "ddp-bucket-size": "Megatron-Core, --ddp-bucket-size",
    "fully_shard units": "FSDP2 fully_shard, what to wrap",
}

PATH_WORDS: dict[str, str] = {
    "backward": "backward",
    "copy_in": "copy into a bucket",
    "launch": "launch",
    "hook": "hook",
    "copy_out": "copy back",
    "settle": "what a hook computes",
    "straggler": "waits for the slowest rank",
    "all_reduce": "all-reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "broadcast": "broadcast",
}

_LANE: tuple[PathKind, ...] = ("backward", "copy_in", "launch", "hook")
_PLURALS: dict[str, str] = {"copy_in": "copies into buckets", "launch": "launches", "hook": "hooks"}

HELP: dict[str, str] = {
    "step": "Forward + loss + backward with synchronisation + optimizer, and what comes before forward.",
    "exposed": "End of synchronisation minus a plain backward: all that synchronising gradients adds, "
    "be it waiting, copies, launches or interference. Of several micro-batches it is that of the last; where "
    "the others synchronise as well, what all of them add is told below.",
    "overlap": "Time in which the compute lane and at least one collective are busy, over the time in "
    "which at least one collective is busy; of several micro-batches, in the last.",
    "gain": "Step under DDP's default minus step under the assignment shown, with as many micro-batches. "
    "Possible: with what is recommended, under the switches set.",
    "pick": "Which assignment the page shows. DDP's default is not `bucket_cap_mb=25`: it has a small "
    "first bucket of 1 MiB, which `bucket_cap_mb` set to any number has not.",
    "cap": "`bucket_cap_mb`, in MiB. A bucket is closed by the gradient that reaches the cap.",
    "first": "A cap for the first bucket alone, in MiB. Empty: none, as where `bucket_cap_mb` is set.",
    "caps": "`bucket_cap_mb_list`, in MiB, one cap a bucket, such as 1, 25, 100; the last one repeats. "
    "DDP has it since torch 2.11.",
    "preset": "Sets all knobs below at once. Moving one of them afterwards makes it your own.",
    "interference": "How much compute, copies and collectives slow each other down: a slow-down of s becomes "
    "1 + (s - 1) times this. 0 is none at all; without effect where the hardware was measured without any.",
    "world_size": "As many ranks in a ring of equal wires, in place of those measured. Empty: as measured.",
    "precision": "The dtype of all gradients, in buckets and on the wire. Compute stays as recorded.",
    "slowest_rank": "Another rank's backward takes this many times as long; each collective waits for it.",
    "torch": "The torch where it trains. Older ones lack keywords; the lines then give DDP the buckets "
    "with sim.apply, and say why.",
    "bandwidth": "How fast bytes travel, times what was measured: 2 halves what a collective takes beyond "
    "its latency.",
    "latency": "What a collective of no bytes takes, times what was measured.",
    "backward": "Multiplies all times of backward. Forward, loss and optimizer stay as recorded: of a device "
    "that is faster in all of them the step is shorter than shown.",
    "copies": "Off: predict as if copying gradients into and out of buckets were free, to see its effect.",
    "start": "Measured runs hold workload, hardware and what real ranks did. Uploads are not in the URL.",
    "upload": "JSON of ours, up to 50 MB: what `bucketsim record` and `bucketsim calibrate` write.",
}

TIMELINE_CAPTION = (
    "The same colour is the same bucket on every figure. Hatched: exposed, after backward has ended. "
    "Dotted: copies into a bucket. Hover for a bucket's life; drag to zoom, double-click to go back."
)
CAP_UNUSED = "The assignment above does not use these two. Change one to see `bucket_cap_mb` with it."
RANKS_NOTE = (
    "Where so many were not measured, the curve is stretched to them by the law of a ring of equal wires."
)
NO_LONGER = (
    "The what-if knobs have moved away from what was measured, so the measurement no longer applies. Set "
    "them back to compare."
)
STRAGGLER_NOTE = (
    "The slowest rank delays the assignment that is shown, DDP's default and the sweep over caps: the "
    "recommended cap is found beside it. The best buckets, wherever they are cut, are found for equal ranks."
)
_WHAT_IFS = {"slowest_rank": "slowest rank", "world_size": "ranks:", "precision": "gradients in"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-!|~$:&])")


class PathRow(NamedTuple):
    """One row of a critical path, ns from the start of backward."""

    words: str
    bucket: int | None
    start_ns: int
    end_ns: int


def plain(text: str) -> str:
    """Text as it is, with nothing in it that markdown would read as markup."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def sentence(text: str) -> str:
    """``plain`` text that begins as a sentence does."""
    return plain(capital(text))


def capital(text: str) -> str:
    """Text that begins as a sentence does."""
    return text[:1].upper() + text[1:]


def lacks_a_part(note: str) -> bool:
    """Whether a report's note says that its figures lack a part of the step."""
    return "not counted" in note


def file_safe(text: str) -> str:
    """A name that is good for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "bucketsim"


def counted(number: int, noun: str) -> str:
    """So many of a thing: ``1 record``, ``1,024 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def family_words(family: str) -> str:
    """What a knob of the search is called on pages."""
    return FAMILY_WORDS.get(family, family)


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return format_percent(part / whole) if whole else "0.0%"


def choice_words(pick: Pick, cap_mb: float | None, first_mb: float | None) -> str:
    """The assignment shown, in a few words."""
    if pick != "cap" or cap_mb is None:
        return PICK_WORDS[pick]
    return f"cap {format_number(cap_mb, 6)} MiB" + (
        f", first {format_number(first_mb, 6)} MiB" if first_mb is not None else ""
    )


def what_if_words(name: str, value: float | int | str) -> str:
    """A what-if in few words: a factor on what was measured, or a value in place of it."""
    factor = (
        f"× {format_number(value, 6)}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else value
    )
    return f"{_WHAT_IFS.get(name, name)} {factor}"


def setting_words(assignment: Assignment) -> str:
    """All that has to be set for an assignment: environment, DDP's arguments, settings of other systems."""
    environment = assignment.requires.get("environment", {})
    words = [f"{name}={value}" for name, value in environment.items()]
    knobs = {**assignment.ddp_kwargs, **assignment.settings}
    if assignment.policy == "explicit" and not knobs:
        return "sim.apply gives DDP these buckets"
    return ", ".join([*words, knob_words(knobs)] if knobs or not words else words)


def path_rows(path: Sequence[PathSpan]) -> list[PathRow]:
    """A path in rows: what the lane does without a gap is one, with its copies and launches counted."""
    rows = []
    for on_lane, spans in groupby(path, key=lambda span: span.kind in _LANE):
        members = list(spans)
        if on_lane:
            rows.append(PathRow(_lane_words(members), None, members[0].start_ns, members[-1].end_ns))
        else:
            rows += [PathRow(PATH_WORDS[one.kind], one.bucket, one.start_ns, one.end_ns) for one in members]
    return rows


def _lane_words(spans: Sequence[PathSpan]) -> str:
    """``backward; 77 copies into buckets 5.75 ms; 1 launch 0.03 ms``: with what each kind takes together."""
    words = []
    for kind in _LANE:
        lengths = [span.end_ns - span.start_ns for span in spans if span.kind == kind]
        if not lengths:
            continue
        if kind == "backward":
            words.append(PATH_WORDS[kind])
        else:
            count = f"{len(lengths)} {_PLURALS[kind] if len(lengths) > 1 else PATH_WORDS[kind]}"
            words.append(f"{count} {format_ms(sum(lengths))}")
    return "; ".join(words)


def robust_sentence(robust: Robust) -> str:
    """What was drawn, how much steps vary, and what was not known."""
    words = "One step, as given: nothing that varies was recorded."
    if robust.draws > 1:
        words = (
            f"{robust.draws} steps with seed {robust.seed}, the same for every candidate: "
            f"{robust.calibrations} machine{'s' if robust.calibrations > 1 else ''} that calibration and "
            f"estimate allow, each with {robust.draws // robust.calibrations} steps; "
            f"{robust.recorded_iterations} iterations were recorded."
        )
    if robust.noise_ns is not None:
        words += f" One step of DDP's default varies by {format_ms(robust.noise_ns)}."
    if robust.not_known:
        words += f" Not known, and taken as exact: {'; '.join(robust.not_known)}."
    return words


def overlay_caption(since: set[str]) -> str:
    """How to read the bars, and where they begin."""
    begin = " or ".join(sorted(since))
    why = "" if since == {"start"} else " (this backend cannot tell when a collective starts)"
    return (
        f"A row a bucket, from its {begin}{why} to its end: predicted above, measured (hatched) below, "
        "medians of the traced iterations. Hover for the error of a bucket's end."
    )


def estimated_sentence(workload: Workload) -> str | None:
    """A warning where no profile stands behind the times."""
    if not workload.estimated:
        return None
    if workload.band is None:
        return "Estimated: no profile stands behind these times."
    low, high = workload.band
    how = workload.provenance.get("band")
    width = (
        f"a band of {format_number(low, 6)} to "
        f"{format_number(high, 6)}{f': {how}' if isinstance(how, str) else ''}"
    )
    return f"Estimated: no profile stands behind these times; {width}."


def verdict_words(agreement: Agreement) -> str:
    """The pass rule's outcome in one line; of a trace, which neither passes nor fails, what was tested."""
    if agreement.passed is None:
        return f"{_ends_words(agreement)}; {_exposed_words(agreement)}."
    wrong = agreement.order_pairs - agreement.order_right
    order = f"{agreement.order_right} of {agreement.order_pairs} pairs in the right order"
    noise = f", {agreement.order_within_noise} within noise" if agreement.order_within_noise else ""
    why = f"{counted(wrong, 'pair')} not in the predicted order; " if wrong else ""
    return (
        f"{'Passed' if agreement.passed else 'Not passed'}: {why}median step error "
        f"{format_percent(agreement.median_step_error, 2)}, worst "
        f"{format_percent(agreement.worst_step_error, 2)}, {order}{noise}."
    )


def _ends_words(agreement: Agreement) -> str:
    error_ns = agreement.median_bucket_end_error_ns
    if error_ns is None:
        return "The ends of buckets cannot be told"
    relative = agreement.median_bucket_end_error
    return (
        f"Bucket ends: median error "
        f"{format_ms(error_ns)}{'' if relative is None else f', {format_percent(relative)}'}"
    )


def _exposed_words(agreement: Agreement) -> str:
    if agreement.median_exposed_error is None:
        return "no communication was exposed"
    return f"exposed communication: median error {format_percent(agreement.median_exposed_error)}"


def rule_words(agreement: Agreement) -> str:
    """The rule in a sentence, or why there is none."""
    rule = agreement.rule
    return f"The rule: {rule}." if agreement.passed is not None else f"{rule[:1].upper()}{rule[1:]}."


def interval_words(low_ns: int, high_ns: int, *, told: bool) -> str:
    """From low to high in ms; a dash where too few iterations were measured to tell."""
    return f"{low_ns / 1e6:.2f} to {high_ns / 1e6:.2f}" if told else "-"


def knob_words(kwargs: Mapping[str, Any]) -> str:
    """DDP's arguments as one would type them, cut short."""
    text = ", ".join(f"{name}={_short(value)}" for name, value in kwargs.items())
    return text or "nothing to set"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        head = ", ".join(
            format_number(item, 4) if isinstance(item, float) else str(item) for item in value[:3]
        )
        return f"[{head}, … {len(value)} in all]"
    return format_number(value, 6) if isinstance(value, float) else repr(value)
