"""Words of the Compare page."""

from collections.abc import Sequence

from app.words import labels
from sim.nouns.difference import Change, PartName
from sim.units import format_ms, format_size

BEST_CAP = "best-cap"
BEST_CAP_WORDS = "best round bucket_cap_mb"
PICK_WORDS: dict[str, str] = {**labels.PICK_WORDS, BEST_CAP: BEST_CAP_WORDS}
ABOVE = "as above"

PART_WORDS: dict[PartName, str] = {
    "compute": "computing alone",
    "copy_in": "copies into buckets",
    "launch": "launches",
    "find_unused": "unused parameters",
    "accumulate": "adding micro-batches",
    "latency": "latency of collectives",
    "bytes": "bytes on the wire",
    "copy_out": "copies back",
    "interference": "interference",
    "straggler": "slowest rank",
}

HELP: dict[str, str] = {
    "candidates": "How many are compared, 2 to 6. All are compared with A.",
    "pick": "How the gradients are cut. `best buckets found` and `best round bucket_cap_mb` are searched "
    "for on the candidate's own machine.",
    "machine": "The hardware above, another bundled one, or a ready-made cluster by the cost model.",
    "hosts": "How many of them the cluster has.",
    "against": "Which candidate is held against A below.",
    "step": "Forward, loss, backward with synchronisation, optimizer, and what comes before forward.",
    "gain": "A's step minus this candidate's: positive is faster.",
    "speedup": "A's step over this candidate's.",
    "exposed": "End of synchronisation minus a plain backward: all that synchronising gradients adds. Of "
    "several micro-batches it is that of the last.",
    "overlap": "Time in which the compute lane and a collective are busy, over the time in which a "
    "collective is busy; of several micro-batches, in the last.",
    "largest": "The largest bucket, in bytes that travel.",
    "collectives": "How many a step launches: in all its micro-batches, before forward, and after "
    "synchronisation such as ZeRO's all-gather.",
    "sent": "What all of these collectives carry, each counted once.",
    "micro_batches": "How many forward and backward passes a step has. Steps of different numbers are not "
    "the same work.",
    "memory": "The most that buckets hold at once on one rank, beside the gradients.",
    "note": "Why a candidate could not be played.",
}
ELSEWHERE = (
    "Not in force here: Tune's what-ifs ({what_ifs}). Each candidate has a machine of its own, with its "
    "what-ifs, under Machine."
)
TIMELINE_CAPTION = (
    "All candidates on one axis. The same colour is the same bucket number of a candidate. Hatched: exposed, "
    "after its backward has ended. Hover for a bucket's life; drag to zoom, double-click to go back."
)
PARTS_CAPTION = (
    "Each step is built up from computing alone by one mechanism after the other, in a fixed order; a part "
    "is what its mechanism adds to the step beyond what hides behind backward. The bars add up to the "
    "difference, to the nanosecond. Left: shorter."
)
MAP_CAPTION = (
    "Gradients in the order in which they become ready, as wide as they are large; a colour is a bucket. "
    "One sees the cuts."
)
COMPUTED = (
    "Nobody measured {machines}: collectives are computed by the cost model, backward stays as recorded, and "
    "copies, launches and interference are free there."
)
NOT_MEASURED = (
    "No candidate was measured here: no measured run belongs to this workload and hardware with these very "
    "buckets. Start from a measured run, or measure your own with `bucketsim validate`."
)
_AXIS_LENGTH = 28  # characters: what a narrow window has room for beside a figure
_CAUSE_WORDS = {
    "assignment": "by the assignment",
    "machine": "by the machine",
    "assignment and machine": "by assignment and machine together",
}


def short(name: str) -> str:
    """A candidate's name for an axis; its letter keeps it apart from the others."""
    return name if len(name) <= _AXIS_LENGTH else f"{name[: _AXIS_LENGTH - 1]}…"


def gain_words(gain_ns: int, base_ns: int) -> str:
    """How much faster, in a few words."""
    if not gain_ns:
        return "as fast as A"
    return f"{format_ms(abs(gain_ns))} ({labels.share(abs(gain_ns), base_ns)}) " + (
        "faster than A" if gain_ns > 0 else "slower than A"
    )


def fastest_sentence(names: Sequence[str], steps_ns: Sequence[int]) -> str:
    """Which candidate wins; ``names`` and ``steps_ns`` begin with A's."""
    best = min(range(len(steps_ns)), key=steps_ns.__getitem__)
    if best == 0 or steps_ns[best] == steps_ns[0]:
        return f"None is faster than {names[0]}."
    return f"{names[best]} is fastest: {gain_words(steps_ns[0] - steps_ns[best], steps_ns[0])}."


def lacking_sentence(name: str, note: str, uncounted_bytes: int) -> str:
    """That a candidate's step is longer than told, and what travels in the part that it lacks."""
    return (
        f"{name} takes longer than it says here: {note}. {format_size(uncounted_bytes)} of what it sends are "
        "theirs, which are in no timeline."
    )


def syncs_each_sentence(name: str, exposed_ns: Sequence[int]) -> str:
    """Of how many micro-batches the exposed communication of a candidate is."""
    return (
        f"{name} reduces in {len(exposed_ns)} micro-batches: {format_ms(sum(exposed_ns))} are exposed, "
        f"{format_ms(exposed_ns[-1])} in the last, of which the timeline and the overlap are."
    )


def unlike_sentence(names: Sequence[str], steps_ns: Sequence[int], micro_batches: Sequence[int]) -> str:
    """That steps of different numbers of micro-batches are not the same work; the time of one in each."""
    told = "; ".join(
        f"{name}: {count} a step, {format_ms(round(step / count))} each"
        for name, step, count in zip(names, steps_ns, micro_batches, strict=True)
    )
    return f"These steps have different numbers of micro-batches, so they are not the same work. {told}."


def change_words(change: Change) -> str:
    """``-4.20 ms by the assignment``."""
    sign = "+" if change.change_ns > 0 else "-" if change.change_ns < 0 else ""
    return f"{sign}{format_ms(abs(change.change_ns))} {_CAUSE_WORDS[change.cause]}"
