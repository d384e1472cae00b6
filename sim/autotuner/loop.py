"""``sim.autotune``: what the user holds, and what it does at each step boundary, from top to bottom."""

import logging
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any, Literal, NamedTuple, Self

from torch import nn

from sim.autotuner.switch import Boundary, BucketSwitch, Room, check_switchable, recorded
from sim.autotuner.unison import FailedSomewhereError, Link, LinkProbe, Unison, measure_link
from sim.errors import InputError, NotModelledError
from sim.formats.files import scratch_directory
from sim.formats.recordings import load_recording
from sim.importer.recorded import warmup_steps
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Legal
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Recommendation
from sim.nouns.recording import Recording
from sim.recorder.clocks import clock_for
from sim.recorder.training_step import ddp_in
from sim.truth.own_link import hardware_of
from sim.truth.recorded_job import job_in_recording
from sim.truth.turns import AbTest, judge_turns
from sim.units import format_percent

SETTLING_STEPS = 3  # after which DDP has rebuilt its buckets (A2.6)
PREDICTION_STEPS = 5  # that ranks train on while the first one predicts
TRIAL_WARMUP_STEPS = 3  # with the candidate; with static_graph the first one reduces nothing until its end
FEWEST_STEPS = 12  # of a trial: six pairs
_MOST_POSTPONED = 100

_log = logging.getLogger(__name__)
Steps = Generator[None, None, None]
Ending = Generator[None, None, dict[str, Any]]  # and then what ``Autotuned`` is to say
Outcome = Literal["kept", "reverted", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuned:
    """How ``sim.autotune`` ended.

    ``kept``: the job trains with the buckets of ``assignment``. ``reverted``: with its own, as no gain was
    shown or none was to be expected. ``refused``: with its own, as it could not be tried. ``ab`` is the
    trial, where there was one; its interval holds 95 % of the time though it was looked at several times.
    ``predicted_gain_ns`` is what the simulator said of ``assignment``, ``predicted_low_ns`` to
    ``predicted_high_ns`` its 95 % interval (None where the job did not begin with DDP's default). ``steps``
    and ``seconds`` count from the first call of ``step``.
    """

    outcome: Outcome
    why: str
    steps: int
    seconds: float
    assignment: Assignment | None = None
    predicted_gain_ns: int | None = None
    predicted_low_ns: int | None = None
    predicted_high_ns: int | None = None
    ab: AbTest | None = None

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why} ({self.steps} steps, {self.seconds:.1f} s)"


