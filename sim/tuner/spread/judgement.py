"""Whether the recommendation is significantly better than another assignment: one rule for all answers."""

from sim.nouns.assignment import Assignment
from sim.nouns.robust import Robust
from sim.tuner.spread.assessment import play_steps
from sim.tuner.spread.crossed import Estimate, estimate_mean
from sim.tuner.spread.draws import Draws
from sim.tuner.spread.gain import find_shortfall


class Judge:
    """Compares other assignments with the recommended one, over the draws by which its gain was judged.

    For DDP's default it comes to the same answer as ``judge_gain``, from the same rule, draws and steps.

    Args:
        recommended: the assignment, whose nominal step is ``step_ns``.
        rest_ns: the nominal step without ``sync_end``.
    """

    def __init__(
        self, draws: Draws, robust: Robust, recommended: Assignment, *, step_ns: int, rest_ns: int
    ) -> None:
        self.draws = draws
        self.rest_ns = rest_ns
        self._robust = robust
        self._step_ns = step_ns
        self._steps = play_steps(draws, recommended, rest_ns)

    def is_as_good(self, other: Assignment, step_ns: int) -> bool:
        """Whether the recommendation is not significantly better than ``other`` of this nominal step."""
        gain = estimate_mean(play_steps(self.draws, other, self.rest_ns).minus(self._steps))
        return self._is_nothing(Estimate(*map(round, gain)), step_ns)

    def is_as_good_nominally(self, step_ns: float) -> bool:
        """``is_as_good`` for an assignment that is not played over the draws, by its nominal gain."""
        gain = step_ns - self._step_ns
        return self._is_nothing(Estimate(gain, gain, gain), step_ns)

    def _is_nothing(self, gain: Estimate, step_ns: float) -> bool:
        return find_shortfall(gain, step_ns - self._step_ns, step_ns, self._robust) is not None
