"""Words of the Validate page: kinds of records, the claim in a sentence, and what each figure shows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median

from app.figures.order import OrderData
from app.figures.parity import ParityPoint
from app.shelf import Score
from app.words.labels import counted
from sim.nouns.comparison import Agreement, Attribution
from sim.nouns.measurement import Mode
from sim.nouns.records import Record
from sim.units import format_ms, format_percent

KINDS: dict[str, str] = {
    "measured": "caps on even machines",
    "families": "what each knob reaches",
    "contention": "slow ranks and ports",
    "systems": "switches and other systems",
    "claims": "small and large models",
    "training": "real models, trained",
    "live": "your directory",
    "upload": "uploaded",
}
MODES: dict[Mode, str] = {"paced": "paced replay", "model": "real model", "trace": "read from a trace"}
MODE_WORDS: dict[Mode, str] = {
    "paced": "Paced replay: real DistributedDataParallel, collectives and copies on real ranks; backward "
    "itself is replayed, each gradient at the time that the workload recorded. What is tested is "
    "communication, its overlap and its order, not how long layers take to compute.",
    "model": "Real model: the user's own model was trained on real ranks; nothing was replayed.",
    "trace": "Read from a trace: steps of the job itself. They are predicted from their own parts, so they "
    "neither pass nor fail.",
}
LOOKS: dict[str, str] = {
    "steps": "Steps",
    "buckets": "Buckets",
    "order": "Order",
    "parity": "Parity",
    "ends": "Parity of bucket ends",
    "iterations": "Iterations",
    "why": "Where the error comes from",
}
VERDICTS: dict[bool | None, str] = {True: "passed", False: "not passed", None: "no verdict"}
MECHANISM_WORDS: dict[str, str] = {
    "compute_ns": "the compute lane (backward itself)",
    "copy_ns": "copies into and out of buckets",
    "launch_ns": "launches of collectives",
    "communication_ns": "communication",
    "wait_ns": "waiting and what is left",
}

HELP: dict[str, str] = {
    "show": "Records: runs that are finished, against the model. Live: a job that writes into the directory "
    "given to `bucketsim dash --watch DIR`.",
    "run": "A record holds a workload, the hardware calibrated before it, and what real ranks did with each "
    "candidate assignment. Click a row above, or a point, to choose it too.",
    "text": "Shows records with all of these words in name, workload or what was tested.",
    "mode": "How steps came about: paced replays, real models, or read from a trace.",
    "passed": "By the rule that each record states. Records read from traces have no verdict.",
    "median": "Median over candidates of |predicted - measured| / measured step.",
    "worst": "The largest |predicted - measured| / measured step of any candidate.",
    "order": "Pairs of candidates whose measured 95 % intervals are apart and which are predicted in the "
    "right order, of all such pairs.",
    "tests": "Hosts and their rate; slow ranks where there were any.",
    "upload": "workload.json, hardware.json and every measurement-*.json of a directory that `bucketsim "
    "validate` wrote. Uploads are not in the URL.",
    "look": "Which picture of this record to draw.",
    "candidate": "One measured assignment of gradients to buckets.",
}

INTRO = (
    "Every point is one candidate: its step on real ranks, and what the model says of it from hardware that "
    "was calibrated apart. Each record tells below whether the model can have seen it."
)
LIVE_NONE = (
    "No directory is watched. `bucketsim dash --watch DIR` shows what a running job writes into `DIR`: put "
    '`with sim.record(ddp_model, "DIR"):` around your training loop, or let `bucketsim validate` write its '
    "record there."
)
NO_RECORDS = (
    "No measured record is at hand. `bucketsim validate` replays assignments on real ranks and makes one; "
    "`bucketsim dash --traces DIR` or `--watch DIR` shows it here, or upload its files above."
)
UPLOAD_TITLE = "Score a record of your own"
UPLOAD_LABEL = "All files of one record"
NO_RECORD_IN_IT = (
    "These files hold no measured record. It takes a workload, a hardware and the measurement-*.json that "
    "`bucketsim validate` wrote beside them, or a trace of a job."
)
NONE_LEFT = "No record is left by these filters."
COPIES_NOTE = "Copies are switched off in the model: this is an ablation, not the prediction."
PARITY_CAPTION = (
    "On the line: predicted exactly. Above it: predicted too long. "
    "Bars: 95 % interval of the measured median."
)
ENDS_CAPTION = (
    "The end of every bucket's collective, from the start of backward, of all candidates. A colour is a "
    "bucket's number. Only iterations with the recording hook see buckets."
)
ITERATIONS_CAPTION = (
    "A row a candidate; within it, iterations from top to bottom in the order in which they ran: a slope is "
    "drift, a point far off an outlier. Long orange bar: median; blue: prediction. Iterations with the "
    "recording hook see buckets and pay for it; they are not in the median."
)
ATTRIBUTION_CAPTION = (
    "The prediction is turned into the measurement one mechanism at a time; each bar is what its "
    "turn changed, and they add up to the error. Left: predicted too short."
)
ORDER_CAPTION = (
    "Fastest at the top. A pair counts only where the measured 95 % intervals are apart: of the others the "
    "measurement itself cannot tell which is faster."
)


def claim_sentence(scores: Sequence[Score]) -> str:
    """All records in one sentence: how many, how far off, how many passed."""
    judged = [score for score in scores if score.passed is not None]
    errors = [abs(point.error) for score in judged for point in score.points]
    traces = len(scores) - len(judged)
    left_out = f" {counted(traces, 'record')} read from traces left out: no verdict." if traces else ""
    if not errors:
        return f"No steps to judge.{left_out}"
    passed = sum(score.passed is True for score in judged)
    right = sum(score.order_right for score in judged)
    pairs = sum(score.order_pairs for score in judged)
    return (
        f"{counted(len(errors), 'candidate')} in {counted(len(judged), 'record')}: median step error "
        f"{format_percent(median(errors), 2)}, worst {format_percent(max(errors))}; {right} of {pairs} "
        f"pairs in the right order; "
        f"{passed} of {counted(len(judged), 'record')} passed the stated rule.{left_out}"
    )


def worst_sentence(points: Sequence[ParityPoint]) -> str:
    """Which step is the farthest off."""
    worst = max(points, key=lambda point: abs(point.error))
    return f"Farthest off: {worst.name} in {worst.record}, {format_percent(worst.error, sign=True)}."


def unseen_sentence(record: Record) -> str:
    """Whether the model can have seen these steps, as far as the files tell.

    A measurement's date is that at which it was written, behind its steps; so an earlier calibration is told
    as one before the files of the steps, not before the steps.
    """
    if any(one.mode == "trace" for one in record.candidates):
        return (
            "Forward, backward and ready times are the trace's own: this is no prediction of an unseen run."
        )
    provenance = record.hardware.provenance
    if "anchored" in provenance:
        return (
            "The hardware was anchored: one measured step went into it. Where that step is among the rows "
            "below, it has been seen; the others have not."
        )
    made = _instant(provenance.get("date"))
    dates = [_instant(one.provenance.get("date")) for one in record.candidates]
    known = [date for date in dates if date is not None]
    if provenance.get("source") != "bucketsim calibrate" or made is None or len(known) < len(dates):
        return (
            "The files do not say how and when the hardware came about and these runs were made, so they "
            "cannot show that these runs are unseen."
        )
    first = min(known, default=made)
    if made >= first:
        which = "these runs were" if made >= max(known, default=made) else "some of these runs were"
        return (
            f"The hardware was calibrated after {which} written ({_minute(made)}; the first is of "
            f"{_minute(first)}), so the files cannot show that they are unseen."
        )
    return (
        f"Unseen: the hardware was calibrated from micro-runs at {_minute(made)}, before the first of these "
        f"measurements was written ({_minute(first)}); no number in the model was fitted to them."
    )


def _instant(date: object) -> datetime | None:
    """A date of a file; None where it is none, or does not say in which time zone."""
    try:
        found = datetime.fromisoformat(date) if isinstance(date, str) else None
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found.astimezone(UTC)


def _minute(date: datetime) -> str:
    return f"{date:%Y-%m-%d %H:%M} UTC"


def order_sentence(data: OrderData) -> str:
    """What the order of all pairs came to, with the pairs that are wrong by name."""
    apart = len(data.right) + len(data.wrong)
    noise = f"; {counted(len(data.within_noise), 'pair')} within noise" if data.within_noise else ""
    if not apart:
        return f"No pair of candidates can be told apart by measurement{noise}."
    words = f"{len(data.right)} of {counted(apart, 'pair')} in the right order{noise}."
    if data.wrong:
        named = "; ".join(f"{fast} was faster than {slow}" for fast, slow in data.wrong[:3])
        more = f"; and {len(data.wrong) - 3} more" if len(data.wrong) > 3 else ""
        words += f" Not in the predicted order: {named}{more}."
    return words


def mechanism_sentence(rows: Sequence[tuple[str, Attribution]]) -> str | None:
    """The mechanism that the largest error comes from, and the largest over all candidates."""
    if not rows:
        return None
    name, parts = max(rows, key=lambda row: abs(row[1].total_ns))
    largest = max(MECHANISM_WORDS, key=lambda part: abs(getattr(parts, part)))
    overall = max(MECHANISM_WORDS, key=lambda part: median(abs(getattr(one, part)) for _, one in rows))
    typical = median(abs(getattr(one, overall)) for _, one in rows)
    known = f"Of {len(rows)} candidates whose buckets were seen the" if len(rows) > 1 else "The"
    words = (
        f"{known} largest error is {name}'s, {_signed(parts.total_ns)}; most of it is "
        f"{MECHANISM_WORDS[largest]}, {_signed(getattr(parts, largest))}."
    )
    if len(rows) > 1:
        words += f" Over all of them it is {MECHANISM_WORDS[overall]}, {format_ms(round(typical))} by median."
    return words


def _signed(ns: int) -> str:
    return f"{format_ms(abs(ns))} too {'short' if ns < 0 else 'long'}"


def targets_sentence(agreement: Agreement) -> str | None:
    """How many of the stricter targets were met; None where none are set."""
    if not agreement.targets:
        return None
    met = sum(check.met is True for check in agreement.targets)
    missed = ", ".join(check.name for check in agreement.targets if check.met is False)
    return (
        f"Targets, set for paced replays in the box: {met} of {len(agreement.targets)} met"
        f"{f'; missed: {missed}' if missed else ''}."
    )


def origin_lines(record: Record) -> list[str]:
    """Where a record comes from: machine, versions and dates, as far as its files tell."""
    first = record.candidates[0] if record.candidates else record.measurements[0]
    lines = [
        ("workload", record.workload.name, record.workload.provenance),
        ("hardware", record.hardware.name, record.hardware.provenance),
        ("measured", f"{first.backend}, {first.world_size} ranks", {**first.environment, **first.provenance}),
    ]
    return [f"{what}: {name}{_told(said)}" for what, name, said in lines]


def _told(said: dict[str, object]) -> str:
    names = ("source", "date", "place", "cpu", "gpu", "device", "platform", "python", "torch", "nccl", "cuda")
    found = [f"{name} {said[name]}" for name in names if isinstance(said.get(name), (str, int))]
    return f" · {' · '.join(found)}" if found else ""


def unscored_words(left: int, count: int) -> str:
    """Why the picture of all records is not there yet."""
    return f"{count - left} of {count} records are scored; the totals are told when all are."


def filtered_words(shown: int, every: int) -> str:
    """How many records the filters leave."""
    if shown == every:
        return counted(every, "record")
    return f"{shown} of {counted(every, 'record')} shown: filtered"


def best_words(agreement: Agreement) -> str:
    """The best by measurement and by prediction."""
    if agreement.best_measured == agreement.best_predicted:
        return f"Best measured and best predicted: {agreement.best_measured}."
    near = "within noise of it" if agreement.best_within_noise else "not within noise of it"
    return f"Best measured: {agreement.best_measured}; best predicted: {agreement.best_predicted}, {near}."