class Autotune:
    """Tune the buckets of ``ddp`` while it trains, and keep what was shown to be faster.

    On every rank, before the loop: ``tuner = sim.autotune(ddp)``; in it, after each ``optimizer.step()``:
    ``tuner.step()``. It records some steps, measures the link for about two seconds, predicts the best
    buckets, and runs them in turns with those in use. Without a gain shown, DDP's own Reducer is back; what
    is not safe to switch is refused, with the reason in ``result``. Gradients are at every step those of an
    all-reduce of the buckets in use: on 2 ranks to the bit those of plain DDP.

    ``result`` is None until it has ended, by itself or by ``stop``; then nothing of it is left on the model.
    ``str`` says in any case where it is, and the first rank logs each state.

    Args:
        ddp: a DistributedDataParallel, or what ``torch.compile``, Accelerate or Fabric made of one.
        record_steps: steps that are recorded, after warm-up.
        verify_steps: steps of the trial before it is first judged.
        max_verify_steps: steps after which it ends without a gain shown.

    Raises:
        InputError: an argument that is not legal.
    """

    def __init__(
        self, ddp: nn.Module, record_steps: int = 10, verify_steps: int = 20, max_verify_steps: int = 200
    ) -> None:
        Legal(least=3).take("record_steps", record_steps)
        Legal(least=FEWEST_STEPS).take("verify_steps", verify_steps)
        Legal(least=verify_steps).take("max_verify_steps", max_verify_steps)
        self._record_steps, self._looks = record_steps, looks(verify_steps, max_verify_steps)
        self.result: Autotuned | None = None
        self._steps, self._begun = 0, time.perf_counter()
        self._work: Ending | None = None
        try:
            self._ddp = ddp_in(ddp)
            check_switchable(self._ddp)
        except NotModelledError as error:
            self._end("refused", str(error))
            return
        self._boundary, self._room = Boundary(self._ddp, owner=self), Room(self._ddp)
        self._ranks, self._clock = Unison(self._ddp), clock_for(self._ddp.device)
        self._enter("DDP had yet to rebuild its buckets")
        self._work = self._run()

    def __str__(self) -> str:
        if self.result is not None:
            return str(self.result)
        return f"not decided: after {self._steps} steps {self._state}; let it train for more steps"

    def step(self) -> None:
        """To be called after each ``optimizer.step()``, on every rank. Does nothing after the tuning's end.

        What fails on one rank ends the tuning on all ranks, in this call.

        Raises:
            RuntimeError: a collective failed, as it would have in the next backward. Where NCCL's watchdog
                finds that first, it ends the process, and nothing is raised.
        """
        if self._work is None or not self._boundary.take_step():
            return
        if not self._steps:
            self._begun = time.perf_counter()
        self._steps += 1
        try:
            self._go_on(self._work)
        except FailedSomewhereError as failed:
            self._end("refused", str(failed))
        except BaseException as error:
            self._end("refused", _in_words(error))
            raise

    def _go_on(self, work: Ending) -> None:
        """To the next step, or to the end that all ranks agree on."""
        if (why := self._boundary.lost) is not None:  # no collective of ours would be met
            work.close()
            self._end("refused", why)
            return
        try:
            next(work)
        except StopIteration as ended:
            self._ranks.agree()
            self._end(**ended.value)
        except FailedSomewhereError:
            raise
        except Exception as error:
            if self._ranks.is_broken:
                raise
            _log.warning("autotune: ended by what failed on this rank", exc_info=error)
            self._end("refused", self._ranks.fail(_in_words(error)))

    def stop(self) -> None:
        """End the tuning, on all ranks at once, with the buckets that the model began with.

        Raises:
            InputError: not at a step boundary.
        """
        if self._work is not None:
            if (obstacle := self._boundary.obstacle) is not None:
                raise InputError(f"stop: not legal here: {obstacle}")
            self._work.close()
            self._end("refused", "stopped before it was decided")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop, unless training has failed: ranks are apart then, and the model is of no more use."""
        if kind is None:
            self.stop()

    def _end(self, outcome: Outcome, why: str, **found: Any) -> None:
        seconds = time.perf_counter() - self._begun
        self.result = Autotuned(outcome=outcome, why=why, steps=self._steps, seconds=seconds, **found)
        if self._work is not None:
            self._work = None
            self._enter(f"it had ended: {self.result}")
            self._boundary.close()
            self._ranks.close()

    def _enter(self, state: str) -> None:
        """Go on to a state, which the first rank logs."""
        self._state = state
        if self._ranks.is_first:
            _log.info("autotune: after %d steps %s", self._steps, state)

    # ---- what happens at each step boundary: generators that yield wherever training goes on for a step

    def _run(self) -> Ending:
        """The whole tuning; ends on all ranks alike.

        Whatever else is raised on one rank is told to the others by ``_go_on``, in their next call of
        ``Unison``: so there is one before each step.
        """
        yield from self._train(SETTLING_STEPS - 1)
        yield from self._at_boundary()
        self._room.check()
        ddp = self._ddp
        if not ddp._has_rebuilt_buckets and (ddp.static_graph or not ddp.find_unused_parameters):
            raise NotModelledError(f"buckets: DDP has not rebuilt them after {SETTLING_STEPS} steps")
        switch = BucketSwitch(ddp)
        try:
            found = yield from self._predict(switch)
            return (yield from self._try(switch, found))
        finally:
            switch.revert()

    def _predict(self, switch: BucketSwitch) -> Generator[None, None, Recommendation]:
        """Record, measure and let the first rank say what is best."""
        self._enter("steps were being recorded")
        in_use = switch.original.buckets
        steps = warmup_steps(self._clock.name) + self._record_steps
        with scratch_directory() as folder, scratch_directory() as own:
            with recorded(self._ddp, switch, own) as live:
                for _ in range(steps):
                    yield from self._train(1)
                    live.step()
                yield from self._at_boundary()
            for rank, text in enumerate(self._ranks.gather(live.path.read_bytes())):
                (folder / f"rank-{rank}.jsonl").write_bytes(text)
            yield from self._at_boundary()
            self._enter("the link was being measured")
            self._room.check()
            link = measure_link(LinkProbe(self._ddp, self._ranks))
            self._enter("the best buckets were being predicted")
            with ThreadPoolExecutor(max_workers=1) as pool:
                pending = [pool.submit(predict, folder, link, in_use)] if self._ranks.is_first else []
                yield from self._train(PREDICTION_STEPS)
                return self._ranks.from_first(lambda: pending[0].result())

    def _try(self, switch: BucketSwitch, found: Recommendation) -> Ending:
        """Train with the candidate and the buckets in use in turns, and keep one of them."""
        gain = found.gain
        said: dict[str, Any] = {"assignment": found.assignment, "predicted_gain_ns": gain.gain_ns}
        said |= {"predicted_low_ns": gain.low_ns, "predicted_high_ns": gain.high_ns}
        if not _is_worth_a_trial(found):
            return {"outcome": "reverted", "why": f"nothing to gain is predicted: {gain.sentence}", **said}
        yield from self._at_boundary()
        self._room.check()
        candidate = switch.make(found.assignment.bucket_indices)
        self._enter(f"{len(candidate.buckets)} buckets were being tried: {gain.sentence}")
        switch.use(candidate)
        yield from self._train(TRIAL_WARMUP_STEPS)
        yield from self._at_boundary()
        times: list[int] = []
        draw = self._ranks.from_first(lambda: randbits(32))
        for look in self._looks:
            while len(times) < look:
                switch.use(candidate if is_candidate_turn(len(times), draw) else switch.original)
                self._ranks.agree()
                begun = self._now()
                yield
                times.append(self._now() - begun)
                yield from self._at_boundary()
            verdict = self._judged(times, draw, found)
            if verdict.keeps is not None:
                break
        if verdict.keeps:
            switch.keep(candidate)
        outcome = "kept" if verdict.keeps else "reverted"
        return {"outcome": outcome, "why": verdict.why, "ab": verdict.ab, **said}

    def _judged(self, times: list[int], draw: int, found: Recommendation) -> "Verdict":
        """The first rank's verdict on the steps so far, of the slowest rank in each."""
        verdict = self._ranks.from_first(
            partial(
                judge,
                self._ranks.over_ranks(times, longest=True),
                draw,
                len(self._looks),
                name=type(self._ddp.module).__name__,
                world_size=self._ranks.world_size,
                plain_ns=found.baseline.step_ns - found.baseline.exposed_comm_ns,
                is_last=len(times) == self._looks[-1],
            )
        )
        self._enter(f"the new buckets were being tried: {verdict.why}")
        return verdict

    def _now(self) -> int:
        self._clock.settle()
        return time.perf_counter_ns()

    def _train(self, steps: int) -> Steps:
        """Let all ranks train for so many steps, before each of which none has failed."""
        for _ in range(steps):
            self._ranks.agree()
            yield

    def _at_boundary(self) -> Steps:
        """Yield steps until all ranks may change buckets; end the tuning if that takes too many."""
        for _ in range(_MOST_POSTPONED):
            why = self._ranks.first_reason(self._boundary.obstacle)
            if why is None:
                return
            yield
        raise FailedSomewhereError(f"step: never called between two steps: {why}")  # on all ranks


