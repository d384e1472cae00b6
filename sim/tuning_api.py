"""The facade's part about the tuner, whose compiled code only what tunes waits for."""

from collections.abc import Callable, Sequence

from sim.nouns.assignment import Assignment
from sim.nouns.band import BandPoint
from sim.nouns.hardware import Hardware
from sim.nouns.memory import MemoryPoint
from sim.nouns.recommendation import Gain, Recommendation
from sim.nouns.robust import Criterion
from sim.nouns.workload import Workload


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
        workload: its ``samples`` say how iterations vary.
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
    from sim.tuner import progress as telling  # compiled code; only what tunes waits for that
    from sim.tuner import recommend

    with telling.listened_to(progress):
        return recommend.tune(
            workload,
            hardware,
            criterion=criterion,
            seed=seed,
            draws=draws,
            max_bucket_bytes=max_bucket_bytes,
            memory_limit_bytes=memory_limit_bytes,
        )


def gain(
    workload: Workload, hardware: Hardware, assignment: Assignment, *, seed: int = 0, draws: int = 400
) -> Gain:
    """What ``assignment`` saves against DDP's default, with its interval, as ``tune`` tells it of its own.

    ``seed`` and ``draws`` as in ``tune``; both are played by DDP's own rules, without switches.

    Raises:
        InputError: an argument that is not legal. AssignmentError: it is of another workload.
    """
    from sim.tuner import recommend

    return recommend.gain(workload, hardware, assignment, seed=seed, draws=draws)


def best(
    workload: Workload, hardware: Hardware, *, progress: Callable[[str], None] | None = None
) -> Assignment:
    """The assignment that ``tune`` recommends for the step as given, without all that it says about it.

    Raises:
        InputError, NotModelledError: as ``tune``.
    """
    from sim.tuner import progress as telling
    from sim.tuner import recommend

    with telling.listened_to(progress):
        return recommend.best(workload, hardware)


def step_band(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float | None],
    *,
    draws: int = 4000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> tuple[BandPoint, ...]:
    """Where 95 of 100 single steps lie under each cap (MiB; None is DDP's default); empty: nothing varies.

    Steps vary as ``samples`` of the workload, its band and ``spread`` of the hardware say, as those that
    ``tune`` draws, at least ``draws`` of them and the same for every cap. All recorded iterations go in, of
    more than 400 as many; fewer than 39 are too few to show the range, and are taken to be normal.
    ``progress`` as in ``tune``.

    Raises:
        InputError: an argument that is not legal, or samples or a spread that cannot be read.
    """
    from sim.tuner import progress as telling
    from sim.tuner.spread import cap_band as band

    with telling.listened_to(progress):
        return band.step_band(workload, hardware, caps_mb, draws=draws, seed=seed)


def trade_off(
    workload: Workload, hardware: Hardware, limits: Sequence[int] | None = None
) -> tuple[MemoryPoint, ...]:
    """The best step that each limit on the largest bucket allows; ``limits`` in parameter bytes.

    Without ``limits`` powers of two, from a 256th of all gradients on, and the largest gradient.
    """
    from sim.tuner import recommend

    return recommend.trade_off(workload, hardware, limits)
