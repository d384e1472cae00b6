"""The recommendation: the best assignment, its proof, and what each of DDP's knobs reaches."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from sim.engine import recurrence
from sim.engine.bucketing import cap_list
from sim.engine.run import run
from sim.engine.systems import assign, write
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import SLOWDOWNS, Hardware
from sim.nouns.recommendation import Family, Gain, Plateau, Recommendation
from sim.nouns.report import Report
from sim.nouns.workload import Workload
from sim.tuner import exact
from sim.tuner.bound import lower_bound_ns
from sim.tuner.grid import default_caps
from sim.tuner.partitions import Buckets, cut, cut_places, cuts_of, every_partition, runs
from sim.tuner.refine import refine
from sim.tuner.score import Scorer
from sim.units import format_ms
from sim.verdict.metrics import summarize

EXHAUSTIVE_PLACES = 12  # 4,096 partitions
PLATEAU = 0.01
ROUGH_NS = 100  # far more than a rough score is off by; who is this close is played to the ns
NOTHING = 0.001  # of the step: no gain worth a change, whatever is proved about it


def _report(workload: Workload, hardware: Hardware, assignment: Assignment) -> Report:
    return summarize(run(workload, hardware, assignment))


def _best_cap(workload: Workload, scorer: Scorer) -> tuple[Assignment, list[tuple[float, int]]]:
    """The best explicit cap of a grid, and (cap in MiB, sync_end in ns) of the whole grid."""
    rows = []
    best: Assignment | None = None
    for cap in default_caps(workload):
        assignment = assign(workload, bucket_cap_mb=cap)
        rows.append((cap, scorer.sync_end_ns(assignment.bucket_indices)))
        if best is None or rows[-1][1] < scorer.sync_end_ns(best.bucket_indices):
            best = assignment
    assert best is not None
    return best, rows


def _fewest(workload: Workload, scorer: Scorer, buckets: Buckets) -> Buckets:
    """As few buckets as give the same ``sync_end_ns``: neighbours merged while nothing is lost."""
    cuts = cuts_of(workload, buckets)
    if cuts is None:
        return buckets
    merging = True
    while merging:  # what could not be merged may be once others are
        merging = False
        for one in sorted(cuts):
            merged = cut(workload, cuts - {one})
            if scorer.rough_ns(merged) > scorer.sync_end_ns(buckets) + ROUGH_NS:
                continue
            if scorer.sync_end_ns(merged) <= scorer.sync_end_ns(buckets):
                cuts, buckets, merging = cuts - {one}, merged, True
    return buckets


def find_optimum(
    workload: Workload, hardware: Hardware, scorer: Scorer, known: Sequence[Buckets]
) -> tuple[Buckets, bool, str]:
    """The best buckets, whether they are proved optimal, and how (a sentence).

    ``known`` are partitions to start from; the answer is never worse than any of them.
    """
    best = min(known, key=lambda buckets: (scorer.sync_end_ns(buckets), len(buckets)))
    if exact.applies(workload, hardware):
        better, complete = exact.exact_optimum(workload, hardware, scorer.sync_end_ns(best))
        proof = "exact search over all contiguous partitions"
        return better or best, complete, proof if complete else proof + ", cut short"
    if len(cut_places(workload)) <= EXHAUSTIVE_PLACES:
        every = [cut(workload, cuts) for cuts in every_partition(workload)]
        least = min(map(scorer.rough_ns, every))
        every_best = [buckets for buckets in every if scorer.rough_ns(buckets) <= least + ROUGH_NS]
        best = min([best, *every_best], key=lambda buckets: (scorer.sync_end_ns(buckets), len(buckets)))
        return best, True, f"all {len(every)} contiguous partitions simulated"
    starts = [cuts for buckets in known if (cuts := cuts_of(workload, buckets)) is not None]
    unhindered: dict[str, Any] = dict.fromkeys(SLOWDOWNS, 1.0)
    plain = replace(hardware, comm_channels=1, launch_blocks_compute=False, **unhindered)
    if exact.applies(workload, plain):
        # One channel is what two that share a wire amount to: its optimum is a good place to start.
        surrogate, _ = exact.exact_optimum(workload, plain, 2**62)
        if surrogate is not None and (cuts := cuts_of(workload, surrogate)) is not None:
            starts.append(cuts)
    found = refine(workload, scorer, starts)
    best = min([best, found], key=lambda buckets: (scorer.sync_end_ns(buckets), len(buckets)))
    return best, False, "refined by simulation from the best of each family; not proved by search"


def as_assignment(workload: Workload, buckets: Buckets, world_size: int | None = None) -> Assignment:
    """These buckets as an assignment, with the ``bucket_cap_mb_list`` that reaches them where one does."""
    bare = Assignment(
        bucket_indices=buckets,
        bucket_bytes=bucket_bytes(workload, buckets),
        made_for=made_for(workload, world_size),
    )
    caps = cap_list(workload, bare)
    provenance = {"source": "sim.tune", "workload": workload.name}
    if caps is None:
        return replace(bare, provenance=provenance)
    return replace(
        bare,
        ddp_kwargs={"bucket_cap_mb_list": caps},
        requires={"torch": ">=2.11"},
        provenance=provenance,
    )


def _gain(
    workload: Workload,
    hardware: Hardware,
    best: Assignment,
    default: Assignment,
    baseline: Report,
    gain_ns: int,
) -> Gain:
    fraction = gain_ns / baseline.step_ns if baseline.step_ns else 0.0
    low = high = None
    significant = None
    sampled = _sampled(workload)
    if len(sampled) >= 2:
        gains = [
            _sync_end(sample, hardware, default) - _sync_end(sample, hardware, best) for sample in sampled
        ]
        low_value, high_value = np.quantile(gains, [0.025, 0.975])
        low, high = round(float(low_value)), round(float(high_value))
        significant = low > 0
    if gain_ns == 0:
        sentence = "no contiguous assignment that was found is better than DDP's default; keep it"
    elif significant is False:
        sentence = (
            f"no significant difference over the recorded iterations ({format_ms(low or 0)} to "
            f"{format_ms(high or 0)} a step); keep the default"
        )
    elif fraction < NOTHING:
        sentence = f"saves {gain_ns / 1000:.3g} us a step, less than {NOTHING:.1%} of it; keep DDP's default"
    else:
        sentence = f"saves {format_ms(gain_ns)} a step against DDP's default ({fraction:.1%})"
        if low is not None and high is not None:
            sentence += f", {format_ms(low)} to {format_ms(high)} over the recorded iterations"
    return Gain(
        gain_ns=gain_ns,
        fraction=fraction,
        low_ns=low,
        high_ns=high,
        significant=significant if gain_ns else False,
        sentence=sentence,
    )


def _sampled(workload: Workload) -> list[Workload]:
    """The workload as each recorded iteration saw it; one that missed a gradient is left out."""
    made = []
    for sample in workload.samples:
        if None in sample:
            continue
        gradients = tuple(
            replace(gradient, ready_ns=time)
            for gradient, time in zip(workload.gradients, sample, strict=True)
        )
        latest = max((time for time in sample if time is not None), default=0)
        made.append(
            replace(
                workload,
                gradients=gradients,
                ready_order=None,
                samples=(),
                backward_ns=max(workload.backward_ns, latest),
            )
        )
    return made


def _sync_end(workload: Workload, hardware: Hardware, assignment: Assignment) -> int:
    return recurrence.solve(write(workload, hardware, assignment)[-1]).sync_end_ns


def _plateau(rows: list[tuple[float, int]], default_sync_end: int, rest_ns: int) -> Plateau:
    """Caps around the best within 1 % of its step; ``rest_ns`` is the step without ``sync_end``."""
    best_at = min(range(len(rows)), key=lambda at: rows[at][1])
    limit = (rows[best_at][1] + rest_ns) * (1 + PLATEAU) - rest_ns
    low = high = best_at
    while low > 0 and rows[low - 1][1] <= limit:
        low -= 1
    while high < len(rows) - 1 and rows[high + 1][1] <= limit:
        high += 1
    return Plateau(
        tolerance=PLATEAU,
        caps_mb=tuple(cap for cap, sync_end in rows if sync_end <= limit),
        stretches_mb=tuple(
            (caps[0], caps[-1])
            for good, stretch in groupby(rows, key=lambda row: row[1] <= limit)
            if good and (caps := [cap for cap, _ in stretch])
        ),
        low_mb=rows[low][0],
        high_mb=rows[high][0],
        holds_default=default_sync_end <= limit,
        is_flat=all(sync_end <= limit for _, sync_end in rows),
    )


def _order_note(workload: Workload) -> str:
    """What the proof leaves out where buckets of several dtypes or devices could change places."""
    return "" if len(runs(workload)) == 1 else ", buckets launched in the order in which they are ready"


def tune(workload: Workload, hardware: Hardware) -> Recommendation:
    """The best contiguous assignment, its certificate, and what each of DDP's knobs reaches.

    Contiguous means: in ready order, within each dtype and device. Where the exact search applies
    (one channel, no slow-downs, launches beside the compute lane) or all partitions can be simulated,
    the answer is proved; otherwise it is refined by simulation and ``lower_bound_ns`` says how far from
    the optimum it can be at most. Reports come from the SimPy engine.
    """
    scorer = Scorer(workload, hardware)
    default = assign(workload)
    best_cap, rows = _best_cap(workload, scorer)
    assignments = {
        "default": default,
        "bucket_cap_mb": best_cap,
        "per-parameter": assign(workload, "per-parameter"),
        "single": assign(workload, "single"),
    }
    known = [assignment.bucket_indices for assignment in assignments.values()]
    buckets, proved, proof = find_optimum(workload, hardware, scorer, known)
    best = as_assignment(workload, _fewest(workload, scorer, buckets), hardware.world_size)
    assignments["bucket_indices"] = best
    if "bucket_cap_mb_list" in best.ddp_kwargs:
        assignments["bucket_cap_mb_list"] = best
    reports = {name: _report(workload, hardware, assignment) for name, assignment in assignments.items()}
    report, baseline = reports["bucket_indices"], reports["default"]
    bound = min(lower_bound_ns(workload, hardware), report.sync_end_ns)
    if not proved and report.sync_end_ns == bound:
        proved, proof = True, "meets the lower bound that needs no search"
    gap = (report.sync_end_ns - bound) / bound if bound else 0.0
    return Recommendation(
        assignment=best,
        report=report,
        baseline=baseline,
        lower_bound_ns=bound,
        proved_optimal=proved,
        proof=f"{proof}{_order_note(workload)}; {gap:.2%} above the lower bound that needs no search",
        families={
            name: Family(
                assignment=assignment,
                report=reports[name],
                regret_ns=reports[name].step_ns - report.step_ns,
            )
            for name, assignment in assignments.items()
        },
        gain=_gain(workload, hardware, best, default, baseline, baseline.step_ns - report.step_ns),
        plateau=_plateau(rows, baseline.sync_end_ns, baseline.step_ns - baseline.sync_end_ns),
        provenance={"source": "sim.tune", "workload": workload.name, "hardware": hardware.name},
    )