autotune = Autotune  # a verb, as it is called


def predict(folder: Path, link: Link, in_use: Sequence[Sequence[int]]) -> Recommendation:
    """The best buckets, by a prediction that is held to the job's own recorded step.

    The link is as it was measured; the rest of the machine (copies back, launches, broadcasts) is read off
    the recording of all ranks in ``folder``, where that has buckets. ``in_use`` are those that the job has.
    Raises ``InputError`` or ``NotModelledError`` where no prediction can be made from it.
    """
    recording = load_recording(folder)
    job = job_in_recording(recording, _hardware(recording, link))
    if job.own is None:
        raise InputError(f"the job's own step cannot be told: {job.why_not}")
    return job.tune(in_use)


def _hardware(recording: Recording, link: Link) -> Hardware:
    if recording.ranks[0].header.level == "full":
        base = hardware_of(recording)
    else:
        base = Hardware(name="link", world_size=recording.world_size, all_reduce=link["all_reduce"])
    return replace(base, name="the job's own link", provenance={"source": "sim.autotune"}, **link)


def _is_worth_a_trial(found: Recommendation) -> bool:
    """Whether anything is to be set by what is predicted."""
    return found.setting.pick != "default"


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# ---- whether the steps of a trial show a gain; it is judged several times, with 5 % error in all

