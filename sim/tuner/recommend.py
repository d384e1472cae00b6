"""The recommendation: the best assignment, its proof, what the knobs of DDP reach, and whether it matters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from sim.costs.doubts import doubts_about_step, notes_of
from sim.metrics.bottleneck import critical_path
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Family, Gain, Recommendation
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.ddp_assignment import as_the_job, initial_buckets, own_buckets, rebuilt_buckets
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.draws import DRAWS, Draws
from sim.tuner.gain import DEFAULT_WORDS, Paired, choose, judge_gain, over_merges
from sim.tuner.optimum import Optimum, find_optimum
from sim.tuner.problem import Buckets, Problem
from sim.tuner.setting import ROUNDEST_MB, find_plateau, find_setting
from sim.tuner.sweep import CAPS_MB, sweep
from sim.units import MIB, cap_bytes, format_ms, format_percent

DEFAULT = "default"
CAP = "bucket_cap_mb"
ANY_BUCKETS = "bucket_indices"  # the family of all partitions, each of which sim.apply can set
CAP_LIST = "bucket_cap_mb_list"
IN_USE = "the buckets that the job had"  # where these are not DDP's default


def as_assignment(problem: Problem, buckets: Buckets) -> Assignment:
    """These buckets as an assignment under the job's switches, with the ``bucket_cap_mb_list`` that makes
    stock DDP (torch >= 2.11) rebuild them where one does (B(i)): the limits that their sizes are."""
    workload, sizes = problem.workload, bucket_bytes(problem.workload, buckets)
    found = Assignment(
        bucket_indices=buckets,
        bucket_bytes=sizes,
        made_for=made_for(workload, problem.hardware.world_size),
        provenance={"source": "sim.tune", "workload": workload.name},
    )
    if problem.has_one_run:
        # DDP that rebuilds nothing walks its parameters, and turns the buckets around (A2.3).
        is_static = problem.switches.rebuilt_from is None
        limits = sizes[::-1] if is_static else sizes  # under which `cut` closes buckets of these bytes
        made = (initial_buckets if is_static else rebuilt_buckets)(workload, limits)
        if list(map(set, made)) == list(map(set, buckets)):
            kwargs = {CAP_LIST: [limit / MIB for limit in limits]}
            found = replace(found, ddp_kwargs=kwargs, requires={"torch": ">=2.11"})
    return as_the_job(problem.job, found)


def tune(
    workload: Workload,
    hardware: Hardware,
    *,
    seed: int = 0,
    draws: int = DRAWS,
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
    problem = Problem(workload, hardware, progress)
    curve = cap_curve(problem)
    optimum = _search(problem, curve)
    nominal, cap = as_assignment(problem, optimum.buckets), as_the_job(workload, _best_cap(problem, curve))
    default, against = compared_with(problem)
    paired = Paired(Draws(problem, draws, seed), default)
    families = {DEFAULT: problem.default, CAP: cap, ANY_BUCKETS: nominal}
    best = default  # where nothing is known of the machine that trains
    if not doubts_about_step(hardware):
        best = choose(paired, [problem.default, cap, nominal, default], nominal)
    is_less = best is default is not nominal
    gain = judge_gain(paired, best, against=against, instead_of=nominal if is_less else None)

    problem.tell("playing the answer")
    timeline, baseline_timeline = (simulate(workload, hardware, one) for one in (best, default))
    report, baseline = summarize(timeline), summarize(baseline_timeline)
    told: dict[str, Family] = {}
    for name, assignment in families.items():
        problem.tell(f"playing the best of {name}")
        known = report if assignment is best else baseline
        if assignment is not best and assignment is not default:
            known = summarize(simulate(workload, hardware, assignment, "analytic"))
        told[name] = Family(
            assignment=assignment,
            report=known,
            regret_ns=known.step_ns - report.step_ns,
            complete={CAP: curve.complete, ANY_BUCKETS: optimum.is_proved}.get(name, True),
            how={CAP: curve.how, ANY_BUCKETS: optimum.proof}.get(name, "DDP's own caps"),
        )
    if CAP_LIST in nominal.ddp_kwargs:
        told[CAP_LIST] = told[ANY_BUCKETS]
    plateau = find_plateau(curve, paired, best)
    problem.tell("sweeping caps")
    setting = find_setting(
        sweep(workload, hardware),
        default_ns=baseline.step_ns,
        best_ns=report.step_ns,
        gain=gain,
        plateau=plateau,
    )
    proof = _tell_proof(problem, optimum)
    if best.bucket_indices != optimum.buckets:
        proof = f"of the buckets that are best by the times as given, not of these: {proof}"
    if paired.draws.rests_on:
        proof += f"; rests on {'; '.join(paired.draws.rests_on)}"
    return Recommendation(
        assignment=replace(best, made_for=made_for(workload, hardware.world_size)),
        report=report,
        baseline=baseline,
        lower_bound_ns=optimum.at_least_ns,
        proved_optimal=optimum.is_proved and report.sync_end_ns == optimum.sync_end_ns,
        proof=proof,
        families=told,
        gain=gain,
        against=against,
        plateau=plateau,
        setting=setting,
        critical_path=tuple(critical_path(timeline)),
        baseline_path=tuple(critical_path(baseline_timeline)),
        notes=(*notes_on(workload, report.exposed_comm_ns), *notes_of(workload, hardware)),
        provenance={"source": "sim.tune", "workload": workload.name, "hardware": hardware.name},
    )


def gain(
    workload: Workload, hardware: Hardware, assignment: Assignment, *, seed: int = 0, draws: int = DRAWS
) -> Gain:
    """What ``assignment`` saves against what ``tune`` compares with, with its interval, as ``tune`` says it.

    ``seed`` and ``draws`` as in ``tune``; both are played with the switches of the workload's job.

    Raises:
        InputError: an argument that is not legal. AssignmentError: it is of another workload.
    """
    return gains(workload, hardware, [assignment], seed=seed, draws=draws)[0]


def gains(
    workload: Workload, hardware: Hardware, assignments: Sequence[Assignment], *, seed: int, draws: int
) -> tuple[Gain, ...]:
    """``gain`` of each, over the same draws."""
    for one in assignments:
        one.check_fits(workload)
    problem = Problem(workload, hardware)
    default, against = compared_with(problem)
    paired = Paired(Draws(problem, draws, seed), default)
    return tuple(judge_gain(paired, as_the_job(workload, one), against=against) for one in assignments)


def compared_with(problem: Problem) -> tuple[Assignment, str]:
    """What a gain is told against, and in words: DDP's default, or the job's buckets, by their keyword."""
    if (own := own_buckets(problem.job)) is None:
        return problem.default, DEFAULT_WORDS
    gradients, buckets = problem.workload.gradients, own.bucket_indices
    # The cap that made these closed none early, and all but one at most of each run, left open to the end.
    early = max(sum(gradients[index].num_bytes for index in bucket[:-1]) for bucket in buckets)
    late = min(sorted(bucket_bytes(problem.workload, buckets))[problem.run.max() + 1 :], default=NO_LIMIT)
    caps = (cap for cap in chain(*ROUNDEST_MB, CAPS_MB) if early < cap_bytes(cap) <= late)
    made = (assign(problem.workload, bucket_cap_mb=cap) for cap in caps)
    alike = (as_the_job(problem.job, one) for one in made if one.bucket_indices == buckets)
    return next(alike, None) or as_assignment(problem, buckets), IN_USE


def best(
    workload: Workload, hardware: Hardware, *, progress: Callable[[str], None] | None = None
) -> Assignment:
    """The assignment that ``tune`` recommends for the step as given, without all that it says about it.

    Raises:
        InputError, NotModelledError: as ``tune``.
    """
    problem = Problem(workload, hardware, progress)
    return as_assignment(problem, _search(problem).buckets)


def _search(problem: Problem, curve: CapCurve | None = None) -> Optimum:
    """The nominal optimum: at least as good as DDP's default and as one bucket a gradient.

    If it is not proved, at least as good as the best cap and one bucket in all, too.
    """

    def further() -> list[Buckets]:
        best = _best_cap(problem, cap_curve(problem) if curve is None else curve)
        return [one.bucket_indices for one in (best, assign(problem.workload, "single"))]

    known = [problem.default.bucket_indices, problem.singles()]
    return find_optimum(problem.for_search, known, further=further)


def _best_cap(problem: Problem, curve: CapCurve) -> Assignment:
    return assign(problem.workload, bucket_cap_mb=curve.best_mb)


def _tell_proof(problem: Problem, optimum: Optimum) -> str:
    """How the answer is known, what the proof leaves out, and how far the lower bound is."""
    end, words = optimum.sync_end_ns, optimum.proof
    if problem.run.any():
        words += ", buckets launched in the order in which they are ready"
    words += over_merges(problem.workload)
    if not optimum.is_proved and optimum.at_least_ns:
        words += f"; at most {format_percent(end / optimum.at_least_ns - 1, 2)} above the optimum"
    if problem.times > 1:  # the first adds to no gradients, and may copy others in (A3.4, A3.12)
        words += ", each micro-batch taken to go as the last one does"
    if problem.machine.small_bytes:  # ``Problem.for_search``
        words += ", small messages taken to share the wire as others do"
    return words


def notes_on(workload: Workload, exposed_ns: int) -> tuple[str, ...]:
    """What the search could not try, and how to let it; ``exposed_ns`` is what the best step exposes."""
    if not workload.is_of_whole_buckets:
        return ()
    left = f", which might hide some of the {format_ms(exposed_ns)} that stay exposed,"
    left = left if exposed_ns > 0 else ""
    return (
        f"gradients are not told apart: each of the {len(workload.gradients)} here is a whole bucket as it "
        f"ran, so that buckets were merged and never divided, and smaller ones{left} were not tried; to name "
        f"the gradients, profile with record_shapes=True, or record the job with sim.record",
    )
