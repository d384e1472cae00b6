"""Whether the recommendation is significantly better than anything else: what all sentences are made of."""

from sim.nouns.assignment import Assignment
from sim.nouns.robust import Robust
from sim.tuner.spread.assessment import play_steps
from sim.tuner.spread.crossed import Estimate, estimate_mean
from sim.tuner.spread.draws import Draws
from sim.tuner.spread.gain import find_shortfall


class Judge:
    """Holds other assignments against the recommended one, over the draws that its gain was judged by.

    Of DDP's default it finds what ``judge_gain`` finds: rule, draws and nominal steps are the same.

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
        """The same of one that is not played: its nominal gain is taken for the mean of all draws."""
        gain = step_ns - self._step_ns
        return self._is_nothing(Estimate(gain, gain, gain), step_ns)

    def _is_nothing(self, gain: Estimate, step_ns: float) -> bool:
        return find_shortfall(gain, step_ns - self._step_ns, step_ns, self._robust) is not None
