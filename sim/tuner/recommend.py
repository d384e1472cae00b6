"""The recommendation: the best assignment, its proof, what each knob reaches, and whether it matters."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from sim.costs.doubts import doubts_about, is_refuted
from sim.costs.own_costs import told_unmeasured
from sim.metrics.critical_path import critical_path
from sim.metrics.step import summarize
from sim.nouns.assignment import DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.checks import at_least
from sim.nouns.hardware import Hardware
from sim.nouns.path import PathSpan
from sim.nouns.recommendation import Family, Gain, Recommendation
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.tuner.progress import listened_to, tell
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
from sim.units import format_percent

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
    seed: int = 0,
    draws: int = 400,
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
        seed: of the distribution of steps.
        draws: how many steps are drawn from it.
        progress: told what comes next, between parts of some milliseconds each, in this thread; what it
            raises ends the search.

    Raises:
        InputError: an argument that is not legal.
        NotModelledError: a workload that DDP does not train as it is.
    """
    with listened_to(progress):
        asked = Searched(workload, hardware)
        return _recommend(asked, seed, draws)


def _recommend(asked: Searched, seed: int, draws: int) -> Recommendation:
    at_least("seed", seed, 0)
    at_least("draws", draws, 1)
    scorer, workload, hardware = asked.scorer, asked.workload, asked.hardware
    found = _as_used(asked, find_families(scorer))
    in_use = asked.in_use
    default = found.reached[DEFAULT].assignment if in_use is None else in_use
    compared = DEFAULT if in_use is None else IN_USE
    ddp = {
        name: reach.assignment
        for name, reach in found.reached.items()
        if reach.assignment.policy in DDP_POLICIES  # other systems are not played by DDP's rules
    }
    optimum = _search(scorer, [ddp[DEFAULT].bucket_indices], ddp.values)
    nominal = asked.as_used(as_assignment(scorer.problem, optimum.buckets))

    tell("playing the answer")
    timeline = asked.simulate(nominal)
    tell("playing what is compared with")
    baseline_timeline = asked.simulate(default)
    baseline = summarize(baseline_timeline)
    rest_ns = asked.rest_ns(baseline.step_ns, default)
    distribution = replace(draw(scorer.problem, draws, seed), times=asked.times)

    def optimise(drawn_workload: Workload, drawn_hardware: Hardware) -> Assignment:
        drawn = Scorer(drawn_workload, drawn_hardware).for_search
        buckets = find_optimum(drawn, [optimum.buckets], effort=LITTLE_EFFORT).buckets
        return asked.as_used(as_assignment(scorer.problem, buckets))

    pool = Pool({**ddp, compared: default, ANY_BUCKETS: nominal}, compared, ANY_BUCKETS)
    if len(distribution) > 1:
        pool = widen(pool, distribution, optimise, OF_SINGLE_DRAWS)
    robust = assess(pool, distribution, rest_ns=rest_ns)
    name = compared  # where nothing is known of the machine that trains
    if not is_refuted(hardware):
        name = choose(
            robust,
            ANY_BUCKETS,
            compared,
            step_ns=summarize(asked.simulate(nominal, "analytic")).step_ns,
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
        against=_against(compared),
        instead_of=ANY_BUCKETS if name == compared else None,
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
    )
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

        optimum = _search(scorer, [default_buckets(scorer.problem)], families)
        return asked.as_used(as_assignment(scorer.problem, optimum.buckets))


def _search(
    scorer: Scorer, known: Iterable[Buckets], families: Callable[[], Iterable[Assignment]]
) -> Optimum:
    """The nominal optimum: at least as good as ``known`` and as one bucket a gradient.

    If it is not proved, ``families`` is called, and the answer is at least as good as these, too.
    """
    return find_optimum(
        scorer.for_search,
        [*known, scorer.problem.singles()],
        further=lambda: [made.bucket_indices for made in families()],
    )


def _as_used(asked: Searched, found: Families) -> Families:
    """The families with the job's switches; other systems only where a step reduces once."""
    reached, absent = {}, dict(found.absent)
    for name, reach in found.reached.items():
        if reach.assignment.policy in DDP_POLICIES or asked.times == 1:
            reached[name] = replace(reach, assignment=asked.as_used(reach.assignment))
        else:
            absent[name] = "a step of the job reduces several times, which is played for DDP alone"
    return replace(found, reached=reached, absent=absent)


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
