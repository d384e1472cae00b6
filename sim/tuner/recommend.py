"""The recommendation: the best assignment, its proof, what each knob reaches, and whether it matters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import get_args

from sim.costs.doubts import doubts_about, is_refuted
from sim.costs.own_costs import told_unmeasured
from sim.errors import InputError
from sim.metrics.critical_path import critical_path
from sim.metrics.step import step_ns, summarize
from sim.nouns.assignment import DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.checks import at_least
from sim.nouns.hardware import Hardware
from sim.nouns.memory import MemoryPoint
from sim.nouns.path import PathSpan
from sim.nouns.recommendation import Family, Gain, Recommendation
from sim.nouns.report import Report
from sim.nouns.robust import Criterion
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.progress import listened_to, tell
from sim.tuner.reach import memory_limit as memory
from sim.tuner.reach.cap_layouts import find_cap_list
from sim.tuner.reach.families import (
    DEFAULT,
    Families,
    default_buckets,
    find_ddp_families,
    find_families,
)
from sim.tuner.reach.plateau import find_plateau
from sim.tuner.reach.size_reach import Reach
from sim.tuner.search.as_searched import Searched
from sim.tuner.search.merges import bounded, notes_on, over_merges
from sim.tuner.search.optimum import Optimum, find_optimum
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem
from sim.tuner.search.score import Scorer
from sim.tuner.setting import find_setting
from sim.tuner.spread.assessment import Pool, assess, widen
from sim.tuner.spread.draws import draw
from sim.tuner.spread.gain import DEFAULT_WORDS, choose, doubted, judge_gain
from sim.tuner.spread.judgement import Judge
from sim.tuner.sweeps.grid import sweep
from sim.units import format_percent, format_size

IN_USE = "in use"  # the buckets of a recorded job, where they are not DDP's default
ANY_BUCKETS = "bucket_indices"  # the family of all partitions, each of which sim.apply can set
CAP_LIST = "bucket_cap_mb_list"
OF_SINGLE_DRAWS = 3  # optima of single draws that join the pool of candidates
LITTLE_EFFORT = 0.2  # of a whole search, for the optimum of each of these draws


def as_assignment(problem: Problem, buckets: Buckets) -> Assignment:
    """These buckets as an assignment, with the ``bucket_cap_mb_list`` that reaches them where one does."""
    workload = problem.workload
    sizes = bucket_bytes(workload, buckets)
    caps = find_cap_list(problem, buckets, sizes)
    return Assignment(
        bucket_indices=buckets,
        bucket_bytes=sizes,
        ddp_kwargs={} if caps is None else {CAP_LIST: caps},
        requires={} if caps is None else {"torch": ">=2.11"},
        made_for=made_for(workload, problem.hardware.world_size),
        provenance={"source": "sim.tune", "workload": workload.name},
    )


def tune(
    workload: Workload,
    hardware: Hardware,
    *,
    criterion: Criterion = "nominal",
    seed: int = 0,
    draws: int = 400,
    max_bucket_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recommendation:
    """The best contiguous assignment, its certificate, what each knob can reach, and whether it matters.

    Contiguous means: in ready order, within each dtype and device. On one channel that nothing stretches or
    blocks, or where all partitions can be simulated, the answer is proved; otherwise it is refined by
    simulation and ``lower_bound_ns`` says how far from the optimum it can be at most.

    Args:
        workload: its ``samples`` say how iterations vary. Where it was recorded, everything is played with
            the switches of its ``job``, and gains are against the buckets that the job had, unless these are
            those of DDP's default.
        hardware: its ``spread`` says how all-reduces vary, and how well they were measured.
        criterion: what is recommended: the best of the step as given (``nominal``), or the best over the
            distribution of steps, by ``mean`` or by 95th percentile (``p95``).
        seed: of that distribution.
        draws: how many steps are drawn from it.
        max_bucket_bytes: the largest bucket that is allowed, in parameter bytes.
        memory_limit_bytes: the most that buckets may hold at once, on one rank.
        progress: told what comes next, between parts of some milliseconds each, in this thread; what it
            raises ends the search.

    Raises:
        InputError: an argument that is not legal, or a limit that no assignment keeps to.
        NotModelledError: a workload that DDP does not train as it is.
    """
    with listened_to(progress):
        asked = Searched(workload, hardware)
        return _recommend(asked, criterion, seed, draws, max_bucket_bytes, memory_limit_bytes)


def _recommend(
    asked: Searched,
    criterion: Criterion,
    seed: int,
    draws: int,
    max_bucket_bytes: int | None,
    memory_limit_bytes: int | None,
) -> Recommendation:
    if criterion not in get_args(Criterion):
        raise InputError(f"criterion: {criterion!r} is not legal; give one of {get_args(Criterion)}")
    at_least("seed", seed, 0)
    at_least("draws", draws, 1)
    at_least("memory_limit_bytes", memory_limit_bytes, 0)
    scorer, workload, hardware = asked.scorer, asked.workload, asked.hardware
    limit = _largest_allowed(workload, max_bucket_bytes)
    found = _as_used(asked, find_families(scorer, limit))
    in_use = asked.in_use
    default = found.reached[DEFAULT].assignment if in_use is None else in_use
    compared = DEFAULT if in_use is None else IN_USE
    found = _within(found, asked, limit, memory_limit_bytes)
    ddp = {
        name: reach.assignment
        for name, reach in found.reached.items()
        if reach.assignment.policy in DDP_POLICIES  # other systems are not played by DDP's rules
    }
    known = [ddp[DEFAULT].bucket_indices] if DEFAULT in ddp else []
    optimum = _search(scorer, known, ddp.values, limit)
    nominal = asked.as_used(as_assignment(scorer.problem, optimum.buckets))
    misfit = _misfit(asked, nominal, memory_limit_bytes)
    if misfit is not None:
        raise InputError(f"memory_limit_bytes: {misfit}")

    tell("playing the answer")
    timeline = asked.simulate(nominal)
    tell("playing what is compared with")
    baseline_timeline = asked.simulate(default)
    baseline = summarize(baseline_timeline)
    rest_ns = asked.rest_ns(baseline.step_ns, default)
    distribution = replace(draw(scorer.problem, draws, seed), times=asked.times)

    def optimise(drawn_workload: Workload, drawn_hardware: Hardware) -> Assignment:
        drawn = Scorer(drawn_workload, drawn_hardware).for_search
        buckets = find_optimum(drawn, [optimum.buckets], limit, LITTLE_EFFORT).buckets
        return asked.as_used(as_assignment(scorer.problem, buckets))

    # What exceeds a limit is compared with, and never recommended.
    is_over = _over(asked, default, limit, memory_limit_bytes) is not None
    barred = frozenset({compared} if is_over else ())
    pool = Pool({**ddp, compared: default, ANY_BUCKETS: nominal}, compared, ANY_BUCKETS, barred)
    if len(distribution) > 1:
        pool = widen(pool, distribution, optimise, OF_SINGLE_DRAWS)
    robust = assess(pool, distribution, rest_ns=rest_ns, criterion=criterion)
    wanted = {"nominal": ANY_BUCKETS, "mean": robust.mean_choice, "p95": robust.p95_choice}[criterion]
    name = wanted
    if is_refuted(hardware) and not barred:
        name = compared  # nothing is known of the machine that trains
    elif criterion != "p95" and not barred:
        name = choose(
            robust,
            wanted,
            compared,
            step_ns=summarize(asked.simulate(pool.candidates[wanted], "analytic")).step_ns,
            default_step_ns=baseline.step_ns,
        )
    best = pool.candidates[name]
    reports = {compared: baseline, ANY_BUCKETS: summarize(timeline)}
    report = reports[ANY_BUCKETS]
    if best is not nominal:
        timeline = asked.simulate(best)
        report = summarize(timeline)

    def told_of(family: str, reach: Reach) -> Family:
        tell(f"playing the best of {family}")
        known = reports.get(family) or summarize(asked.simulate(reach.assignment, "analytic"))
        return _family(reach, known, report.step_ns)

    any_buckets = Reach(assignment=nominal, complete=optimum.is_proved, how=optimum.proof)
    families = {
        family: told_of(family, reach)
        for family, reach in {**found.reached, ANY_BUCKETS: any_buckets}.items()
    }
    if CAP_LIST in nominal.ddp_kwargs:
        families[CAP_LIST] = families[ANY_BUCKETS]
    gain = judge_gain(
        robust,
        name,
        step_ns=report.step_ns,
        default_step_ns=baseline.step_ns,
        default_is_allowed=not barred,
        against=_against(compared),
        instead_of=wanted if name == compared != wanted else None,
    )
    doubts = doubts_about(workload, hardware)
    judge = Judge(distribution, robust, best, step_ns=report.step_ns, rest_ns=rest_ns)
    plain, default_is_alike = baseline, False
    if in_use is not None and DEFAULT in families:
        plain = families[DEFAULT].report
        default_is_alike = judge.is_as_good(families[DEFAULT].assignment, plain.step_ns)
    shown_gain = doubted(bounded(gain, workload), workload, hardware)
    plateau = find_plateau(
        found.cap_rows,
        judge,
        shown_gain if in_use is None else replace(gain, significant=not default_is_alike),
        default_step_ns=plain.step_ns,
        default_is_allowed=DEFAULT in ddp,
        max_bytes=limit,
    )
    setting = None
    if max_bucket_bytes is None and memory_limit_bytes is None:
        tell("sweeping caps")
        setting = find_setting(
            sweep(workload, hardware),
            default_ns=baseline.step_ns,
            best_ns=report.step_ns,
            gain=shown_gain,
            plateau=plateau,
        )
    return Recommendation(
        assignment=replace(best, made_for=made_for(workload, hardware.world_size)),
        report=report,
        baseline=baseline,
        lower_bound_ns=optimum.at_least_ns,
        free_lower_bound_ns=optimum.free_at_least_ns,
        proved_optimal=optimum.is_proved and report.sync_end_ns == optimum.sync_end_ns,
        proof=("" if best is nominal else "not what is recommended, but of the step as given: ")
        + _tell_proof(scorer, optimum)
        + (f"; rests on {'; '.join(robust.rests_on)}" if robust.rests_on else ""),
        families=families,
        absent=found.absent,
        gain=shown_gain,
        against=_against(compared),
        plateau=plateau,
        setting=setting,
        robust=robust,
        critical_path=_path(timeline),
        baseline_path=_path(baseline_timeline),
        notes=(*doubts, *notes_on(workload, report.exposed_comm_ns), *told_unmeasured(hardware)),
        provenance={"source": "sim.tune", "workload": workload.name, "hardware": hardware.name},
    )


def gain(
    workload: Workload, hardware: Hardware, assignment: Assignment, *, seed: int = 0, draws: int = 400
) -> Gain:
    """What ``assignment`` saves against what ``tune`` compares with, with its interval, as ``tune`` says it.

    ``seed`` and ``draws`` as in ``tune``; both are played with the switches of the workload's job.

    Raises:
        InputError: an argument that is not legal. AssignmentError: it is of another workload.
    """
    assignment.check_fits(workload)
    asked = Searched(workload, hardware)
    in_use, assignment = asked.in_use, asked.as_used(assignment)
    default, compared = (assign(workload), DEFAULT) if in_use is None else (in_use, IN_USE)
    reports = [summarize(asked.simulate(one, "analytic")) for one in (default, assignment)]
    pool = Pool({compared: default, ANY_BUCKETS: assignment}, compared, ANY_BUCKETS)
    distribution = replace(draw(asked.scorer.problem, draws, seed), times=asked.times)
    robust = assess(pool, distribution, rest_ns=asked.rest_ns(reports[0].step_ns, default))
    found = judge_gain(
        robust,
        ANY_BUCKETS,
        step_ns=reports[1].step_ns,
        default_step_ns=reports[0].step_ns,
        against=_against(compared),
    )
    return doubted(bounded(found, workload), workload, hardware)


def best(
    workload: Workload, hardware: Hardware, *, progress: Callable[[str], None] | None = None
) -> Assignment:
    """The assignment that ``tune`` recommends for the step as given, without all that it says about it.

    Raises:
        InputError, NotModelledError: as ``tune``.
    """
    with listened_to(progress):
        asked = Searched(workload, hardware)
        scorer = asked.scorer

        def families() -> list[Assignment]:
            return [reach.assignment for reach in find_ddp_families(scorer).reached.values()]

        optimum = _search(scorer, [default_buckets(scorer.problem)], families, NO_LIMIT)
        return asked.as_used(as_assignment(scorer.problem, optimum.buckets))


def _search(
    scorer: Scorer, known: Iterable[Buckets], families: Callable[[], Iterable[Assignment]], limit: int
) -> Optimum:
    """The nominal optimum: at least as good as ``known`` and as one bucket a gradient.

    If it is not proved, ``families`` is called, and the answer is at least as good as these, too.
    """
    return find_optimum(
        scorer.for_search,
        [*known, scorer.problem.singles()],
        limit,
        further=lambda: [made.bucket_indices for made in families()],
    )


def trade_off(
    workload: Workload, hardware: Hardware, limits: Sequence[int] | None = None
) -> tuple[MemoryPoint, ...]:
    """The best step that each limit on the largest bucket allows; ``limits`` in parameter bytes.

    Without ``limits`` powers of two, from a 256th of all gradients on, and the largest gradient.
    """
    for number, limit in enumerate(limits or ()):
        at_least(f"limits.{number}", limit, 0)
    asked = Searched(workload, hardware)
    scorer, default = asked.scorer, assign(workload)
    singles = scorer.problem.singles()
    rest_ns = asked.rest_ns(step_ns(asked.simulate(default, "analytic")), default)
    tried: list[Buckets] = [singles]

    def optimum_under(limit: int | None) -> tuple[int, Assignment]:
        allowed = NO_LIMIT if limit is None else limit
        known = [buckets for buckets in tried if _largest(workload, buckets) <= allowed]
        optimum = find_optimum(scorer.for_search, known, allowed)
        tried.append(optimum.buckets)
        end_ns = scorer.sync_end_ns(optimum.buckets)
        return asked.times * end_ns + rest_ns, as_assignment(scorer.problem, optimum.buckets)

    return memory.trade_off(optimum_under, [g.num_bytes for g in workload.gradients], limits)


def _largest_allowed(workload: Workload, max_bucket_bytes: int | None) -> int:
    largest = max(gradient.num_bytes for gradient in workload.gradients)
    if max_bucket_bytes is None:
        return NO_LIMIT
    at_least("max_bucket_bytes", max_bucket_bytes, 0)
    if max_bucket_bytes < largest:
        raise InputError(
            f"max_bucket_bytes: {max_bucket_bytes} is not legal; the largest gradient alone has {largest}"
        )
    return max_bucket_bytes


def _largest(workload: Workload, buckets: Iterable[Sequence[int]]) -> int:
    return max(sum(workload.gradients[index].num_bytes for index in bucket) for bucket in buckets)


def _as_used(asked: Searched, found: Families) -> Families:
    """The families with the job's switches; other systems only where a step reduces once."""
    reached, absent = {}, dict(found.absent)
    for name, reach in found.reached.items():
        if reach.assignment.policy in DDP_POLICIES or asked.times == 1:
            reached[name] = replace(reach, assignment=asked.as_used(reach.assignment))
        else:
            absent[name] = "a step of the job reduces several times, which is played for DDP alone"
    return replace(found, reached=reached, absent=absent)


