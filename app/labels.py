"""Words: what things are called, how they are defined, sentences made of figures."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from sim.nouns.comparison import Agreement
from sim.nouns.recommendation import Plateau
from sim.nouns.workload import Workload

Pick = Literal[
    "default",
    "cap",
    "recommended",
    "single",
    "per-parameter",
    "per-parameter-sync",
    "per-parameter-async",
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook",
    "zero1",
    "zero2",
]
PICKS: tuple[Pick, ...] = get_args(Pick)
PICK_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "cap": "explicit cap",
    "recommended": "recommended",
    "single": "single bucket",
    "per-parameter": "one per parameter",
    "per-parameter-sync": "not DDP: per parameter, after backward",
    "per-parameter-async": "not DDP: per parameter, from hooks",
    "after-backward": "not DDP: buckets after backward",
    "arrival-counted": "not DDP: arrival-counted buckets",
    "flat-views": "not DDP: gradients as views of flat storage",
    "last-hook": "not DDP: last-parameter hooks",
    "zero1": "DeepSpeed ZeRO-1",
    "zero2": "DeepSpeed ZeRO-2",
}

FAMILY_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "bucket_cap_mb": "bucket_cap_mb, one number",
    "bucket_cap_mb_list": "bucket_cap_mb_list, one a bucket",
    "bucket_indices": "any buckets in ready order",
    "per-parameter": "one bucket per parameter",
    "single": "one bucket in all",
}

HELP: dict[str, str] = {
    "step": "Forward + loss + backward with synchronisation + optimizer, and what comes before forward.",
    "exposed": "End of synchronisation minus a plain backward: all that synchronising gradients adds, "
    "be it waiting, copies, launches or interference.",
    "overlap": "Time in which the compute lane and at least one collective are busy, over the time in "
    "which at least one collective is busy.",
    "gain": "Step under DDP's default minus step under the assignment shown.",
    "pick": "Which assignment the page shows. DDP's default is not `bucket_cap_mb=25`: it has a small "
    "first bucket of 1 MiB, which an explicit cap has not.",
    "cap": "`bucket_cap_mb`, in MiB. A bucket is closed by the gradient that reaches the cap.",
    "first": "A cap for the first bucket alone, in MiB. Empty: none, as with an explicit `bucket_cap_mb`.",
    "bandwidth": "Divides the part of each collective's time above the curve's shortest.",
    "latency": "Multiplies the shortest time on the curve, what a collective of no bytes would take.",
    "backward": "Multiplies all times of backward: 0.5 is a device twice as fast.",
    "copies": "Off: predict as if copying gradients into and out of buckets were free, to see its effect.",
    "start": "Measured runs hold workload, hardware and what real ranks did. Uploads are not in the URL.",
    "upload": "JSON of ours, up to 50 MB: what `bucketsim record` and `bucketsim calibrate` write.",
}

TIMELINE_CAPTION = (
    "The same colour is the same bucket on every figure. Hatched: exposed, after backward has ended. "
    "Dotted: copies into a bucket. Hover for a bucket's life; drag to zoom, double-click to go back."
)
SWEEP_CAPTION = (
    "Left: DDP's default, a point of its own. Dashed: its step. Dotted: the step of the recommended "
    "assignment. Shaded: caps within {tolerance:.0%} of the best. Click a point to see its timeline."
)
NO_LONGER = (
    "The knobs have moved away from what was measured (bandwidth, latency or backward is not 1), so "
    "the measurement no longer applies. Set them back to compare."
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-!|~$:&])")


def plain(text: str) -> str:
    """Text as it is, with nothing in it that markdown would read as markup."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def file_safe(text: str) -> str:
    """A name that is good for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "bucketsim"


def mib(value: float) -> str:
    """A number of MiB to three digits, never in powers of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return f"{part / whole:.1%}" if whole else "0.0%"


def choice_words(pick: Pick, cap_mb: float | None, first_mb: float | None) -> str:
    """The assignment shown, in a few words."""
    if pick != "cap" or cap_mb is None:
        return PICK_WORDS[pick]
    return f"cap {cap_mb:g} MiB" + (f", first {first_mb:g} MiB" if first_mb is not None else "")


def plateau_sentence(plateau: Plateau) -> str:
    """What the flat part of the curve means for the reader."""
    spans = [mib(low) if low == high else f"{mib(low)} to {mib(high)}" for low, high in plateau.stretches_mb]
    span = (", ".join(spans[:-1]) + " and " if len(spans) > 1 else "") + f"{spans[-1]} MiB"
    inside = "DDP's default is among them" if plateau.holds_default else "DDP's default is not"
    if plateau.is_flat:
        return f"The curve is flat: caps of {span} are within {plateau.tolerance:.0%} of the best; {inside}."
    return f"Caps of {span} are within {plateau.tolerance:.0%} of the best; {inside}."


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
    band = workload.band
    width = f", good to a factor of {band[0]:g} to {band[1]:g}" if band is not None else ""
    return f"Estimated: no profile stands behind these times{width}."


def verdict_words(agreement: Agreement) -> str:
    """The pass rule's outcome in one line."""
    order = f"{agreement.order_right} of {agreement.order_pairs} pairs in the right order"
    noise = f", {agreement.order_within_noise} within noise" if agreement.order_within_noise else ""
    return (
        f"{'Passed' if agreement.passed else 'Not passed'}: median step error "
        f"{agreement.median_step_error:.2%}, worst {agreement.worst_step_error:.2%}, {order}{noise}."
    )


def knob_words(kwargs: Mapping[str, Any]) -> str:
    """DDP's arguments as one would type them, cut short."""
    text = ", ".join(f"{name}={_short(value)}" for name, value in kwargs.items())
    return text or "nothing to set"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        head = ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value[:3])
        return f"[{head}, … {len(value)} in all]"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
