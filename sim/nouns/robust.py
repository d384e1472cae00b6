"""How candidates do over a distribution of steps: recorded iterations, an uncertain calibration, jitter."""

from dataclasses import dataclass

from sim.nouns.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustRow:
    """One candidate over the same draws as every other; times in ns, intervals at 95 %.

    ``gain_ns`` is the mean of DDP's default step minus this one's, draw by draw. The intervals of both means
    say where the average step of a long training run lies: jitter averages out in it, an error of the
    calibration does not, and what few recorded iterations leave open stays open. What the model itself is
    off by is not in them. ``p95_step_ns`` is the step that 1 draw in 20 exceeds.
    """

    name: str
    mean_step_ns: int
    mean_low_ns: int
    mean_high_ns: int
    p95_step_ns: int
    p95_low_ns: int
    p95_high_ns: int
    gain_ns: int
    gain_low_ns: int
    gain_high_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """Candidates under common random numbers, and the best of them by two criteria.

    ``draws`` steps were drawn with ``seed``: ``calibrations`` machines that the measured curve allows, each
    with ``draws / calibrations`` steps. ``recorded_iterations`` of the workload went in, 0 where fewer than
    two were recorded. ``noise_ns`` is by how much one step of DDP's default varies on one machine (1.4826
    times the median absolute deviation), None where nothing that varies was recorded. ``by_mean`` and
    ``by_p95`` are the nominal optimum unless another candidate is better, by more than 0.1 % and with 95 %
    confidence. ``not_known`` names what was not recorded and so
    counts as exact, ``notes`` what was done to the records. ``rests_on`` names what lies in ranges,
    because it was computed, estimated, anchored or extrapolated: intervals then hold all of these.
    """

    draws: int
    seed: int
    calibrations: int
    recorded_iterations: int
    noise_ns: int | None
    rows: tuple[RobustRow, ...]
    mean_choice: str
    by_mean: Assignment
    p95_choice: str
    by_p95: Assignment
    not_known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()

    def row(self, name: str) -> RobustRow:
        """The candidate of this name; KeyError where there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)