def _within(found: Families, asked: Searched, limit: int, memory_limit: int | None) -> Families:
    """The families that keep to both limits; of the others why they do not."""
    reached, absent = {}, dict(found.absent)
    for name, reach in found.reached.items():
        why = _over(asked, reach.assignment, limit, memory_limit)
        if why is None:
            reached[name] = reach
        else:
            absent[name] = why
    return replace(found, reached=reached, absent=absent)


def _over(asked: Searched, assignment: Assignment, limit: int, memory_limit: int | None) -> str | None:
    """Which of both limits these buckets exceed, and how; None where they keep to them."""
    largest = _largest(asked.workload, assignment.bucket_indices)
    if largest > limit:
        return f"its largest bucket, {format_size(largest)}, is above the limit"
    return _misfit(asked, assignment, memory_limit)


def _misfit(asked: Searched, assignment: Assignment, memory_limit: int | None) -> str | None:
    """Why these buckets hold more than the limit; None where they do not."""
    inputs = asked.inputs_for(assignment)
    if memory_limit is None or memory.fits(memory.memory_of(*inputs, assignment), memory_limit):
        return None
    return memory.explain_misfit(*inputs, assignment, memory_limit)


def _family(reach: Reach, report: Report, recommended_ns: int) -> Family:
    return Family(
        assignment=reach.assignment,
        report=report,
        regret_ns=report.step_ns - recommended_ns,
        complete=reach.complete,
        how=reach.how,
    )


def _against(compared: str) -> str:
    """What a gain is told against."""
    return DEFAULT_WORDS if compared == DEFAULT else "the buckets that the job had"


def _path(timeline: Timeline) -> tuple[PathSpan, ...]:
    return tuple(critical_path(timeline))


def _tell_proof(scorer: Scorer, optimum: Optimum) -> str:
    """How the answer is known, what the proof leaves out, and how far both lower bounds are."""
    end, words = optimum.sync_end_ns, optimum.proof
    if scorer.problem.run.any():
        words += ", buckets launched in the order in which they are ready"
    words += over_merges(scorer.problem.workload)
    if not optimum.is_proved and optimum.at_least_ns:
        words += f"; at most {format_percent(end / optimum.at_least_ns - 1, 2)} above the optimum"
    free = optimum.free_at_least_ns
    return (
        f"{words}; {format_percent(end / free - 1 if free else 0.0, 2)} above the lower bound that needs no "
        f"search"
    )