# Steps come in pairs, the buckets in use and the candidate, in an order that is drawn for each pair: what
# drifts cancels, and what comes back every so many steps (batches that four workers load) meets both alike.
# All pairs so far are judged after a number of steps that doubles each time; the interval of a look is wider
# than 95 %, so that those of all looks hold together 95 % of the time (Pocock). Of simulated trials without
# any gain (normal, heavy-tailed, drifting, in two modes, with a period) 1 to 4 % were kept.

# Two-sided levels of each of so many looks that together leave 5 % (Pocock 1977).
_POCOCK = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
NOT_WORTH = 0.005  # of the step: a trial ends early if its interval allows no larger gain


def looks(first: int, most: int) -> tuple[int, ...]:
    """After how many steps the trial is judged: ``first``, doubled until ``most``; whole pairs."""
    found = [first + first % 2]
    while 2 * found[-1] < most and len(found) < len(_POCOCK) - 1:
        found.append(2 * found[-1])
    if most - most % 2 > found[-1]:
        found.append(most - most % 2)
    return tuple(found)


def is_candidate_turn(step: int, draw: int) -> bool:
    """Whether step ``step`` of a trial is the candidate's, in the trial that ``draw`` stands for."""
    pair, place = divmod(step, 2)
    return Random(f"{draw} {pair}").getrandbits(1) == place


class Verdict(NamedTuple):
    """What the steps so far say; ``keeps`` None: more are needed."""

    keeps: bool | None
    why: str
    ab: AbTest


def judge(
    times_ns: Sequence[int], draw: int, count: int, name: str, world_size: int, plain_ns: int, is_last: bool
) -> Verdict:
    """The verdict on the steps of a trial in the order in which they ran, which ``draw`` tells.

    ``times_ns`` are of the slowest rank. ``count``: how many looks there are in all, of which this may be the
    last. ``plain_ns`` is the step of ``name`` without communication, as far as it is known.
    """
    sides: tuple[list[int], list[int]] = ([], [])
    for step, took_ns in enumerate(times_ns):
        sides[is_candidate_turn(step, draw)].append(took_ns)
    level = 1 - _POCOCK[count - 1]
    ab = judge_turns(*sides, [plain_ns], name=name, world_size=world_size, level=level)
    gains = (ab.gain_ns, ab.gain_low_ns, ab.gain_high_ns)
    of_step, low, high = (format_percent(ns / ab.default_step_ns, sign=True) for ns in gains)
    gain = f"{of_step} of a step, 95 % interval {low} to {high}, {ab.rounds} pairs of steps"
    if ab.significant and ab.gain_low_ns > 0:
        return Verdict(True, f"faster by {gain}", ab)
    if ab.gain_high_ns < NOT_WORTH * ab.default_step_ns:
        return Verdict(False, f"no gain worth having: {gain}", ab)
    if not is_last:
        return Verdict(None, f"no gain shown yet: {gain}", ab)
    why = (
        f"no gain shown: {gain}, which leave open whether there is one; DDP's own buckets are back; "
        f"max_verify_steps above {len(times_ns)} gives a longer trial"
    )
    return Verdict(False, why, ab)
